"""What each of our long-running processes has around its work: a turn to lead, endpoints for probes, counters, an end.

Neighbours: `edl_workflows.kube` below; `edl_workflows.controller` and `edl_workflows.argo.agent` above.

- `run`: the whole of it around a piece of work
- `leader`: leader election by a Lease
- `health`, `metrics`: what probes and Prometheus read
- `http`: an API beside the rest
- `signals`: SIGTERM and SIGINT as an event
"""
