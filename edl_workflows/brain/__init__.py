"""Brain: plans for the jobs of a whole cluster, from what jobs reported now and before. An HTTP service and its store.

DLRover's Brain is a gRPC service over MySQL. Here it is HTTP + JSON over SQLite or PostgreSQL; its algorithms stand in
`edl_workflows.scaling.dlrover.brain`, its messages in `edl_workflows.protocol.brain`, its client in `edl_workflows.master.brain`.

- `server`: the process; `app`: the routes; `service`: what each call does; `page`: the page for people
- `planner`: the process that plans; `history`: what a plan is made from
- `auth`: tenants and their tokens; `guard`: who is let in, and with how much
- `store`: what is kept
- `monitor`: the cluster, watched; `rows` and `seen`: what the store is told of it
"""
