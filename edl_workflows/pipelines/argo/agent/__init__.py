"""The agent that serves plugin steps: Argo's controller writes the steps into WorkflowTaskSets, and the agent
runs their stages.

The pure modules are `tasks` (the tasks in a WorkflowTaskSet), `workflow` (the identity of a step, the
deadline of its workflow), `results` (the result of a step), `task_actions` (which tasks to begin, abandon and
forget). The others are `step_runner` (serves one step until its result is reported), `orphans` (objects of
steps that vanished while no agent ran), `deadlines`, and `loop`, which runs all steps. All state is in the
cluster: the task sets, and the owner annotations on the objects that the stages created.
"""
