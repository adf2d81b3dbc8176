"""The pure state machine of a TrainingJob: its pods in their order, scaling, replacements, its end, suspend,
clean-up.
"""

from collections.abc import Iterable
from dataclasses import replace

from edl_workflows.jobs import manifests, obstacles
from edl_workflows.jobs.actions import Actions, Deletion, Manifest, Observed
from edl_workflows.jobs.status import PhaseVerdict
from edl_workflows.jobs.training_job import pods
from edl_workflows.jobs.training_job.facts import TrainingJobFacts, TrainingReplicaState
from edl_workflows.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.jobs.training_job.status import (
    TOO_LATE,
    is_scaled,
    make_events,
    status_delay,
    status_patch,
)
from edl_workflows.jobs.training_job.types import TrainingRole
from edl_workflows.jobs.training_job.verdict import find_end, is_replaced, seconds_left

_LAST_FIRST = tuple(reversed(TrainingRole))
"""Trainers end first: one that saves when it is told to end needs the servers."""


def reconcile(job: TrainingJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    facts = TrainingJobFacts.of(job, observed)
    status = job.status
    # 1. Final phases are final; what still runs is released.
    if status.phase is not None and status.phase.final:
        return _finished(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The job's end: by its trainers, by too many failures, by what does not become ready. It is told
    # before anything # goes: who looks next, perhaps another controller, can't see how the job ended from
    # pods that are gone.
    if outcome := find_end(facts):
        return _act(facts, outcome)
    # 3. Suspended: no pods.
    if job.spec.suspend:
        return _suspend(facts)
    # 4. Foreign objects where ours should be.
    if blocked := _blocked(facts):
        return blocked
    # 5. Pods of an earlier cluster go before those of the new one are made.
    if facts.stale:
        return _in_time(facts, _act(facts, _phase(facts), delete=_wave([*facts.stale, *facts.surplus])))
    # 6. Surplus and failed pods go, missing ones are made: master, then pservers, then trainers.
    return _run(facts)


def _finished(facts: TrainingJobFacts, outcome: PhaseVerdict) -> Actions:
    """What runs ends, and its services go; what has ended stays for its logs, or goes too with autoclean."""
    gone = facts.pods if facts.job.spec.autoclean else facts.live
    objects = [*gone, *facts.services.values()]
    return _act(
        facts,
        outcome,
        delete=[manifests.delete_object(o) for o in objects if not manifests.is_terminating(o)],
    )


def _suspend(facts: TrainingJobFacts) -> Actions:
    if not facts.pods:
        services = [
            manifests.delete_object(s) for s in facts.services.values() if not manifests.is_terminating(s)
        ]
        done = PhaseVerdict(
            TrainingJobPhase.SUSPENDED, "JobSuspended", f"TrainingJob {facts.job.key} is suspended."
        )
        return _act(facts, done, delete=services)
    # What has just succeeded stays until the status says so.
    fresh = [place.pod for place in facts.places if place.completed and not facts.known_complete(place)]
    wave = _wave(pod for pod in facts.pods if pod not in fresh)
    message = f"pods that have not ended yet: {len(facts.live)}"
    return _act(
        facts,
        PhaseVerdict(facts.job.status.phase or TrainingJobPhase.CREATING, "Suspending", message),
        delete=wave,
    )


def _wave(going: Iterable[Manifest]) -> list[Deletion]:
    """Who of these is to be deleted now: who has ended, and no server before all trainers have."""
    going = list(going)
    wave = [pod for pod in going if manifests.has_ended(pod)]
    for role in _LAST_FIRST:
        running = [
            p for p in going if manifests.get_label(p, pods.ROLE_LABEL) == role and not manifests.has_ended(p)
        ]
        if running:
            wave += running
            break
    return [manifests.delete_object(pod) for pod in wave if not manifests.is_terminating(pod)]


def _blocked(facts: TrainingJobFacts) -> Actions | None:
    """Objects that have a name of ours and are not the job's."""
    names = [("Pod", place.name) for place in facts.places]
    names += [("Service", p.name) for p in facts.places if pods.has_service(facts.job, p.role)]
    obstacle = obstacles.find_conflict(facts.job, facts.observed, names)
    if obstacle is None:
        return None
    outcome = PhaseVerdict(_phase(facts).phase, obstacle.reason, obstacle.message)
    return replace(_act(facts, outcome), requeue_after=obstacle.seconds)


def _run(facts: TrainingJobFacts) -> Actions:
    failed = [
        place for place in facts.places if place.failed and place.recorded and is_replaced(facts, place)
    ]
    due = [place.pod for place in failed if place.pod is not None and not place.wait(facts.now)]
    names = {p.name for p in facts.places if pods.has_service(facts.job, p.role)}
    leftover = [service for name, service in facts.services.items() if name not in names]
    going = [*facts.surplus, *due, *_unstarted(facts), *leftover]
    deletions = [manifests.delete_object(obj) for obj in going if not manifests.is_terminating(obj)]
    actions = _act(facts, _phase(facts), create=_missing(facts), delete=deletions)
    return _in_time(facts, actions, [seconds for place in failed if (seconds := place.wait(facts.now))])


def _in_time(facts: TrainingJobFacts, actions: Actions, waits: Iterable[float] = ()) -> Actions:
    """The same, and another look after the shortest of these times, or when a role has had the time to become
    ready.
    """
    if actions.requeue_after:
        return actions
    left = seconds_left(facts)
    times = [*waits] if left is None else [*waits, left]
    return replace(actions, requeue_after=min(times, default=None))


def _unstarted(facts: TrainingJobFacts) -> list[Manifest]:
    """Trainers that have not begun when another is done: there is nothing left for them."""
    if not facts.winding_down:
        return []
    idle = [place.pod for place in facts.trainers if not place.active and not place.completed]
    return [pod for pod in idle if pod is not None and manifests.pod_phase(pod) == "Pending"]


def _missing(facts: TrainingJobFacts) -> list[Manifest]:
    """What is to be made: a role only when those before it are ready, a service before its pod."""
    made: list[Manifest] = []
    for role in facts.job.spec.counts:
        if role is TrainingRole.TRAINER and facts.winding_down:
            break
        for place in facts.of_role(role):
            made += _made(facts, place)
        if not facts.role_up(role):
            break
    return made


def _made(facts: TrainingJobFacts, place: TrainingReplicaState) -> list[Manifest]:
    if place.completed:
        return []
    found: list[Manifest] = []
    if pods.has_service(facts.job, place.role) and place.name not in facts.services:
        found.append(pods.make_service(facts.job, place.role, place.index))
    if place.pod is None:
        found.append(pods.make_pod(facts.job, place.role, place.index))
    return found


def _phase(facts: TrainingJobFacts) -> PhaseVerdict:
    """The phase of a job that is to run. Once running it is never creating again, whatever is replaced."""
    waits = obstacles.why_pods_wait(facts.live)
    if facts.starting:
        waiting = facts.waiting_role
        if waiting is None:
            return _running(facts, waits)
        count = [place.up for place in facts.of_role(waiting)]
        message = f"{waiting}: {sum(count)} of {len(count)} ready"
        return PhaseVerdict(
            TrainingJobPhase.CREATING, "JobCreating", f"{message}; {waits}" if waits else message
        )
    wanted = facts.job.spec.trainer.wanted
    if (
        is_scaled(facts)
        or facts.stale
        or (facts.job.status.phase is TrainingJobPhase.SCALING and not _caught_up(facts))
    ):
        up = sum(place.up for place in facts.trainers)
        message = f"{up} of {wanted} trainers run"
        reason = "ClusterChanging" if facts.stale else "JobScaling"
        return PhaseVerdict(TrainingJobPhase.SCALING, reason, f"{message}; {waits}" if waits else message)
    return _running(facts, waits)


def _running(facts: TrainingJobFacts, waits: str) -> PhaseVerdict:
    if facts.winding_down:
        return PhaseVerdict(
            TrainingJobPhase.RUNNING, "TrainersEnding", "a trainer has succeeded; the others end"
        )
    if facts.too_late:
        message = (
            f"{facts.too_late} trainers are wanted, but one of {facts.job.spec.trainer.wanted} has succeeded, and the job "
            "is not fault_tolerant: it goes on with these"
        )
        return PhaseVerdict(TrainingJobPhase.RUNNING, TOO_LATE, f"{message}; {waits}" if waits else message)
    return PhaseVerdict(
        TrainingJobPhase.RUNNING, "JobRunning", waits or f"TrainingJob {facts.job.key} is running."
    )


def _caught_up(facts: TrainingJobFacts) -> bool:
    """Whether all wanted pods run, and no others."""
    return facts.winding_down or (not facts.surplus and all(place.up for place in facts.places))


def _act(
    facts: TrainingJobFacts,
    outcome: PhaseVerdict,
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """Everything at once. Refused creations are told in the status, and tried again."""
    create = tuple(create)
    obstacle = obstacles.find_refusal(facts.observed, create)
    if obstacle is not None:
        outcome = PhaseVerdict(outcome.phase, obstacle.reason, obstacle.message)
    patch = status_patch(facts, outcome)
    told = make_events(facts, outcome)
    return Actions(
        create=create,
        delete=tuple(delete),
        status=patch,
        status_may_wait=0.0 if told else status_delay(facts.job.status, patch),
        events=told,
        requeue_after=obstacle.seconds if obstacle else None,
    )
