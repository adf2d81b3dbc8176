"""Brain's algorithms, which advise a job from its own statistics, from former jobs like it, and from the
other jobs of the cluster. Pure.

`request` is the input of the algorithms; `ps_algorithms`, `worker_algorithms` and `fairness` are the
algorithms; `algorithms` names and chooses them. Not here: the service and its store
(`edl_workflows.services.brain`).
"""
