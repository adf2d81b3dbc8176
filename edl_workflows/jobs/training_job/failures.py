"""Failures of pods: which are remembered, and when there were too many. Pure.

Upstream compares failed trainers with the number that the job began with, and restarts pservers and masters
without end.
"""

from datetime import timedelta

from edl_workflows.jobs import manifests
from edl_workflows.jobs.reported_text import inert_text
from edl_workflows.jobs.status import PhaseVerdict
from edl_workflows.jobs.training_job.facts import Facts, Place
from edl_workflows.jobs.training_job.model import Failure, TrainingJobPhase
from edl_workflows.jobs.training_job.types import Role

MAX_REMEMBERED = 1000
"""A status holds no more; no budget is larger."""

_EXITS = {
    1: "general error",
    134: "aborted",
    136: "floating point exception",
    137: "killed, perhaps out of memory",
    139: "segmentation fault",
    143: "told to end",
}
"""Upstream's entry script explains these; 137 and 143 are ours."""
_SAID = 300
"""Characters of a container's last words in a message."""


def replaced(facts: Facts, place: Place) -> bool:
    """Whether a failed pod of this place is replaced: servers always, trainers of a fault-tolerant job that
    still trains.
    """
    return place.role.serves or (facts.job.spec.fault_tolerant and not facts.winding_down)


def new(facts: Facts) -> list[Failure]:
    """Failures that the status does not tell yet."""
    return [
        Failure(
            role=place.role,
            index=place.index,
            uid=place.uid,
            exit_code=place.exit_code,
            disrupted=place.pod is not None and manifests.was_disrupted(place.pod),
            time=facts.now,
        )
        for place in facts.failed
        if not place.recorded and replaced(facts, place)
    ]


def remembered(facts: Facts) -> list[Failure]:
    """The failures to tell, with the new ones. A pod is deleted only once it stands here: each counts once.

    What is older than the window is forgotten when a new one comes, and not before: time alone changes no
        status.
    """
    known = list(facts.job.status.failures)
    fresh = new(facts)
    if not fresh:
        return known
    present = {str(pod["metadata"].get("uid", "")) for pod in facts.pods}
    return [f for f in (*known, *fresh) if _recent(facts, f) or f.uid in present][-MAX_REMEMBERED:]


def too_many(facts: Facts) -> PhaseVerdict | None:
    """How the job fails of a new failure; None if it survives it.

    Trainers: more failures than the share of the trainers that are wanted now; those of trainers that are
        wanted no more
    are forgiven, so that a job never fails of being scaled.
    """
    fresh = {failure.role.serves for failure in new(facts) if not failure.disrupted}
    found = [f for f in remembered(facts) if not f.disrupted and _recent(facts, f)]
    spec = facts.job.spec
    if True in fresh:
        servers = [f for f in found if f.role.serves]
        if len(servers) > spec.backoff_limit:
            message = (
                f"masters and pservers failed {len(servers)} times, and backoffLimit is {spec.backoff_limit}"
            )
            return PhaseVerdict(
                TrainingJobPhase.FAILED,
                "BackoffLimitExceeded",
                f"{message}: {described(facts, servers=True)}",
            )
    if False in fresh:
        wanted = spec.trainer.wanted
        budget = min(wanted * spec.failure_percent // 100, MAX_REMEMBERED - 1)
        trainers = [f for f in found if f.role is Role.TRAINER and f.index < wanted]
        if len(trainers) > budget:
            message = (
                f"trainers failed {len(trainers)} times in {spec.failure_window_seconds} s; {budget} are allowed, "
                f"{spec.failure_percent} % of {wanted}"
            )
            return PhaseVerdict(
                TrainingJobPhase.FAILED,
                "TooManyTrainersFailed",
                f"{message}: {described(facts, servers=False)}",
            )
    return None


def described(facts: Facts, *, servers: bool) -> str:
    """Which pods have failed and how, with their last words."""
    failed = [place for place in facts.failed if place.role.serves is servers]
    return ", ".join(f"{place.name} ({how(place)})" for place in failed[:5])


def how(place: Place) -> str:
    """How a pod ended."""
    reason = ((place.pod or {}).get("status") or {}).get("reason")
    if place.exit_code is None:
        said = manifests.last_words(place.pod or {"spec": {}})
        return f"{reason or 'lost'}, without an exit code{said}"
    text = f"{reason}, exit code {place.exit_code}" if reason else f"exit code {place.exit_code}"
    if place.exit_code in _EXITS:
        text += f", {_EXITS[place.exit_code]}"
    said = str(place.end.get("message") or "").strip()
    return f"{text}: {inert_text(said[-_SAID:])}" if said else text


def _recent(facts: Facts, failure: Failure) -> bool:
    return failure.time > facts.now - timedelta(seconds=facts.job.spec.failure_window_seconds)
