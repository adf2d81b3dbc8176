"""Brain: plans for the jobs of a whole cluster, from what jobs reported now and before. An HTTP service and its store.

DLRover's Brain is a gRPC service over MySQL. Here it is HTTP + JSON over SQLite or PostgreSQL; its algorithms stand in
`edl_workflows.scaling.brain`.
"""
