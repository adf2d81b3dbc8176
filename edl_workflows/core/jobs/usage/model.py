"""The account of what a job's pods hold, as its status has it."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field, ValidationError

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Status

SECONDS_PER_HOUR = 3600.0
_HOUR_DIGITS = 4
_LEVELS = {"airflow": 1, "argo": 2}
"""How many parts of an owner name the pipeline, by engine."""
_OWNER_PARTS = 4
"""A pipeline's owner also names at least the run and the task."""
_MOST_CHARACTERS = 253
"""Of a name. Longer ones are none that an engine gives, and would make long labels of metrics."""


class UsagePart(StrEnum):
    """What resources were held for."""

    USEFUL = "useful"
    LOST = "lost"
    OVERHEAD = "overhead"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """A few words for people."""
        return _MEANINGS[self]


_MEANINGS = {
    UsagePart.USEFUL: "steps that last",
    UsagePart.LOST: "steps that were lost, hangs, failed pods, no master",
    UsagePart.OVERHEAD: "start, restore, save, other pauses",
    UsagePart.UNKNOWN: "not reported",
}


DIVIDED = (UsagePart.USEFUL, UsagePart.LOST, UsagePart.OVERHEAD)
"""The parts for which a job's master accounts."""


class SpentTime(NamedTuple):
    """Seconds of a job's time, as its master accounts for them; without the time for which the job was
    suspended, or in which no training pod ran."""

    useful: float = 0.0
    lost: float = 0.0
    overhead: float = 0.0

    def by_part(self) -> dict[UsagePart, float]:
        """The seconds of each part."""
        return dict(zip(DIVIDED, self, strict=True))


class HeldResource(StrEnum):
    """The resources that are counted."""

    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"

    @property
    def unit(self) -> str:
        """The unit of its amount that is held for an hour, for people."""
        return {"cpu": "core-hours", "memory": "GiB-hours", "gpu": "GPU-hours"}[self.value]


class UsageStatus(Status):
    """What the job's pods have held of their nodes by their requests, from their binding to their end.

    The parts are ``useful`` (steps that last), ``lost`` (steps that were lost, hangs, failed pods, time
    without a master), ``overhead`` (start, restore, save, other pauses) and ``unknown`` (not reported).

    Attributes:
        time: until when it is counted. What pods have held since then is seen from the pods.
        cpu: core-seconds by part.
        memory: gibibyte-seconds by part.
        gpu: GPU-seconds by part.
        seconds: the seconds of the job's time that are divided already, by part.
        queue_seconds: from the job's creation until its first training pod ran; absent before that.
    """

    time: datetime
    cpu: dict[str, float] = Field(default_factory=dict)
    memory: dict[str, float] = Field(default_factory=dict)
    gpu: dict[str, float] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    queue_seconds: float | None = None

    def held(self, resource: HeldResource) -> dict[UsagePart, float]:
        """Seconds times the amount of a resource, by part, without parts that are zero."""
        amounts: Mapping[str, float] = getattr(self, resource.value)
        return {part: amounts[part] for part in UsagePart if amounts.get(part)}

    def hours(self, resource: HeldResource, *parts: UsagePart) -> float:
        """Hours times the amount of a resource, of these parts; of all if none are given."""
        held = self.held(resource)
        return sum(held.get(part, 0.0) for part in parts or UsagePart) / SECONDS_PER_HOUR


def hours_by_part(usage: UsageStatus) -> dict[str, dict[str, float]]:
    """Hours times the amount of each resource that was held, by part, for programs."""
    hours = {
        str(resource): {
            str(part): round(seconds / SECONDS_PER_HOUR, _HOUR_DIGITS)
            for part, seconds in usage.held(resource).items()
        }
        for resource in HeldResource
    }
    return {resource: parts for resource, parts in hours.items() if parts}


def pipeline_of(annotations: Mapping[str, str]) -> str:
    """The pipeline that created a job, by the job's annotations: ``airflow/DAG`` or
    ``argo/NAMESPACE/WORKFLOW``; "" if none did."""
    engine, *parts = annotations.get(names.OWNER_ANNOTATION, "").split("/")
    engine = engine.partition("@")[0]
    levels = _LEVELS.get(engine, 0)
    if not levels or len(parts) < _OWNER_PARTS or max(map(len, parts[:levels])) > _MOST_CHARACTERS:
        return ""
    return "/".join((engine, *parts[:levels]))


def read_usage(job: Mapping[str, object]) -> UsageStatus | None:
    """The account in the status of a stored job; None without one that can be read."""
    status = job.get("status")
    stored = status.get("usage") if isinstance(status, Mapping) else None
    try:
        return UsageStatus.model_validate(stored) if stored else None
    except ValidationError:
        return None
