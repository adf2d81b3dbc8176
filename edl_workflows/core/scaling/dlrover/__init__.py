"""DLRover's resource optimizers: advice for one job with parameter servers or all-reduce workers.

- `resources`: the job as optimizers see it, and the advice that changes it; `samples`: what was measured of
  it.
- `sample_window`: the newest samples of the job in its present shape.
- `bounds`: the limits that all advice is clamped to.
- `ps_stages`: the stages of a job with parameter servers; `local_optimizer`: advice from the job's own
  statistics.
- `brain`: the Brain's algorithms, which also use statistics of former jobs and of other jobs.
- `recovery`: advice for nodes that ran out of memory or stay pending.
- `allreduce`: the number of workers of an all-reduce job.
"""
