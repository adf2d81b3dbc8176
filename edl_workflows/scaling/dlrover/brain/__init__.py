"""Brain's algorithms: from what is known of a job, of others like it and of those beside it, to a plan. Pure.

`request` is what an algorithm is told; `ps`, `workers` and `fairness` are the algorithms; `table` names and
chooses them. Not here: the service and its store (`edl_workflows.brain`).
"""
