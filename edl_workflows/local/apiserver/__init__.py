"""Kubernetes-compatible API server of the embedded cluster: one process, one event loop, SQLite.

From the bottom to the top:

- `errors`       refusals, shaped as ``Status`` objects
- `store`        versioned objects, bounded history and watches over one SQLite log
- `selectors`    label and field selectors
- `metadata`     names, uids, times: what every object has
- `schemas`      structural schemas: pruning, defaulting, validation with field paths
- `rules`        CEL rules in those schemas
- `patches`      JSON, merge and strategic merge patch
- `catalog`      which resources there are, built-in and defined by CRDs
- `builtin`, `builtin_pods`, `checks`    the built-in kinds: defaults and light validation
- `crds`         a CustomResourceDefinition becomes a resource
- `admission`    what a write must satisfy beyond its own fields
- `deletion`     when and how an object goes
- `registry`     create, update, patch and delete with the semantics that controllers rely on
- `garbage`      what follows from deletions: dependents, content of namespaces, objects of definitions
- `expiry`       events end
- `client`       the registry for neighbours in the same process
- `auth`         bearer tokens
- `requests`, `protobuf`    paths, parameters and bodies of requests
- `views`, `tables`         answers: whole objects, rows for ``kubectl get``, metadata
- `discovery`, `openapi`    what clients ask for first
- `pods`, `scale`           subresources
- `server`       the parts put together
- `verbs`, `app`            HTTP
- `certificates`, `serving`     TLS, token and kubeconfig on disk
"""
