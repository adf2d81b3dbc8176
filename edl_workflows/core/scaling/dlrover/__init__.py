"""DLRover's resource optimizers: plans for one job with parameter servers or all-reduce workers.

- `resources`: the job as optimizers see it, and the plan that changes it; `samples`: what was measured of it.
- `sample_window`: the newest samples of the job in its present shape.
- `bounds`: the limits that every plan is clamped to.
- `ps_stages`: the stages of a job with parameter servers; `local_optimizer`: plans from the job's own
  statistics.
- `brain`: the Brain's algorithms, which also use statistics of former jobs and of other jobs.
- `recovery`: plans for nodes that ran out of memory or stay pending.
- `allreduce`: the number of workers of an all-reduce job.
"""
