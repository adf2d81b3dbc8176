"""Computes a Kubeflow job's status: conditions by upstream's rules, counters, times, and a phase as one word.
Pure.

Differences from upstream: Succeeded and Failed exclude each other; a condition that no longer holds turns
False instead of being removed; every ended job has a ``completionTime``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.core.jobs import obstacles
from edl_workflows.core.jobs.actions import Event, merge_patch
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.facts import KubeflowFacts, KubeflowReplicaState
from edl_workflows.core.jobs.kubeflow.model import (
    KubeflowPhase,
    KubeflowReplicaStatus,
    ReplicaRestarts,
    ReplicaType,
)
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict, phase_event, update_conditions
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.kubernetes.objects import Condition


def status_patch(
    facts: KubeflowFacts, verdict: PhaseVerdict, restarts: Mapping[str, ReplicaRestarts]
) -> dict[str, Any] | None:
    """The merge patch that makes the status say `verdict`; None if it already does."""
    job, old = facts.job, facts.job.status
    resumed = old.phase is KubeflowPhase.SUSPENDED and verdict.phase is not KubeflowPhase.SUSPENDED
    start = facts.now if old.start_time is None or resumed else old.start_time
    created = Condition(
        type="Created",
        status="True",
        reason=f"{job.kind}Created",
        message=f"{job.kind} {job.key} is created.",
    )
    new = old.model_copy(
        update={
            "phase": verdict.phase,
            "reason": verdict.reason,
            "message": verdict.message,
            "observed_generation": job.decided_generation,
            "conditions": update_conditions(old, verdict, created, facts.now),
            "replica_statuses": {
                str(kind): _count(facts, kind, [r for r in facts.replicas if r.kind is kind], verdict.phase)
                for kind in job.spec.replicas
            },
            "start_time": None if verdict.phase is KubeflowPhase.SUSPENDED else start,
            "completion_time": (old.completion_time or facts.now) if verdict.phase.final else None,
            "restarts": dict(restarts),
        }
    )
    patch = merge_patch(old.stored(), new.to_dict())
    if patch is None:
        return None
    # Written only together with another change: the time alone would cause another write each time.
    return patch | {"lastReconcileTime": facts.now.isoformat().replace("+00:00", "Z")}


def make_events(facts: KubeflowFacts, verdict: PhaseVerdict) -> tuple[Event, ...]:
    """One Event for each change of phase or reason."""
    job = facts.job
    warnings = obstacles.REASONS | {f"{job.kind}Restarting"}
    return phase_event(job.status, verdict, warnings, f"{job.kind} {job.key} is {verdict.phase.lower()}.")


def _count(
    facts: KubeflowFacts, kind: ReplicaType, replicas: Sequence[KubeflowReplicaState], phase: KindPhase
) -> KubeflowReplicaStatus:
    ready = [r for r in replicas if r.runs and r.pod is not None and pod_state.is_ready(r.pod)]
    completed = [replica.index for replica in replicas if replica.completed]
    succeeded, failed = len(completed), sum(replica.failed for replica in replicas)
    if phase.final:
        # Pods that were deleted after the job's end, perhaps by another operator, still count.
        before = facts.job.status.replica_statuses.get(kind, KubeflowReplicaStatus())
        succeeded, failed = max(succeeded, before.succeeded), max(failed, before.failed)
    return KubeflowReplicaStatus(
        desired=len(replicas),
        active=0 if phase.final else sum(replica.runs for replica in replicas),
        ready=0 if phase.final else len(ready),
        succeeded=succeeded,
        failed=failed,
        completed=completed,
        label_selector=pods.pod_selector(facts.job, kind),
    )
