"""The manager: one generic loop *observe → reconcile → apply* for all kinds of `edl_workflows.jobs.kinds`.

It knows no kind: what to watch, how objects belong together and what to do about them is the registry's.
The allocator beside it knows DIJobs. Neighbours: `edl_workflows.process` and `edl_workflows.kube` below,
`edl_workflows.cli.controller` and the embedded cluster above.

- `run`: the process and the loop in a thread of another process
- `manager`: workers over a queue of jobs
- `observed_cluster`: the watched objects, by job
- `reconciler`: one job's objects, decided and applied; `apply`: one decision
- `planner`: what the next two share. `allocator`: sizes and places preemptible DIJobs by a policy of
  `edl_workflows.scaling`; `snapshot`: what the policy is told. `autoscaler`: sizes other elastic jobs;
  `fulfilment_request`: what its algorithm is told
- `queue`, `metrics`: the work queue and the Prometheus metrics
"""
