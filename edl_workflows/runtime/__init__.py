"""What every program needs that is more than a value.

- `kube`: the only code that uses the Kubernetes client
- `process`: what long-running processes share: leader election, endpoints, HTTP servers, signals
"""
