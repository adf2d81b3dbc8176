"""What a pipeline does with a job, free of any engine: submit, wait, scale, checkpoint, migrate, suspend, resume, delete, collect.

A stage is a request (`requests`), a `begin` that may run any number of times and always ends in one and the same object,
a goal (`goals`) whose pure `outcome` tells from the object's state whether it is reached, and `ownership.cancel_object`, which
touches only what the stage made. Engines are thin drivers over these: Airflow's operators and trigger, Argo's agent, the CLI.
`driver` waits, blocking or not, on the process's shared watch.

What does not belong here: anything of an engine, and anything that only one kind of job knows (that is `jobs`).
"""
