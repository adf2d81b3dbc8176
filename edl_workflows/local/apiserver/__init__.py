"""Kubernetes-compatible API server of the embedded cluster: one process, one event loop, SQLite.

From the bottom to the top:

- `errors`: refusals, shaped as ``Status`` objects
- `store`: versioned objects, bounded history and watches on one SQLite log
- `selectors`, `metadata`: label and field selectors; names, uids and times of every object
- `schemas`, `rules`: violations of structural schemas (`edl_workflows.core.schemas`) and of their CEL rules
- `patches`: JSON, merge and strategic merge patch
- `catalog`: the served resources, built-in or defined by CRDs
- `builtin`, `builtin_pods`, `checks`, `quantities`: the built-in kinds: defaults and light validation
- `crds`: a CustomResourceDefinition becomes resources
- `admission`, `deletion`: checks of writes and deletions beyond the object's own fields
- `registry`: create, update, patch and delete with the semantics that controllers rely on
- `garbage`: the consequences of deletions, and the expiry of events
- `client`: the registry for components in the same process
- `auth`, `reviews`: bearer tokens, and questions about permissions
- `requests`, `protobuf`: paths, parameters and bodies of requests; `off_loop`: long computations in threads
- `views`, `tables`: answers: whole objects, rows for ``kubectl get``, metadata
- `discovery`: what clients ask for first, and OpenAPI
- `subresources`: logs, binding, eviction, tokens, scale
- `server`: the parts wired together; `verbs`, `app`: HTTP; `serving`: TLS, token and kubeconfig on disk
"""
