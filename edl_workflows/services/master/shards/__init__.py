"""Dynamic data sharding: which shards are leased, to which node, and which are done. Pure: no I/O, clock or
logger.

This is DLRover's `TaskManager`, rebuilt on one idea: a shard is a *number* in the order of its epoch or
partition. All shards below a cursor have been leased once; of these, only the ones that are not done are
stored. So pending shards cost nothing, and the state of 10 million records is a few hundred bytes of JSON.

* `manager.py`: all data sets of a job; `dataset.py`: the rules of one.
* `sources.py`: which shards there are (table and text; streaming); `sequence.py`: one epoch or partition.
* `leases.py`: which node holds which lease; `keepers.py`: for whose reports a new master waits.
* `snapshot.py`: the stored documents. The shuffled order is computed, not stored
  (`edl_workflows.core.protocol.permutation`).

The rules:

* An epoch is opened when all shards of earlier epochs are leased. At most two epochs are open: while a
  straggler holds the last shard of epoch *n*, the other nodes work on epoch *n + 1*, but epoch *n + 2* waits.
* Order is first in, first out. A shard that is re-queued (failure, time-out, lost worker, release) goes to
  the end of its epoch, before any later epoch. Once `MAX_RETURNED` shards are re-queued, they go first, which
  limits the size of the stored state.
* A failure or time-out counts as a retry. Too many retries of a shard fail the *data set*, with a reason. No
  shard is ever dropped.
* A shard is accepted as `done` once, from any node; `edl_workflows.core.protocol.datasets` describes late,
  repeated and void answers.

Objects here are for one thread, the master's loop. `now` is Unix seconds. If the clock jumps, leases expire
too early or too late; it does no other harm.
"""

from edl_workflows.services.master.shards.manager import ShardManager
from edl_workflows.services.master.shards.snapshot import JobPosition, ShardsSnapshot

__all__ = ["JobPosition", "ShardManager", "ShardsSnapshot"]
