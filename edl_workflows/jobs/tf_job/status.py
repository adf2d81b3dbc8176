"""What a TFJob's status says: conditions by upstream's algebra, counters, times, and a phase as one word.
Pure.

Upstream's quirks that are not copied: Succeeded and Failed exclude each other; a condition that no longer
holds turns False and is not removed; every end has its ``completionTime``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.jobs import manifests, obstacles
from edl_workflows.jobs.actions import Event, merge_patch
from edl_workflows.jobs.objects import Condition
from edl_workflows.jobs.status import KindPhase, PhaseVerdict, phase_event, update_conditions
from edl_workflows.jobs.tf_job import pods
from edl_workflows.jobs.tf_job.facts import Facts, Place
from edl_workflows.jobs.tf_job.model import ReplicaStatus, Restart, TFJobPhase
from edl_workflows.jobs.tf_job.types import ReplicaType

WARNINGS = obstacles.REASONS | {"TFJobRestarting"}


def status_patch(
    facts: Facts, outcome: PhaseVerdict, restarts: Mapping[str, Restart]
) -> dict[str, Any] | None:
    """The merge patch that makes the status say `outcome`; None if it does already."""
    old = facts.job.status
    resumed = old.phase is TFJobPhase.SUSPENDED and outcome.phase is not TFJobPhase.SUSPENDED
    start = facts.now if old.start_time is None or resumed else old.start_time
    new = old.model_copy(
        update={
            "phase": outcome.phase,
            "reason": outcome.reason,
            "message": outcome.message,
            "observed_generation": facts.job.metadata.generation,
            "conditions": update_conditions(old, outcome, _created(facts), facts.now),
            "replica_statuses": _replica_statuses(facts, outcome.phase),
            "start_time": None if outcome.phase is TFJobPhase.SUSPENDED else start,
            "completion_time": (old.completion_time or facts.now) if outcome.phase.final else None,
            "restarts": dict(restarts),
        }
    )
    patch = merge_patch(old.stored(), new.to_dict())
    if patch is None:
        return None
    # Only beside another change: written alone it would be a reason to write it again.
    return patch | {"lastReconcileTime": facts.now.isoformat().replace("+00:00", "Z")}


def events(facts: Facts, outcome: PhaseVerdict) -> tuple[Event, ...]:
    """One Event for each change of phase or reason."""
    return phase_event(
        facts.job.status, outcome, WARNINGS, f"TFJob {facts.job.key} is {outcome.phase.lower()}."
    )


def _created(facts: Facts) -> Condition:
    message = f"TFJob {facts.job.key} is created."
    return Condition(type="Created", status="True", reason="TFJobCreated", message=message)


def _replica_statuses(facts: Facts, phase: KindPhase) -> dict[str, ReplicaStatus]:
    kinds = facts.job.spec.replicas
    return {
        str(kind): _count(facts, kind, [p for p in facts.places if p.kind is kind], phase) for kind in kinds
    }


def _count(facts: Facts, kind: ReplicaType, places: Sequence[Place], phase: KindPhase) -> ReplicaStatus:
    ready = [p for p in places if p.active and p.pod is not None and manifests.is_ready(p.pod)]
    completed = [place.index for place in places if place.completed]
    succeeded, failed = len(completed), sum(place.failed for place in places)
    if phase.final:
        # Pods that were cleaned up, perhaps by an operator before this one, have ended none the less.
        before = facts.job.status.replica_statuses.get(kind, ReplicaStatus())
        succeeded, failed = max(succeeded, before.succeeded), max(failed, before.failed)
    return ReplicaStatus(
        desired=len(places),
        active=0 if phase.final else sum(place.active for place in places),
        ready=0 if phase.final else len(ready),
        succeeded=succeeded,
        failed=failed,
        completed=completed,
        label_selector=pods.selector(facts.job, kind),
    )
