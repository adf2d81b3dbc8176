"""A cluster in simulated time: what a scheduler would have done with a published workload.

Everything except `readers`, `store` and `pictures` is pure, and gives the same result for the same seed.

- Input: `workload` has the jobs of a run, also those of a cluster's trace; `readers` reads files.
- Training: `throughput` has measured step times, `application` the progress of one kind of training, and
  `job` one job's training in simulated time.
- Decisions: `scheduler` is the contract of schedulers and makes one for each policy of
  `edl_workflows.scaling.policies`; `pollux`, `tiresias` and `optimus` are schedulers of their own.
- Run: `cluster` simulates interval by interval; `capacity` has node failures, and services that take GPUs.
- Results: `metrics` of a run; `study` describes runs and summarizes results; `store` keeps them; `pictures`
  draws.
- Ready scenarios: `evaluation` of the Pollux paper, and `paddle`, PaddlePaddle EDL's experiment.

The algorithms that scale live jobs are in `edl_workflows.scaling`.
"""
