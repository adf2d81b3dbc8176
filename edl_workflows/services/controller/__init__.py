"""The manager: one generic loop *observe → reconcile → apply* for all kinds of
`edl_workflows.core.jobs.kinds`.

The loop knows no kind: the registry says what to watch, which objects belong together and what to do about
them. Only the allocator knows DIJobs. The package uses `edl_workflows.runtime.process` and
`edl_workflows.runtime.kube`, and is used by `edl_workflows.pipelines.cli.services.controller` and the
embedded cluster.

- `run`: the process and the loop in a thread of another process
- `manager`: workers over a queue of jobs
- `observed_cluster`: the watched objects, by job; `cluster_watches`: the nodes and pods of the cluster
- `reconciler`: one job's objects, decided and applied; `apply`: one decision
- `scaling_loop`: base of the next two. `allocator`: sizes and places preemptible DIJobs by a policy of
  `edl_workflows.core.scaling`; `policy_input`: the input of its policies. `autoscaler`: sizes other elastic
  jobs; `fulfilment_request`: the input of its algorithm
- `progress_budget`: how often masters write progress
- `queue`, `delayed_writes`, `periodic_loop`, `metrics`: the work queue, writes that wait for others, a
  loop that plans now and then, and the Prometheus metrics
"""
