"""The parts of an ElasticJob's status about restarts and hangs."""

from datetime import datetime

from pydantic import Field

from edl_workflows.core.kubernetes.objects import Status

RESTART_CAUSES = frozenset(
    {
        *("Killed", "KilledBySignal", "InitContainerFailed", "PodRefused", "OOMKilled", "FatalError"),
        *("HardwareError", "UnknownError", "CheckpointFailed", "NodeLost", "NoHeartBeat", "PendingTimeout"),
        *("PrepareTimeout", "EvaluationTimeout", "AbsentFromStep", "CheckFailed"),
        *("Recovery", "Resume", "Rollback", "Hang"),
    }
)
"""The causes that masters count: why nodes ended, and why all training processes were restarted."""


class HangStack(Status):
    """Where the main threads of some training processes stood.

    Attributes:
        nodes: whose processes; at most 50 are named.
        count: how many they are.
        stack: the frames, the innermost first; "" if the process wrote none.
        recordings: files of NCCL's flight recorder, as ``node:path``.
    """

    nodes: list[str]
    count: int = 1
    stack: str = ""
    recordings: list[str] = Field(default_factory=list)


class HangStatus(Status):
    """The newest hang.

    Attributes:
        time: when it was found.
        stacks: each stack once, the rarest first: whoever stands elsewhere than the others is more likely the
            cause.
    """

    time: datetime
    stacks: list[HangStack] = Field(default_factory=list)


class RestartRecord(Status):
    """One restart, or the end of a node that is not replaced.

    Attributes:
        subject: the node that ended, or the cluster version whose training processes began anew.
        cause: why, as the table in the reference has it, or Recovery, Resume, Rollback or Hang.
        message: more about it.
        replaced: whether anything was restarted: false for a node that has failed for good.
    """

    time: datetime
    subject: str
    cause: str
    message: str = ""
    replaced: bool = True

    def describe_cause(self) -> str:
        """The cause, with a note if the node was not replaced."""
        return self.cause if self.replaced else f"{self.cause} (not replaced)"


class RestartsStatus(Status):
    """What was restarted, and which nodes failed for good.

    Attributes:
        counts: by cause.
        recent: the newest 20, oldest first.
    """

    counts: dict[str, int] = Field(default_factory=dict)
    recent: list[RestartRecord] = Field(default_factory=list)
