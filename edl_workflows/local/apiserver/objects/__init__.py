"""What the API server knows of objects: the resources, their defaults and checks, and the verbs on them.

- `registry`: create, update, patch and delete; `admission`, `checks`, `deletion`, `patches`, `garbage`
- `catalog`, `crds`: the resources that are served; `schemas`, `rules`: their validation
- `builtin`, `builtin_pods`, `metadata`, `quantities`, `selectors`: the built-in kinds and the common fields
"""
