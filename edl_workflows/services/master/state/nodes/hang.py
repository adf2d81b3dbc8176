"""Detects training that makes no progress although its processes are alive, and decides what to do. Pure.

Progress is a step, a record, a checkpoint, another cluster version, or the end of a node. The nodes are first
asked for the stacks of their training processes, because a restart would destroy these.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.core.jobs.elastic_job.policies import HangAction

DUMP_SECONDS = 10.0
"""Seconds between the request for stacks and the next action, in which the processes write their stacks."""


@dataclass(frozen=True)
class Hangs:
    """What is stored of a job's hangs.

    Attributes:
        number: how many hangs there were; also the number of the newest request for stacks.
        since: Unix seconds at which the present hang was found; 0 while training progresses.
        restarts: how often all training processes were restarted together.
        failure: why the job is given up; else "".
    """

    number: int = 0
    since: float = 0.0
    restarts: int = 0
    failure: str = ""

    @property
    def dump(self) -> str:
        """Id of the request for stacks; "" if there is none."""
        return f"hang-{self.number}" if self.since else ""


@dataclass(frozen=True)
class LastMove:
    """When this master last saw progress. Not stored: a new master starts the time-out anew.

    Attributes:
        marker: a value that changes with any progress.
        at: Unix seconds.
    """

    marker: tuple[object, ...]
    at: float


@dataclass(frozen=True)
class HangRules:
    """Limits from the job's spec: seconds without progress (0: no detection), the action, and the most
    restarts.
    """

    timeout: float = 1800.0
    action: HangAction = HangAction.LOG
    max_restarts: int = 3


class HangStep(StrEnum):
    NONE = ""
    FOUND = "found"
    """A hang was found; stacks are requested from now on."""
    RESTART = "restart"
    FAIL = "fail"


def watch_progress(
    hangs: Hangs, moved: LastMove | None, marker: tuple[object, ...] | None, rules: HangRules, now: float
) -> tuple[Hangs, LastMove | None, HangStep]:
    """Compare the present marker with the last one.

    Args:
        hangs: the hangs so far.
        moved: the last progress; None in the first call.
        marker: the present marker; None while training is not expected to progress.
        rules: of the job.
        now: Unix seconds.

    Returns:
        The hangs, the last progress, and what to do.
    """
    if marker is None or not rules.timeout:
        return replace(hangs, since=0.0), None, HangStep.NONE
    if moved is None or moved.marker != marker:
        return replace(hangs, since=0.0), LastMove(marker, now), HangStep.NONE
    if now - moved.at < rules.timeout or hangs.failure:
        return hangs, moved, HangStep.NONE
    if not hangs.since:
        return replace(hangs, number=hangs.number + 1, since=now), moved, HangStep.FOUND
    if now - hangs.since < DUMP_SECONDS or rules.action is HangAction.LOG:
        return hangs, moved, HangStep.NONE
    return _act_on_hang(hangs, moved, rules, now)


def _act_on_hang(
    hangs: Hangs, moved: LastMove, rules: HangRules, now: float
) -> tuple[Hangs, LastMove, HangStep]:
    stood = f"training stood still for {now - moved.at:.0f} s; the stacks of its processes are in their logs"
    if rules.action is HangAction.FAIL:
        return replace(hangs, failure=stood), moved, HangStep.FAIL
    if hangs.restarts >= rules.max_restarts:
        used = f"its {rules.max_restarts} restarts of all training processes (maxRestarts) are used up"
        return replace(hangs, failure=f"{stood}; {used}"), moved, HangStep.FAIL
    return replace(hangs, restarts=hangs.restarts + 1), moved, HangStep.RESTART
