"""The agent that serves our plugin steps: Argo's controller writes them into WorkflowTaskSets, we run the
stages.

Pure: `tasks` (what a WorkflowTaskSet asks for), `workflow` (who a step is, when its workflow's time is up),
`results` (what a step ends in), `plan` (what to begin, to abandon and to forget). Around them: `service` (one
step from its begin to its report), `orphans` (what is left of steps that vanished while no agent ran),
`deadlines`, and `agent`, the loop over all. All state is in the cluster: the task sets, and the marks on the
objects that the stages made.
"""
