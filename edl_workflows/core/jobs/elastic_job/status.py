"""Computes an ElasticJob's status: outcome, conditions, counters. Pure.

Quirks of upstream that are not copied: ``completionTime`` is set, the counters cover all roles, and the
count of replaced masters survives the controller.
"""

from collections.abc import Mapping
from typing import Any

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Event, Manifest, merge_patch
from edl_workflows.core.jobs.elastic_job import separate_copies
from edl_workflows.core.jobs.elastic_job.facts import ElasticJobFacts
from edl_workflows.core.jobs.elastic_job.model import ElasticJobPhase, ElasticJobStatus, ReplicaStatus
from edl_workflows.core.jobs.scale_plan import plan_order
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict, phase_event, update_conditions
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.core.kubernetes.objects import Condition, set_condition
from edl_workflows.core.write_budget import PROGRESS_SECONDS

OWNED = {
    "phase", "reason", "message", "observed_generation", "conditions", "replica_statuses", "start_time",
    "completion_time", "master_restarts", "scale_plan", "spec_replicas",
}  # fmt: skip
"""Fields of the status that the controller writes; the others are the master's."""

CREATED = Condition(type="Created", status="True", reason="JobCreated")

_STARTING = frozenset({"initial", "pending", "active", "ready"})
_START = (None, ElasticJobPhase.CREATED, ElasticJobPhase.PENDING)

COUNTERS_SECONDS = 2.0
"""How long a change of counters alone may be delayed to collect more of them: many of a job's pods start and
end at about the same time."""
STARTING_SECONDS = 10.0
"""The same while pods are still missing or pending, when it matters only that all pods run at last."""
PENDING_SECONDS = 30.0
"""The same if pods only changed from missing to pending: to whoever waits for them to run, there is no
difference.
"""


def spec_replicas(facts: ElasticJobFacts) -> dict[str, int]:
    """Replicas of each training role as the spec has them."""
    specs = facts.job.spec.replica_specs
    return {role: spec.replicas for role, spec in specs.items() if role != names.MASTER_TYPE}


def status_patch(
    facts: ElasticJobFacts, outcome: PhaseVerdict, seen: Mapping[str, int]
) -> dict[str, Any] | None:
    """The merge patch that makes the status say `outcome`; None if it does already.

    Args:
        facts: the job and its world.
        outcome: phase and reason.
        seen: replicas of the spec with which the next edit is compared.
    """
    old = facts.job.status
    plan = facts.plan_in_progress
    new = old.model_copy(
        update={
            "phase": outcome.phase,
            "reason": outcome.reason,
            "message": outcome.message,
            "observed_generation": facts.job.decided_generation,
            "conditions": _conditions(facts, outcome),
            "replica_statuses": replica_statuses(facts, outcome.phase),
            "start_time": old.start_time or facts.now,
            "completion_time": (old.completion_time or facts.now) if outcome.phase.final else None,
            "master_restarts": facts.restarts,
            "scale_plan": plan.metadata.name if plan and not outcome.phase.final else "",
            "spec_replicas": dict(seen),
        }
    )
    return merge_patch(old.stored(OWNED), new.to_dict(OWNED))


def status_delay(old: ElasticJobStatus, patch: Mapping[str, Any] | None) -> float:
    """Seconds for which a status patch may be held back, so that one write covers several changes.

    Args:
        old: the status as it is.
        patch: as `status_patch` gives it.
    """
    if patch is None or patch.keys() != {"replicaStatuses"}:
        return 0.0
    changed = patch["replicaStatuses"]
    if any(counts is None or role not in old.replica_statuses for role, counts in changed.items()):
        return 0.0
    fields = {field for counts in changed.values() for field in counts}
    if fields <= {"initial", "pending"}:
        return PENDING_SECONDS
    starting = any(_missing(counts, changed.get(role, {})) for role, counts in old.replica_statuses.items())
    return STARTING_SECONDS if starting and fields <= _STARTING else COUNTERS_SECONDS


def add_progress_period(
    facts: ElasticJobFacts, outcome: PhaseVerdict, patch: dict[str, Any] | None
) -> dict[str, Any] | None:
    """A status patch, with the period of the master's progress if that has changed. Where nothing else is to
    be written, `services.controller.progress_budget` writes it, slowly.

    Args:
        facts: the job and its world.
        outcome: phase and reason.
        patch: as `status_patch` gives it.
    """
    period = 0 if outcome.phase.final else facts.observed.progress_period
    if not patch or not period or (facts.job.status.progress_period_seconds or PROGRESS_SECONDS) == period:
        return patch
    return {**patch, "progressPeriodSeconds": period}


def _missing(counts: ReplicaStatus, changed: Mapping[str, int]) -> bool:
    """Whether a role lacks pods after a change of its counters."""
    return bool(changed.get("initial", counts.initial) or changed.get("pending", counts.pending))


def make_events(facts: ElasticJobFacts, outcome: PhaseVerdict) -> tuple[Event, ...]:
    """One Event for each change of phase or reason, except during a normal start, which the conditions
    show.
    """
    old = facts.job.status
    bad = outcome.phase is ElasticJobPhase.FAILED or outcome.reason in obstacles.REASONS
    if not bad and old.phase in _START and outcome.phase in (*_START, ElasticJobPhase.RUNNING):
        return ()
    return phase_event(old, outcome, obstacles.REASONS, f"the job is {outcome.phase}")


def _conditions(facts: ElasticJobFacts, outcome: PhaseVerdict) -> list[Condition]:
    """The conditions of the phases, and the one that says what the master has warned of: that each worker
    trains a copy of the model."""
    old = facts.job.status
    conditions = update_conditions(old, outcome, CREATED, facts.now, _other_true(outcome))
    shown = any(condition.type == separate_copies.CONDITION for condition in conditions)
    warning = next(filter(separate_copies.is_warning, old.warnings), "")
    if not warning and not shown:
        return conditions
    copies = Condition(
        type=separate_copies.CONDITION,
        status="True" if warning else "False",
        reason="NothingCombines" if warning else "OneModel",
        message=warning,
    )
    return set_condition(conditions, copies, facts.now)


def _other_true(outcome: PhaseVerdict) -> tuple[str, ...]:
    """Running stays True while a job is scaled."""
    return (ElasticJobPhase.RUNNING.condition,) if outcome.phase is ElasticJobPhase.SCALING else ()


def replica_statuses(facts: ElasticJobFacts, phase: KindPhase) -> dict[str, ReplicaStatus]:
    """Counters of each role of the spec, and of each role that has pods."""
    pods: dict[str, list[Manifest]] = {role: [] for role in facts.job.spec.replica_specs}
    pods.setdefault(names.MASTER_TYPE, [])
    for pod in (*facts.nodes, *facts.masters):
        pods.setdefault(manifests.get_label(pod, names.REPLICA_TYPE_LABEL), []).append(pod)
    desired = _desired(facts)
    return {role: _count(facts, role, desired.get(role, 0), of_role, phase) for role, of_role in pods.items()}


def _desired(facts: ElasticJobFacts) -> Mapping[str, int]:
    """How many nodes of each role are wanted: at first as in the spec, then as in the last manual plan that
    succeeded.
    """
    recorded = {role: counts.desired for role, counts in facts.job.status.replica_statuses.items()}
    return plan_order.count_desired_nodes(
        facts.plans, {names.MASTER_TYPE: 1} | spec_replicas(facts) | recorded
    )


def _count(
    facts: ElasticJobFacts, role: str, desired: int, pods: list[Manifest], phase: KindPhase
) -> ReplicaStatus:
    """A running or pending pod that is being deleted is not counted."""
    phases = [
        pod_state.pod_phase(p) for p in pods if pod_state.has_ended(p) or not manifests.is_terminating(p)
    ]
    pending, active = phases.count("Pending"), phases.count("Running")
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    missing = max(0, desired - pending - active - succeeded)
    return ReplicaStatus(
        desired=desired,
        initial=0 if phase.final else missing,
        pending=pending,
        active=active,
        ready=sum(pod_state.is_ready(p) for p in pods if not manifests.is_terminating(p)),
        succeeded=succeeded,
        failed=failed,
        label_selector=f"{names.JOB_LABEL}={facts.job.metadata.name},{names.REPLICA_TYPE_LABEL}={role}",
    )
