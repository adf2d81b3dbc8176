"""A cluster in simulated time: what a scheduler would have done with a published workload.

Everything but `rows`, `readers`, `store` and `pictures` is pure: values in, values out, the same answer for the same seed.

- `rows`, `readers`: workloads, measured traces, failures and services from CSV files.
- `workload`: the jobs of a run.
- `trace`: jobs of a cluster's trace, of which only GPUs and durations are known, as a workload.
- `throughput`: how long a training step takes on a placement, from measurements.
- `application`: what one kind of training does: its step times, and its progress epoch by epoch.
- `job`: one job's training in simulated time.
- `scheduler`: what a scheduler is asked and told; any `edl_workflows.scaling.policy.Policy` is one.
- `tiresias`, `optimus`: the baselines of the Pollux paper; `pollux`: its policy, with jobs that fit their own goodput;
  `fulfilment`: the cluster autoscaler's planner; `policies`: all of them by name.
- `capacity`: node failures, and services that take their share of the nodes.
- `cluster`: the run, interval by interval.
- `study`: what is to be run, its result, and results put together; `store`: results in a file, so that a study can go on.
- `pictures`: use over time, completion times, and jobs as bars.
- `metrics`: completion times, makespan, utilisation, pending time, restarts.
- `evaluation`: the Pollux paper's evaluation as a ready scenario, with its published figures.
- `paddle`: PaddlePaddle EDL's experiment, pods and all, with its published figures.

Not here: anything that talks to a cluster, and the algorithms that live jobs are scaled by (`edl_workflows.scaling`).
"""
