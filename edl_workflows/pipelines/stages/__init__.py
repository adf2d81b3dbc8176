"""The steps of a pipeline that concern a job: submit, wait, scale, checkpoint, migrate, suspend, resume,
delete, collect.

A stage is one description (`description.StageSpec`): the fields of its request, and `begin`, which may be
repeated at any time and always leads to the same object. `begin` returns a handle with a goal; the pure
`results.evaluate_goal` tells from the object's state whether the goal is reached, and
`ownership.cancel_object` ends only what the stage created. `catalog` lists all stages. Airflow's operators,
Argo's steps and the CLI are thin drivers made from the descriptions; `driver` waits, blocking or in an event
loop, on the process's shared watch.

Nothing here depends on a workflow engine or on one kind of job (see `jobs`).
"""
