"""Kubernetes-compatible API server of the embedded cluster: one process, one event loop, SQLite.

From the bottom to the top:

- `errors`       refusals, shaped as ``Status`` objects
- `store`        versioned objects, bounded history and watches over one SQLite log
- `selectors`    label and field selectors
- `patches`      JSON, merge and strategic merge patch
- `metadata`     names, uids, times: what every object has
- `schemas`      structural schemas: pruning, defaulting, validation with field paths
- `rules`        CEL rules in those schemas
- `catalog`      which resources there are, built-in and defined by CRDs
- `builtin`      the built-in kinds: defaults and light validation
- `crds`         a CustomResourceDefinition becomes a resource
- `registry`     create, get, list, update, patch and delete with the semantics that controllers rely on
- `garbage`      owner references, finalizers of propagation, namespaces' content
- `client`       the registry for neighbours in the same process
- `tables`       what ``kubectl get`` prints
- `discovery`, `openapi`    what clients ask for first
- `auth`         bearer tokens
- `requests`, `app`         HTTP: paths, bodies, watch streams, errors
"""
