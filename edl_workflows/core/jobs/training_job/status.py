"""Computes a TrainingJob's status: conditions, counters, records of scaling and of failures. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.core.jobs import obstacles
from edl_workflows.core.jobs.actions import Event, merge_patch
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict, phase_event, update_conditions
from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.facts import TrainingJobFacts, TrainingReplicaState
from edl_workflows.core.jobs.training_job.model import (
    ScaleRecord,
    TrainingJobPhase,
    TrainingJobStatus,
    TrainingReplicaStatus,
)
from edl_workflows.core.jobs.training_job.types import TrainingRole
from edl_workflows.core.jobs.training_job.verdict import remembered_failures
from edl_workflows.core.kubernetes.objects import Condition

MAX_RECORDS = 10
COUNTERS_SECONDS = 2.0
"""How long a change of counters alone may be delayed to collect more of them: many of a job's pods start and
end at about the same time."""
STARTING_SECONDS = 10.0
"""The same while a job starts, when it matters only that all of it runs at last."""
TOO_LATE = "TooLateToScale"
"""Reason of a job that continues with the trainers that it has, although another number is wanted."""
_WARNINGS = obstacles.REASONS | {TOO_LATE}
_START = (None, TrainingJobPhase.CREATING)
_DELAYABLE_FIELDS = {"replicaStatuses", "message", "conditions"}


def status_patch(facts: TrainingJobFacts, outcome: PhaseVerdict) -> dict[str, Any] | None:
    """The merge patch that makes the status say `outcome`; None if it does already."""
    old = facts.job.status
    resumed = old.phase is TrainingJobPhase.SUSPENDED and outcome.phase is not TrainingJobPhase.SUSPENDED
    start = facts.now if old.start_time is None or resumed else old.start_time
    new = old.model_copy(
        update={
            "phase": outcome.phase,
            "reason": outcome.reason,
            "message": outcome.message,
            "observed_generation": facts.job.decided_generation,
            "conditions": update_conditions(old, outcome, _created(facts), facts.now, _other_true(outcome)),
            "replica_statuses": _replica_statuses(facts, outcome.phase),
            "start_time": None if outcome.phase is TrainingJobPhase.SUSPENDED else start,
            "completion_time": (old.completion_time or facts.now) if outcome.phase.final else None,
            "parallelism": old.parallelism if outcome.phase.final else facts.job.spec.trainer.desired,
            "scale_records": _scale_records(facts, outcome),
            "failures": old.failures
            if outcome.phase is old.phase and outcome.phase.final
            else remembered_failures(facts),
        }
    )
    return merge_patch(old.stored(), new.to_dict())


def status_delay(old: TrainingJobStatus, patch: Mapping[str, Any] | None) -> float:
    """Seconds for which a status patch may be held back, so that one write covers several changes."""
    if patch is None or old.phase is None or not patch.keys() <= _DELAYABLE_FIELDS:
        return 0.0
    counted = (patch.get("replicaStatuses") or {}).values()
    if any("completed" in (counts or {}) for counts in counted):
        return 0.0
    return STARTING_SECONDS if old.phase in _START else COUNTERS_SECONDS


def make_events(facts: TrainingJobFacts, outcome: PhaseVerdict) -> tuple[Event, ...]:
    """One Event for each change of phase or reason, except for the steps of an ordinary start, which the
    conditions show."""
    ordinary = outcome.reason not in _WARNINGS and outcome.phase in (
        TrainingJobPhase.CREATING,
        TrainingJobPhase.RUNNING,
    )
    if ordinary and facts.job.status.phase in _START:
        return ()
    default = f"TrainingJob {facts.job.key} is {outcome.phase}."
    return phase_event(facts.job.status, outcome, _WARNINGS, default)


def is_scaled(facts: TrainingJobFacts) -> bool:
    """Whether the wanted number of trainers has changed while there is still data for them."""
    before = facts.job.status.parallelism
    return before not in (0, facts.job.spec.trainer.desired) and not facts.winding_down


def _created(facts: TrainingJobFacts) -> Condition:
    message = f"TrainingJob {facts.job.key} is created."
    return Condition(type="Created", status="True", reason="JobCreated", message=message)


def _other_true(outcome: PhaseVerdict) -> tuple[str, ...]:
    """Running stays True while a job is scaled."""
    return (TrainingJobPhase.RUNNING.condition,) if outcome.phase is TrainingJobPhase.SCALING else ()


def _scale_records(facts: TrainingJobFacts, outcome: PhaseVerdict) -> list[ScaleRecord]:
    records = list(facts.job.status.scale_records)
    pending = bool(records) and records[-1].status == "Unknown"
    if is_scaled(facts) and outcome.phase is TrainingJobPhase.SCALING:
        if pending:
            records[-1] = _closed(records[-1], "False", "the number of trainers was changed again")
        before, desired = facts.job.status.parallelism, facts.job.spec.trainer.desired
        records.append(
            ScaleRecord(
                scale_timestamp=facts.now,
                additional=desired - before,
                reason=f"from {before} to {desired} trainers",
            )
        )
    elif pending and outcome.phase is TrainingJobPhase.RUNNING:
        records[-1] = _closed(records[-1], "True", "")
    elif pending and outcome.phase in (
        TrainingJobPhase.SUSPENDED,
        TrainingJobPhase.SUCCEEDED,
        TrainingJobPhase.FAILED,
    ):
        records[-1] = _closed(records[-1], "False", f"the job is {outcome.phase}")
    return records[-MAX_RECORDS:]


def _closed(record: ScaleRecord, status: str, reason: str) -> ScaleRecord:
    return record.model_copy(
        update={"status": status, "reason": "; ".join(filter(None, (record.reason, reason)))}
    )


def _replica_statuses(facts: TrainingJobFacts, phase: KindPhase) -> dict[str, TrainingReplicaStatus]:
    return {str(role): _count(facts, role, facts.of_role(role), phase) for role in facts.job.spec.counts}


def _count(
    facts: TrainingJobFacts, role: TrainingRole, replicas: Sequence[TrainingReplicaState], phase: KindPhase
) -> TrainingReplicaStatus:
    completed = [replica.index for replica in replicas if replica.completed]
    failed = sum(replica.failed and not replica.completed for replica in replicas)
    before = facts.job.status.replica_statuses.get(role, TrainingReplicaStatus())
    if phase.final:  # failed pods still count after they are cleaned up
        failed = max(failed, before.failed)
    counts = TrainingReplicaStatus(
        desired=len(replicas),
        active=0 if phase.final else sum(replica.active for replica in replicas),
        ready=0 if phase.final else sum(replica.ready for replica in replicas),
        succeeded=len(completed),
        failed=failed,
        completed=completed,
        label_selector=pods.pod_selector(facts.job, role),
    )
    return counts.model_copy(update={"state": _state(replicas, counts, phase)})


def _state(replicas: Sequence[TrainingReplicaState], counts: TrainingReplicaStatus, phase: KindPhase) -> str:
    if counts.failed:
        return "failed"
    if counts.succeeded == len(replicas):
        return "succeeded"
    if phase.final or all(replica.pod is None for replica in replicas):
        return ""
    return "running" if all(replica.up for replica in replicas) else "starting"
