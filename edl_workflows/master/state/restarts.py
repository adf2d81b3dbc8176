"""What was restarted in a job, and why: counters for metrics, the newest ones for people. Pure."""

from dataclasses import dataclass, field, replace

MAX_RECENT = 20
MAX_MESSAGE = 300
"""Characters of a restart's message: it stands in the job's status."""

HANG = "Hang"
"""Cause of a restart of all training processes since training stood still."""
RECOVERY = "Recovery"
"""Model and data went back to a checkpoint since what holds the model was lost."""
RESUME = "Resume"
"""The job was suspended, and goes on from its newest checkpoint; the nodes that the suspension took are not told."""
ROLLBACK = "Rollback"
"""The version that a plan made did not train."""


@dataclass(frozen=True)
class JobRestart:
    """One restart.

    Attributes:
        time: Unix seconds.
        subject: the node that ended, or ``version <number>`` where the training processes of all nodes began anew.
        cause: a node's exit reason, or one of this module's.
        message: more about it.
    """

    time: float
    subject: str
    cause: str
    message: str = ""


@dataclass(frozen=True)
class Restarts:
    """All restarts of a job.

    Attributes:
        counts: by cause.
        recent: the newest, oldest first.
    """

    counts: dict[str, int] = field(default_factory=dict)
    recent: tuple[JobRestart, ...] = ()


def record_restart(restarts: Restarts, restart: JobRestart) -> Restarts:
    """Adds one."""
    counts = {**restarts.counts, restart.cause: restarts.counts.get(restart.cause, 0) + 1}
    short = replace(restart, message=restart.message[:MAX_MESSAGE])
    return Restarts(counts, (*restarts.recent, short)[-MAX_RECENT:])
