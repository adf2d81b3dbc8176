"""What every long-running process has besides its work: leader election, health and metrics endpoints, HTTP
servers, signals.

- `leader_process`: the life of a process that leads; `leader`: leader election by a Lease
- `health`, `metrics`: what probes and Prometheus read
- `http`: an HTTP server with bounded connections (`connections`, `http_protocol`); `http_api`: what our HTTP
  APIs share
- `signals`: SIGTERM and SIGINT as an event
- `log_limit`: limits on log lines that clients can cause
"""
