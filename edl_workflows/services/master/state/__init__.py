"""The state of a master's job and its transitions. No I/O, clock, environment or logger; `now` is passed in.

The state has one writer, the master's loop. It changes `JobState` in place, with the indexes in it
(`NodeRegistry`, `ShardManager`, `Statistics`); all parts of the state are frozen values. Each function does
one of two things:

* It takes values, returns values and changes nothing. Some modules have only such functions: `test_values.py`
  in the tests of this package lists them.
* It changes the state in place, and returns nothing. Only the functions that enter a message (`messages.py`,
  `model_messages.py`, `training_messages.py`) also return the reply.

Where things are:

* `job.py`: the whole state, and the document that is stored; `settings.py`: what the job's spec asks for.
* `messages.py`: reports of nodes; `model_messages.py`: those about the model and its checkpoints;
  `training_messages.py`: those about steps, data and synchronization.
* `observations.py`: what the cluster shows; `transitions.py`: the consequences; `views.py`: what is reported.
* `nodes/`: registry, replacement, node check, hangs, pod requests. `rollouts/`: manual ScalePlans.
  `versions/`: cluster versions and rendezvous. `autoscale/`: the master's own plans.
* `checkpoints.py`, `sync.py`, `statistics.py`, `goodput.py`, and `job_result.py` for the end of the job.
"""
