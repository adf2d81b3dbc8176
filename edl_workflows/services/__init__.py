"""The long-running programs. They don't import each other.

- `controller`: the controller of all job kinds
- `master`: the master of one job
- `agent`: the process beside each training program; base install only
- `brain`: resource plans for all jobs of a cluster
- `di_server`: the HTTP API for programs of DIJobs
"""
