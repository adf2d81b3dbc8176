"""DI-orchestrator's HTTP API: programs of a DIJob ask for other replicas, learn where the others are, and report profilings.

Paths, bodies, ids and the envelope of answers are upstream's. What it accepts really changes the job: it edits the job's
spec, and the controller carries that out. It keeps nothing itself, so that any number of servers may run.

Neighbours: `edl_workflows.jobs.di_job` and `edl_workflows.kube` below, `edl_workflows.cli.di_server` above.

- `server`: the process; `app`: the routes
- `service`: what each call does; `replicas`, `profilings`: the pure parts of it
- `watching`: the jobs and their pods, and who waits for a change of them
- `ids`, `messages`: what stands in a request and in an answer
- `guard`: who is let in, how often, and with how much; `limits`: the buckets
"""
