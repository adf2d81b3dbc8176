"""The account of what the jobs' pods hold of their nodes, and the metrics of jobs.

- `ledger`: remembers pods that are gone, and adds the account to the statuses that the controller writes
- `job_metrics`: what Prometheus sees of the jobs
- `namespace_series`: ends series of namespaces without jobs
"""
