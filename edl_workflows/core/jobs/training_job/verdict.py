"""How a TrainingJob has ended. Pure.

Upstream's rules, and two that it lacks: a failure budget for masters and pservers, and a time-out for
readiness.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.status import PhaseVerdict
from edl_workflows.core.jobs.training_job.facts import TrainingJobFacts, TrainingReplicaState
from edl_workflows.core.jobs.training_job.model import Failure, TrainingJobPhase
from edl_workflows.core.jobs.training_job.types import TrainingRole
from edl_workflows.core.protocol.reported_text import inert_text


def find_end(facts: TrainingJobFacts) -> PhaseVerdict | None:
    """How the job has ended; None while it has not."""
    if _succeeded(facts):
        which = "a trainer has" if facts.job.spec.fault_tolerant else "all trainers have"
        return PhaseVerdict(
            TrainingJobPhase.SUCCEEDED, "JobSucceeded", f"{which} succeeded, and none runs any more"
        )
    if not facts.job.spec.fault_tolerant and any(
        replica.role is TrainingRole.TRAINER for replica in facts.failed
    ):
        failed = describe_failed(facts, servers=False)
        message = f"at least one trainer failed, and the job is not fault_tolerant: {failed}"
        return PhaseVerdict(TrainingJobPhase.FAILED, "TrainerFailed", message)
    if refused := [r for r in facts.failed if r.pod is not None and manifests.refused_by_node(r.pod)]:
        message = ", ".join(f"{replica.name} ({describe_end(replica)})" for replica in refused[:5])
        return PhaseVerdict(TrainingJobPhase.FAILED, "PodRefused", f"no node can run {message}")
    if outcome := check_budgets(facts):
        return outcome
    if facts.job.spec.suspend:
        return None
    overdue = [replica for replica, left in _waiting(facts) if left <= 0]
    return _not_ready(facts, overdue) if overdue else None


def seconds_left(facts: TrainingJobFacts) -> float | None:
    """Seconds until the job fails because a role is not ready; None if the job waits for no role."""
    return min((left for _, left in _waiting(facts)), default=None)


def _succeeded(facts: TrainingJobFacts) -> bool:
    """Whether all trainers have succeeded; in a fault-tolerant job, one has and no other is active."""
    trainers = facts.trainers
    if not facts.job.spec.fault_tolerant:
        return all(replica.completed for replica in trainers)
    return facts.winding_down and not any(replica.active for replica in trainers)


def _waiting(facts: TrainingJobFacts) -> Iterator[tuple[TrainingReplicaState, float]]:
    """The replicas that the job waits for, each with the seconds that are left for it."""
    limit, role = facts.job.spec.ready_timeout_seconds, facts.waiting_role
    if not limit or role is None or (role is TrainingRole.TRAINER and not facts.starting):
        return
    for replica in facts.of_role(role):
        since = _since(facts, replica)
        if not replica.up and since is not None:
            yield replica, (since + timedelta(seconds=limit) - facts.now).total_seconds()


def _since(facts: TrainingJobFacts, replica: TrainingReplicaState) -> datetime | None:
    """Since when the job waits for a replica's pod; None if the pod is about to be made or replaced."""
    pod = replica.pod
    if pod is None:
        # For a pod that can't be made, the wait began with the job.
        refused = facts.job.status.reason in obstacles.REASONS - {obstacles.LOST, obstacles.REPLACED}
        return facts.job.status.start_time if refused and facts.starting else None
    if replica.failed:
        return None
    if manifests.is_terminating(pod):  # on a lost machine this may never end
        return manifests.parse_time(pod["metadata"]["deletionTimestamp"])
    times = [manifests.parse_time(pod["metadata"].get("creationTimestamp"))]
    times += [
        manifests.parse_time(c.get("lastTransitionTime"))
        for c in (pod.get("status") or {}).get("conditions") or ()
        if c.get("type") == "Ready"
    ]
    return max((time for time in times if time is not None), default=None)


def _not_ready(facts: TrainingJobFacts, overdue: list[TrainingReplicaState]) -> PhaseVerdict:
    role, limit = overdue[0].role, facts.job.spec.ready_timeout_seconds
    replicas = facts.of_role(role)
    up = sum(replica.up for replica in replicas)
    refused = facts.job.status.message if facts.job.status.reason in obstacles.REASONS else ""
    first = overdue[0]
    gone = first.pod is not None and manifests.is_terminating(first.pod)
    state = f"{first.name} {'is being deleted, but does not go' if gone else 'is not ready'}"
    cause = refused or obstacles.why_pods_wait(p.pod for p in overdue if p.pod is not None) or state
    message = f"{role}: {up} of {len(replicas)} ready after {limit} s of readyTimeoutSeconds: {cause}"
    return PhaseVerdict(TrainingJobPhase.FAILED, f"{role.capitalize()}NotReady", message)


MAX_REMEMBERED = 1000
"""Most failures that a status keeps; no budget is larger."""

_EXITS = {
    1: "general error",
    134: "aborted",
    136: "floating point exception",
    137: "killed, perhaps out of memory",
    139: "segmentation fault",
    143: "told to end",
}
"""Upstream's entry script explains these; 137 and 143 are ours."""
_MAX_QUOTED = 300
"""Characters of a container's last words in a message."""


def is_replaced(facts: TrainingJobFacts, replica: TrainingReplicaState) -> bool:
    """Whether a failed pod of this replica is replaced: servers always, trainers of a fault-tolerant job that
    still trains.
    """
    return replica.role.serves or (facts.job.spec.fault_tolerant and not facts.winding_down)


def new_failures(facts: TrainingJobFacts) -> list[Failure]:
    """Failures that are not in the status yet."""
    return [
        Failure(
            role=replica.role,
            index=replica.index,
            uid=replica.uid,
            exit_code=replica.exit_code,
            disrupted=replica.pod is not None
            and manifests.was_disrupted(replica.pod)
            and not manifests.refused_by_node(replica.pod),
            time=facts.now,
        )
        for replica in facts.failed
        if not replica.recorded and is_replaced(facts, replica)
    ]


def remembered_failures(facts: TrainingJobFacts) -> list[Failure]:
    """The failures for the status, including new ones. A pod is deleted only after its failure is in the
    status, so that each counts once.

    Failures older than the window are dropped only when a new one is added, so that the mere passing of time
    does not change the status.
    """
    recorded = list(facts.job.status.failures)
    fresh = new_failures(facts)
    if not fresh:
        return recorded
    present = {str(pod["metadata"].get("uid", "")) for pod in facts.pods}
    return [f for f in (*recorded, *fresh) if _recent(facts, f) or f.uid in present][-MAX_REMEMBERED:]


def check_budgets(facts: TrainingJobFacts) -> PhaseVerdict | None:
    """The verdict if new failures exceed a budget; None otherwise.

    The budget for trainers is a share of the trainers wanted now. Failures of trainers that are no longer
    wanted do not count, so that scaling a job down never makes it fail.
    """
    fresh = {failure.role.serves for failure in new_failures(facts) if not failure.disrupted}
    recent_failures = [f for f in remembered_failures(facts) if not f.disrupted and _recent(facts, f)]
    spec = facts.job.spec
    if True in fresh:
        servers = [f for f in recent_failures if f.role.serves]
        if len(servers) > spec.backoff_limit:
            message = (
                f"masters and pservers failed {len(servers)} times, and backoffLimit is {spec.backoff_limit}"
            )
            return PhaseVerdict(
                TrainingJobPhase.FAILED,
                "BackoffLimitExceeded",
                f"{message}: {describe_failed(facts, servers=True)}",
            )
    if False in fresh:
        desired = spec.trainer.desired
        budget = min(desired * spec.failure_percent // 100, MAX_REMEMBERED - 1)
        trainers = [f for f in recent_failures if f.role is TrainingRole.TRAINER and f.index < desired]
        if len(trainers) > budget:
            message = (
                f"trainers failed {len(trainers)} times in {spec.failure_window_seconds} s; {budget} are "
                "allowed, "
                f"{spec.failure_percent} % of {desired}"
            )
            return PhaseVerdict(
                TrainingJobPhase.FAILED,
                "TooManyTrainersFailed",
                f"{message}: {describe_failed(facts, servers=False)}",
            )
    return None


def describe_failed(facts: TrainingJobFacts, *, servers: bool) -> str:
    """Which pods have failed and how, with their last words."""
    failed = [replica for replica in facts.failed if replica.role.serves is servers]
    return ", ".join(f"{replica.name} ({describe_end(replica)})" for replica in failed[:5])


def describe_end(replica: TrainingReplicaState) -> str:
    """How a pod ended."""
    reason = ((replica.pod or {}).get("status") or {}).get("reason")
    if replica.exit_code is None:
        last_words = manifests.last_words(replica.pod or {"spec": {}})
        if replica.pod is not None and manifests.failed_init_container(replica.pod) and not reason:
            return last_words.removeprefix(": ")
        return f"{reason or 'lost'}, without an exit code{last_words}"
    text = f"{reason}, exit code {replica.exit_code}" if reason else f"exit code {replica.exit_code}"
    if replica.exit_code in _EXITS:
        text += f", {_EXITS[replica.exit_code]}"
    message = str(replica.end.get("message") or "").strip()
    return f"{text}: {inert_text(message[-_MAX_QUOTED:])[-_MAX_QUOTED:]}" if message else text


def _recent(facts: TrainingJobFacts, failure: Failure) -> bool:
    return failure.time > facts.now - timedelta(seconds=facts.job.spec.failure_window_seconds)
