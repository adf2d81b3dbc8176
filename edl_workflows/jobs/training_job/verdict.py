"""How a TrainingJob has ended. Pure.

Upstream's rules, with what it leaves open: masters and pservers have a budget of failures, and readiness a
time-out.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from edl_workflows.jobs import manifests, obstacles
from edl_workflows.jobs.status import PhaseVerdict
from edl_workflows.jobs.training_job import failures
from edl_workflows.jobs.training_job.facts import Facts, Place
from edl_workflows.jobs.training_job.model import TrainingJobPhase
from edl_workflows.jobs.training_job.types import Role


def verdict(facts: Facts) -> PhaseVerdict | None:
    """How the job has ended; None while it has not."""
    if _succeeded(facts):
        which = "a trainer has" if facts.job.spec.fault_tolerant else "all trainers have"
        return PhaseVerdict(
            TrainingJobPhase.SUCCEEDED, "JobSucceeded", f"{which} succeeded, and none runs any more"
        )
    if not facts.job.spec.fault_tolerant and any(place.role is Role.TRAINER for place in facts.failed):
        message = f"at least one trainer failed, and the job is not fault_tolerant: {failures.described(facts, servers=False)}"
        return PhaseVerdict(TrainingJobPhase.FAILED, "TrainerFailed", message)
    if outcome := failures.too_many(facts):
        return outcome
    if facts.job.spec.suspend:
        return None
    overdue = [place for place, left in _waiting(facts) if left <= 0]
    return _not_ready(facts, overdue) if overdue else None


def seconds_left(facts: Facts) -> float | None:
    """Seconds until the job fails of a role that is not ready; None if nothing has to become ready."""
    return min((left for _, left in _waiting(facts)), default=None)


def _succeeded(facts: Facts) -> bool:
    """All trainers have, or of a fault-tolerant job one, and no other is at work any more."""
    trainers = facts.trainers
    if not facts.job.spec.fault_tolerant:
        return all(place.completed for place in trainers)
    return facts.winding_down and not any(place.active for place in trainers)


def _waiting(facts: Facts) -> Iterator[tuple[Place, float]]:
    """The places that the job waits for, and for how many seconds more."""
    limit, role = facts.job.spec.ready_timeout_seconds, facts.waiting_role
    if not limit or role is None or (role is Role.TRAINER and not facts.starting):
        return
    for place in facts.of_role(role):
        since = _since(facts, place)
        if not place.up and since is not None:
            yield place, (since + timedelta(seconds=limit) - facts.now).total_seconds()


def _since(facts: Facts, place: Place) -> datetime | None:
    """When a pod began to be waited for; None for one that is about to be made or replaced."""
    pod = place.pod
    if pod is None:
        # What can't be made is waited for from the start.
        refused = facts.job.status.reason in obstacles.REASONS
        return facts.job.status.start_time if refused and facts.starting else None
    if place.failed:
        return None
    if manifests.is_terminating(pod):  # on a lost machine that may last for ever
        return manifests.parse_time(pod["metadata"]["deletionTimestamp"])
    times = [manifests.parse_time(pod["metadata"].get("creationTimestamp"))]
    times += [
        manifests.parse_time(c.get("lastTransitionTime"))
        for c in (pod.get("status") or {}).get("conditions") or ()
        if c.get("type") == "Ready"
    ]
    return max((time for time in times if time is not None), default=None)


def _not_ready(facts: Facts, overdue: list[Place]) -> PhaseVerdict:
    role, limit = overdue[0].role, facts.job.spec.ready_timeout_seconds
    places = facts.of_role(role)
    up = sum(place.up for place in places)
    refused = facts.job.status.message if facts.job.status.reason in obstacles.REASONS else ""
    first = overdue[0]
    gone = first.pod is not None and manifests.is_terminating(first.pod)
    state = f"{first.name} {'is being deleted, but does not go' if gone else 'is not ready'}"
    why = refused or obstacles.why_pods_wait(p.pod for p in overdue if p.pod is not None) or state
    message = f"{role}: {up} of {len(places)} ready after {limit} s of readyTimeoutSeconds: {why}"
    return PhaseVerdict(TrainingJobPhase.FAILED, f"{role.capitalize()}NotReady", message)
