"""Kubernetes-compatible API server of the embedded cluster: one process, one event loop, SQLite.

From the bottom to the top:

- `errors`: refusals, shaped as ``Status`` objects
- `storage`: versioned objects, bounded history and watches on one SQLite log
- `objects`: the resources that are served, their defaults and checks, and the verbs on them
- `client`: the registry for components in the same process
- `auth`, `reviews`: bearer tokens, and questions about permissions
- `requests`, `protobuf`: paths, parameters and bodies of requests; `off_loop`: long computations in threads
- `views`, `tables`: answers: whole objects, rows for ``kubectl get``, metadata
- `discovery`: what clients ask for first, and OpenAPI
- `subresources`: logs, binding, eviction, proxy, tokens, scale
- `server`: the parts wired together; `verbs`, `app`: HTTP; `serving`: TLS, token and kubeconfig on disk
"""
