"""Dynamic data sharding: which records are handed out, to whom, and which are done. Pure: no I/O, clock or
logger.

This is DLRover's `TaskManager`, rebuilt on one idea: a shard is a *number* in the order of its epoch or
partition. All numbers below a cursor have been handed out; those of them that are not done are listed; all
others need no memory. So pending shards cost nothing, and the state of 10 million records is a few hundred
bytes of JSON.

* `manager.py`: all data sets of a job; `dataset.py`: the rules of one.
* `sources.py`: which shards there are (table and text; streaming); `sequence.py`: one epoch or partition.
* `leases.py`: who holds what; `snapshot.py`: what is stored. Shuffling is by formula,
  `edl_workflows.protocol.permutation`.

The rules:

* An epoch is opened when all shards of earlier epochs are handed out. At most two are open, so that a
  straggler with the last shard of epoch *n* doesn't stop the others, and epoch *n + 2* waits for it.
* Order is first in, first out. A shard that is re-queued (failure, time-out, lost worker, release) goes to
  the end of its epoch, before any later epoch. Once `MAX_RETURNED` shards are re-queued, they go first, which
  bounds what is stored.
* A failure or time-out is a retry; one too many fails the *data set*, with a reason. No shard is ever
  dropped.
* `done` is accepted from any node, once; `edl_workflows.protocol.datasets` describes late, repeated and void
  answers.

Objects here are for one thread, the master's loop. `now` is Unix seconds. A clock that jumps makes time-outs
early or late and does no other harm.
"""

from edl_workflows.master.shards.manager import ShardManager
from edl_workflows.master.shards.snapshot import JobPosition, ShardsSnapshot

__all__ = ["JobPosition", "ShardManager", "ShardsSnapshot"]
