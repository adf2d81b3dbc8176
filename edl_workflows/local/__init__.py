"""The embedded cluster of one machine: a Kubernetes-compatible API server, a scheduler and a process runner.

Everything talks to it through the Kubernetes API, as with any other cluster; there is no second code path. It
is not a distributed system: one process, one machine, no isolation between pods beyond that of Linux
processes.
"""
