"""What the agent does next, from the task sets and the tasks that it serves already. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from edl_workflows.argo.agent.tasks import OpenTask, TaskKey

SETTLE_SECONDS = 5.0
"""The controller takes a result in two writes: it removes the result, then the task. In between the task
looks as if nobody had answered. One that stays so for this long was left by a controller that died between
the two, and is answered again."""


class TaskProgress(Enum):
    """Progress of a task that the agent tracks."""

    SERVING = auto()
    ABANDONED = auto()
    """It vanished; the object of its stage is being cancelled."""
    REPORTED = auto()


@dataclass(frozen=True)
class TrackedTask:
    """A task that the agent tracks.

    Attributes:
        progress: how far the agent is with it.
        since: when `progress` last changed, in seconds of a monotonic clock.
    """

    progress: TaskProgress
    since: float = 0.0


@dataclass(frozen=True)
class TaskPlan:
    """What to do.

    Attributes:
        begin: tasks to serve.
        abandon: tasks to give up: they vanished unanswered.
        forget: answered tasks that are gone, as they should be.
        look_again: after how many seconds to plan anew even if nothing changes; None: not before something
            does.
    """

    begin: tuple[OpenTask, ...] = ()
    abandon: tuple[TaskKey, ...] = ()
    forget: tuple[TaskKey, ...] = ()
    look_again: float | None = None


def plan_tasks(
    present: Mapping[TaskKey, OpenTask], taken: Mapping[TaskKey, TrackedTask], now: float
) -> TaskPlan:
    """The plan.

    1. A task that is being served and is gone is abandoned; one that was answered is forgotten.
    2. One that is being abandoned is left to it, also if it came back: it is begun when that is done.
    3. A task without an answer that nobody serves is begun; one that was answered, after `SETTLE_SECONDS`.

    Args:
        present: the tasks in the task sets.
        taken: what the agent is doing.
        now: seconds of the clock of `TrackedTask.since`.
    """
    begin, waits = [], []
    for key, task in present.items():
        if task.reported:
            continue
        mine = taken.get(key)
        if mine is None:
            begin.append(task)
        elif mine.progress is TaskProgress.REPORTED:
            left = mine.since + SETTLE_SECONDS - now
            if left > 0:
                waits.append(left)
            else:
                begin.append(task)
    gone = {key: mine.progress for key, mine in taken.items() if key not in present}
    return TaskPlan(
        begin=tuple(begin),
        abandon=tuple(key for key, progress in gone.items() if progress is TaskProgress.SERVING),
        forget=tuple(key for key, progress in gone.items() if progress is TaskProgress.REPORTED),
        look_again=min(waits, default=None),
    )
