"""Training that stands still although its processes live: found by what moves no more, then acted on. Pure.

What counts as a move: a step, a record, a checkpoint, another cluster version, the end of a node. In each case the nodes are
first asked for the stacks of their training processes, since after a restart nobody can tell any more where they stood.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from edl_workflows.jobs.elastic_job.fault_tolerance import HangAction

DUMP_SECONDS = 10.0
"""From the request for stacks to what follows: agents must hear of it, and their processes write."""


@dataclass(frozen=True)
class Hangs:
    """What a job knows of its hangs; stored.

    Attributes:
        number: of hangs so far; also of the newest request for stacks.
        since: Unix seconds at which the present hang was found; 0 while training moves.
        restarts: how often all training processes were restarted together.
        failure: why the job is given up; "" while it is not.
    """

    number: int = 0
    since: float = 0.0
    restarts: int = 0
    failure: str = ""

    @property
    def dump(self) -> str:
        """Id of the request for stacks; "" while there is none."""
        return f"hang-{self.number}" if self.since else ""


@dataclass(frozen=True)
class LastMove:
    """When training moved last, as this master saw it; not stored: a new master waits anew.

    Attributes:
        marker: what will differ when it moves.
        at: Unix seconds.
    """

    marker: tuple[object, ...]
    at: float


@dataclass(frozen=True)
class HangRules:
    """What the job's spec says: seconds without a move (0: nobody looks), what follows, and how often."""

    timeout: float = 1800.0
    action: HangAction = HangAction.LOG
    max_restarts: int = 3


class HangStep(StrEnum):
    """What is to be done now."""

    NONE = ""
    FOUND = "found"
    """Stacks are asked for from now on."""
    RESTART = "restart"
    FAIL = "fail"


def watch_progress(
    hangs: Hangs, moved: LastMove | None, marker: tuple[object, ...] | None, rules: HangRules, now: float
) -> tuple[Hangs, LastMove | None, HangStep]:
    """Takes a look.

    Args:
        hangs: so far.
        moved: the last move; None if nobody looked yet.
        marker: what is seen now; None while training is not expected to move.
        rules: of the job.
        now: the time.

    Returns:
        The hangs, the last move, and what is to be done.
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
    return _act(hangs, moved, rules, now)


def _act(hangs: Hangs, moved: LastMove, rules: HangRules, now: float) -> tuple[Hangs, LastMove, HangStep]:
    stood = f"training stood still for {now - moved.at:.0f} s; the stacks of its processes are in their logs"
    if rules.action is HangAction.FAIL:
        return replace(hangs, failure=stood), moved, HangStep.FAIL
    if hangs.restarts >= rules.max_restarts:
        used = f"its {rules.max_restarts} restarts of all training processes (maxRestarts) are used up"
        return replace(hangs, failure=f"{stood}; {used}"), moved, HangStep.FAIL
    return replace(hangs, restarts=hangs.restarts + 1), moved, HangStep.RESTART
