"""How an ElasticJob spends its time: the causes, and the seconds of each in the job's status."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from edl_workflows.core.jobs.elastic_job.model import GoodputStatus
from edl_workflows.core.jobs.usage.model import DIVIDED, SpentTime, UsagePart


class TimeCause(StrEnum):
    """Each second of a job's life has one cause. The names are those in the status and in the metrics."""

    TRAINING = "training"
    QUEUED = "queued"
    IMPORT = "import"
    RENDEZVOUS = "rendezvous"
    RESTORE = "restore"
    SAVE = "save"
    REDONE = "redone"
    HANG = "hang"
    MASTER_DOWN = "masterDown"
    SUSPENDED = "suspended"
    OTHER = "other"

    @property
    def meaning(self) -> str:
        """A few words for people."""
        return _MEANINGS[self]


_MEANINGS = {
    TimeCause.TRAINING: "steps that last",
    TimeCause.QUEUED: "no training pod runs",
    TimeCause.IMPORT: "training processes start",
    TimeCause.RENDEZVOUS: "waiting for other members",
    TimeCause.RESTORE: "the model is restored",
    TimeCause.SAVE: "stopped for a checkpoint",
    TimeCause.REDONE: "steps that were lost",
    TimeCause.HANG: "training stood still",
    TimeCause.MASTER_DOWN: "no master ran",
    TimeCause.SUSPENDED: "the job was suspended",
    TimeCause.OTHER: "pauses, end of the program",
}


_PARTS = {
    TimeCause.TRAINING: UsagePart.USEFUL,
    TimeCause.REDONE: UsagePart.LOST,
    TimeCause.HANG: UsagePart.LOST,
    TimeCause.MASTER_DOWN: UsagePart.LOST,
    TimeCause.IMPORT: UsagePart.OVERHEAD,
    TimeCause.RENDEZVOUS: UsagePart.OVERHEAD,
    TimeCause.RESTORE: UsagePart.OVERHEAD,
    TimeCause.SAVE: UsagePart.OVERHEAD,
    TimeCause.OTHER: UsagePart.OVERHEAD,
}
"""What a job holds its resources for in the time of each cause. In the time of the other causes it holds
none, or hardly any."""
_PLACES = {str(cause): DIVIDED.index(part) for cause, part in _PARTS.items()}
"""The causes' places in a `SpentTime`."""

SPENT = "spent"
"""Field of a kept job's status: the `SpentTime` of its ``goodput``, which is not kept."""


def read_spent(job: Mapping[str, Any]) -> SpentTime | None:
    """How a job's time was spent, either whole or as the controller keeps it; None before its master has
    accounted for any."""
    status = job.get("status") or {}
    kept: SpentTime | None = status.get(SPENT)
    return kept if kept is not None else sum_spent(status.get("goodput"))


def sum_spent(goodput: Any) -> SpentTime | None:
    """The sums of a stored account of time, which a job's master may have written in any form; None if it has
    no seconds."""
    seconds = goodput.get("seconds") if isinstance(goodput, dict) else None
    if not seconds or not isinstance(seconds, dict):
        return None
    sums = [0.0, 0.0, 0.0]
    for cause in seconds:  # without calls: the controller does this for each event about a job
        if cause in _PLACES:
            sums[_PLACES[cause]] += seconds[cause] or 0
    return SpentTime(*sums)


def whole_seconds(parts: Mapping[TimeCause, float]) -> dict[str, int]:
    """The parts in whole seconds, without those that are zero. They sum to the rounded sum of the parts."""
    rounded = {cause: int(parts.get(cause, 0.0)) for cause in TimeCause}
    missing = round(sum(parts.values())) - sum(rounded.values())
    by_rest = sorted(TimeCause, key=lambda cause: rounded[cause] - parts.get(cause, 0.0))
    for cause in by_rest[:missing]:
        rounded[cause] += 1
    return {str(cause): seconds for cause, seconds in rounded.items() if seconds}


def time_by_cause(goodput: GoodputStatus, until: datetime) -> dict[TimeCause, int]:
    """The seconds of each cause, in the order of `TimeCause`; {} if they are not known.

    The status is written only when the job changes. A job that does not train has since spent its time on the
    cause that the status names, so this time is added.

    Args:
        goodput: from the job's status.
        until: the job's end; now while it has not ended.
    """
    seconds = dict(goodput.seconds)
    if goodput.time is not None and goodput.cause not in ("", TimeCause.TRAINING):
        since = int((until - goodput.time).total_seconds())
        seconds[goodput.cause] = seconds.get(goodput.cause, 0) + max(0, since)
    return {cause: cause_seconds for cause in TimeCause if (cause_seconds := seconds.get(cause, 0))}
