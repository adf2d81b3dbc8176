"""Simulates how a scheduler would have run a published workload on a cluster.

All modules except `readers`, `store` and `pictures` are pure, and the same seed gives the same result.

- Input: `workload` defines the jobs of a run and converts traces of clusters; `readers` reads files.
- Training: `throughput` has measured step times, `application` models the progress of one kind of training,
  and `job` simulates the training of one job.
- Decisions: `schedulers`: `scheduler` defines their interface and runs live policies; `catalog` lists all
  policies that can be simulated; `pollux`, `tiresias` and `optimus` are schedulers that exist only here.
- Run: `cluster` simulates a run interval by interval; `capacity` models node failures and services that take
  GPUs.
- Results: `metrics` measures a run; `study` describes runs and summarizes their results; `store` keeps
  results in a file; `pictures` draws them.
- Scenarios: `evaluation`, that of the Pollux paper, and `paddle`, the experiment of PaddlePaddle EDL.

The algorithms that scale live jobs are in `edl_workflows.core.scaling`.
"""
