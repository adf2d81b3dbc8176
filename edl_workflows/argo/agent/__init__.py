"""The agent that serves plugin steps: Argo's controller writes them into WorkflowTaskSets, the agent runs
their stages.

Pure: `tasks` (what a WorkflowTaskSet asks for), `workflow` (the identity of a step, the deadline of its
workflow), `results` (the result of a step), `task_plan` (which tasks to begin, abandon and forget). Around
them: `step_runner` (one step from its beginning to its report), `orphans` (objects of steps that vanished
while no agent ran), `deadlines`, and `loop`, which runs all steps. All state is in the cluster: the task
sets, and the owner annotations on the objects that the stages created.
"""
