"""Common parts of all long-running processes: leader election, health and metrics endpoints, HTTP servers and
signals.

- `leader_process`: the life cycle of a process with leader election; `leader`: leader election with a Lease
- `partition_member`: a replica that leads a partition of all jobs, with one of several Leases
- `partition`: the partition, for all threads of the process
- `health`, `metrics`: endpoints for probes and Prometheus
- `http`: an HTTP server with bounded connections (`connections`, `http_protocol`); `http_api`: the common
  parts of our HTTP APIs
- `signals`: SIGTERM and SIGINT as an event
- `log_limit`: limits on log lines that clients can cause
"""
