"""DI-orchestrator's HTTP API: the programs of a DIJob scale it, find their peers, and report profilings.

Paths, bodies, ids and the envelope of answers are upstream's. A request changes the job for real: the server
edits the job's spec, and the controller carries out the edit. The server has no state of its own, so any
number of servers may run.

- `server`: the process; `app`: the routes; `guard`: admission and rate limits
- `service`: what each call does; `replicas`, `profilings`: its pure parts
- `watching`: caches of the jobs and their pods, and long polls that wait for changes
- `messages`: job ids, bodies, and the envelope of answers
"""
