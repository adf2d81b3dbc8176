"""The embedded cluster of one machine: a Kubernetes-compatible API server, a scheduler and a process runner.

Everything talks to it through the Kubernetes API, as with any other cluster; there is no second code path. It
is not a distributed system: it runs in one process on one machine and isolates pods only as far as Linux
isolates processes.
"""
