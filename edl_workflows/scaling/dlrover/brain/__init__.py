"""Brain's algorithms: from what is known of a job, of others like it and of those beside it, to a plan. Pure.

`request` is what an algorithm is told; `ps_algorithms`, `worker_algorithms` and `fairness` are the
algorithms; `algorithms` names and chooses them. Not here: the service and its store (`edl_workflows.brain`).
"""
