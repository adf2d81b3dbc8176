"""JobView: what a stage, a sensor, the CLI or Argo sees of a job of any kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from edl_workflows.core.jobs.elastic_job.faults import RestartRecord
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.status import Job, KindPhase
from edl_workflows.core.jobs.usage.model import UsageStatus


class JobPhase(StrEnum):
    """The phases that every kind maps its own to."""

    PENDING = "Pending"
    RUNNING = "Running"
    SCALING = "Scaling"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether the phase never changes again."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED)


@dataclass(frozen=True)
class Replicas:
    """Counts of one role."""

    desired: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Progress:
    """How far training is.

    Attributes:
        step: global step.
        records: records consumed.
        speed: steps per second.
        records_per_second: records consumed per second.
        records_total: records of all epochs; 0 if unknown or endless.
        metrics: the newest values that the program reported, by name.
    """

    step: int = 0
    records: int = 0
    speed: float = 0.0
    records_per_second: float = 0.0
    records_total: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The newest complete checkpoint."""

    uri: str
    step: int


@dataclass(frozen=True)
class FailedPod:
    """The pod with which a job failed, and the last lines of its output."""

    name: str
    last_lines: str


@dataclass(frozen=True)
class JobView:
    """One job as pipelines see it.

    Attributes:
        generation, observed_generation: a phase speaks of the spec only when the second has reached the
            first.
        reason, message: why the phase is what it is, in the controller's words.
        replicas: by role.
        warnings: what people should know although the job goes on.
        planned: what the job's own optimizer would change now; None where it has none, or has not said.
        plan: name of the ScalePlan that is being carried out; "" if there is none.
        restarts: the newest restarts of nodes and training processes, oldest first.
        failed_pod: the pod with which the job failed, if its status names it.
        result: what the training function returned, as JSON; "" if there is none.
        has_run: whether it has run at any time. Until then it waits for its pods, for quota or in a queue.
        usage: what its pods have held of their nodes; None if they have held nothing, or nobody has counted.
        conditions: type → status ("True", "False" or "Unknown").
        labels, annotations: the object's, for ownership checks.
    """

    kind: str
    name: str
    namespace: str
    uid: str
    generation: int
    observed_generation: int
    phase: JobPhase
    reason: str = ""
    message: str = ""
    replicas: dict[str, Replicas] = field(default_factory=dict)
    progress: Progress = Progress()
    checkpoint: Checkpoint | None = None
    warnings: tuple[str, ...] = ()
    planned: AutoscalingStatus | None = None
    plan: str = ""
    restarts: tuple[RestartRecord, ...] = ()
    failed_pod: FailedPod | None = None
    result: str = ""
    has_run: bool = False
    started: datetime | None = None
    finished: datetime | None = None
    usage: UsageStatus | None = None
    conditions: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def current(self) -> bool:
        """Whether the status speaks of the newest spec."""
        return self.observed_generation >= self.generation


def view_of(job: Job, phases: Mapping[KindPhase, JobPhase]) -> JobView:
    """What a job's status says, in the words of all kinds.

    Args:
        job: of any kind.
        phases: the kind's own phases that have no namesake among `JobPhase`. A job that no controller has
            seen is Pending.
    """
    status, metadata = job.status, job.metadata
    phase = JobPhase.PENDING
    if status.phase is not None:
        phase = phases[status.phase] if status.phase in phases else JobPhase(status.phase.condition)
    return JobView(
        kind=job.kind,
        name=metadata.name,
        namespace=metadata.namespace or "default",
        uid=metadata.uid,
        generation=metadata.generation,
        observed_generation=status.observed_generation,
        phase=phase,
        reason=status.reason,
        message=status.message,
        has_run=any(condition.type == JobPhase.RUNNING for condition in status.conditions),
        replicas={
            role: Replicas(counts.desired, counts.ready, counts.succeeded, counts.failed)
            for role, counts in status.replica_statuses.items()
        },
        usage=status.usage,
        started=status.start_time,
        finished=status.completion_time,
        conditions={condition.type: condition.status for condition in status.conditions},
        labels=metadata.labels,
        annotations=metadata.annotations,
    )
