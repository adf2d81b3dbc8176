"""The Brain: a service that advises on the resources of all jobs of a cluster, from what jobs report now and
have reported before.

DLRover's Brain is a gRPC service over MySQL. This one is HTTP + JSON over SQLite or PostgreSQL; its
algorithms are in `edl_workflows.core.scaling.dlrover.brain`, its messages in
`edl_workflows.core.protocol.brain`, its client in `edl_workflows.services.master.brain`.

- `server`: the process; `app`: the routes; `service`: the implementation of each route; `page`: the web page
- `optimizer_process`: the process that computes advice; `history`: reads its input
- `auth`: tenants and their tokens; `guard`: admission; `limits`: limits per tenant
- `store`: the database
- `monitor`: watches the cluster; `observations`: what it stores
"""
