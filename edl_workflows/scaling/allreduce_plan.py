"""The plan for a collective job from its own statistics: as many workers as pay, by what was measured at each count.

The rule is `allreduce.decide`. Speeds at different counts can be compared since the global batch is the same at each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.scaling.allreduce import AllreduceJob, decide
from edl_workflows.scaling.bounds import bounded, count_range
from edl_workflows.scaling.resources import WORKER, Job, ResourcePlan, group, nothing
from edl_workflows.scaling.samples import MAX_SPEED


@dataclass(frozen=True)
class WorldSize:
    """What the job's rendezvous allows, and what was measured.

    Attributes:
        least, most: the fewest and the most workers.
        unit: their number is a multiple of it.
        speeds: number of workers that trained → steps a second, oldest first.
    """

    least: int
    most: int
    unit: int = 1
    speeds: Mapping[int, Sequence[float]] = field(default_factory=dict)


def workers_plan(job: Job, size: WorldSize) -> ResourcePlan:
    """How many workers a collective job shall have.

    1. Until all that are wanted run, nothing is known of them.
    2. What `resourceLimits` leave room for is as good as the cluster's free room: whether a node finds a place shows when it is
       made, and a plan that waits for it in vain is taken back.
    3. What each number of workers brought, by all that was ever measured: none is tried twice.

    Args:
        job: as it is.
        size: what its rendezvous allows, and what was measured.
    """
    role = job.roles.get(WORKER)
    if role is None or not role.auto_scale:
        return nothing("workers: autoScale is off")
    running = sum(node.pending_since is None for node in job.of(WORKER))
    if running != role.count:
        return nothing(f"{running} of {role.count} workers run", waiting=True)
    allowed = count_range(job, WORKER)
    possible = {
        count: [speed for speed in measured if math.isfinite(speed) and 0 < speed <= MAX_SPEED]
        for count, measured in size.speeds.items()
    }
    decision = decide(
        AllreduceJob(
            workers=role.count,
            min_workers=max(size.least, int(allowed.low)),
            max_workers=min(size.most, int(allowed.high)),
            free=_room(job, size.most),
            speeds=possible,
            node_unit=size.unit,
            fixed_batch=True,
        )
    )
    if decision.workers == role.count:
        return nothing(decision.reason)
    return bounded(job, group(WORKER, decision.reason, decision.workers), tolerance=0.0)


def _room(job: Job, most: int) -> int:
    """How many more workers the job's limits leave room for."""
    fitting = bounded(job, group(WORKER, "", most), tolerance=0.0).node_group_resources.get(WORKER)
    count = job.roles[WORKER].count
    return max(0, (count if fitting is None or fitting.count is None else fitting.count) - count)
