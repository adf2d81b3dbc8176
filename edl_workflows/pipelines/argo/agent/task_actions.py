"""Decides what the agent does next, from the task sets and the tasks that it already serves. This module is
pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from edl_workflows.pipelines.argo.agent.tasks import OpenTask, TaskKey

SETTLE_SECONDS = 5.0
"""The controller takes a result in two writes: it removes the result, then the task. Between the two writes
the task looks unanswered. If it still does after this time, the controller died between the writes, and the
task is answered again."""


class TaskProgress(Enum):
    """Progress of a task that the agent tracks."""

    SERVING = auto()
    ABANDONED = auto()
    """The task vanished, and its object is being cancelled."""
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
class TaskActions:
    """What the agent does next.

    Attributes:
        begin: tasks to serve.
        abandon: tasks to give up: they vanished unanswered.
        forget: answered tasks that the controller has removed.
        look_again: seconds after which to decide again even if nothing changes; None: only after a change.
    """

    begin: tuple[OpenTask, ...] = ()
    abandon: tuple[TaskKey, ...] = ()
    forget: tuple[TaskKey, ...] = ()
    look_again: float | None = None


def decide_actions(
    present: Mapping[TaskKey, OpenTask], taken: Mapping[TaskKey, TrackedTask], now: float
) -> TaskActions:
    """Decide for all tasks.

    1. A task that has been removed is abandoned if it is being served, and forgotten if it was answered.
    2. A task that is being abandoned is not touched, even if it comes back. It is begun again once the
       cancellation of its object is done.
    3. A task without a result is begun if it is not being served. If this agent has already answered it, it
       is begun only after `SETTLE_SECONDS`.

    Args:
        present: the tasks in the task sets.
        taken: the tasks that the agent tracks.
        now: the time on the clock of `TrackedTask.since`.
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
    return TaskActions(
        begin=tuple(begin),
        abandon=tuple(key for key, progress in gone.items() if progress is TaskProgress.SERVING),
        forget=tuple(key for key, progress in gone.items() if progress is TaskProgress.REPORTED),
        look_again=min(waits, default=None),
    )
