"""DI-orchestrator's HTTP API: the programs of a DIJob scale it, find their peers, and report profilings.

Paths, bodies, ids and the envelope of answers are upstream's. A request really changes the job: the server
edits the job's spec, and the controller carries the edit out. The server keeps no state of its own, so that
any number of them may run.

- `server`: the process; `app`: the routes; `guard`: admission and rate limits
- `service`: what each call does; `replicas`, `profilings`: its pure parts
- `watching`: caches of the jobs and their pods, and long polls that wait for changes
- `messages`: job ids, bodies, and the envelope of answers
"""
