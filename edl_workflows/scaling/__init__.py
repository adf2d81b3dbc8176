"""Which job gets how many replicas, and on which nodes: pure algorithms.

`policy` is the contract: what a policy is told of jobs and nodes, and the two questions that it answers. Each policy is a
module of its own; `fit` is first-fit, `pollux` maximises the goodput that jobs report. `fulfilment` sizes the jobs of a cluster
as Paddle EDL describes it. `ps_stages`, `local_optimizer`, `recovery` and `brain` plan jobs of parameter servers as DLRover does;
`allreduce` those of all-reduce. `edl_workflows.controller` asks and carries the answers out.

Not here: anything that talks to a cluster, a clock, or what a job of some kind looks like.
"""
