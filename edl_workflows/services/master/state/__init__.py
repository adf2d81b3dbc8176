"""The state of one job's master and its transitions. Pure: no I/O, clock, environment or logger; `now` is
passed in.

* `job.py`: the whole state, and the document that is stored; `settings.py`: what the job's spec asks for.
* `messages.py`: reports of nodes; `model_messages.py`: those about the model and its checkpoints;
  `observations.py`: what the cluster shows; `transitions.py`: the consequences; `views.py`: what is reported.
* `nodes/`: registry, replacement, node check, hangs, pod plans. `versions/`: cluster versions and rendezvous.
  `plans/`: manual ScalePlans. `autoscale/`: the master's own plans.
* `checkpoints.py`, `sync.py`, `statistics.py`, `goodput.py`, and `job_result.py` for the end of the job.
"""
