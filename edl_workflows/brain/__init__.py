"""Brain: plans for the jobs of a whole cluster, from what jobs reported now and before. An HTTP service and its store.

DLRover's Brain is a gRPC service over MySQL. Here it is HTTP + JSON over SQLite or PostgreSQL; its algorithms stand in
`edl_workflows.scaling.brain`, its messages in `edl_workflows.protocol.brain`, its client in `edl_workflows.master.brain`.

- `server`: the process; `app`: the routes; `web`: the page for people
- `service`: what each call does; `planner`: the process that plans; `history`: what a plan is made from; `reading`: what the page is told (`views`)
- `auth`: tenants and their tokens; `guard`: who is let in, and with how much; `answers`: what errors mean to a caller
- `store`: rows in; `reader`: rows out; `stored`: the values that they are; `writer`: group commit; `tables` and `migrations`: the schema; `database`: SQLite, PostgreSQL
- `retention`: what becomes of old rows
- `monitor`: the cluster, watched; `rows` and `seen`: what the store is told of it
"""
