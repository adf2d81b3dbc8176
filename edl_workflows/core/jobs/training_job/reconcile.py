"""The pure state machine of a TrainingJob: pods in order, scaling, replacements, end, suspend, clean-up."""

from collections.abc import Iterable
from dataclasses import replace

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Observed
from edl_workflows.core.jobs.replicas.steps import (
    apply_obstacle,
    delete_all,
    requeue_within,
    settle_lost_pods,
    suspending_verdict,
)
from edl_workflows.core.jobs.status import PhaseVerdict
from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.facts import TrainingJobFacts
from edl_workflows.core.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.core.jobs.training_job.status import (
    TOO_LATE,
    is_scaled,
    make_events,
    status_delay,
    status_patch,
)
from edl_workflows.core.jobs.training_job.types import TrainingRole
from edl_workflows.core.jobs.training_job.verdict import (
    describe_end,
    find_end,
    is_replaced,
    seconds_left,
)
from edl_workflows.core.kubernetes import pod_state

_LAST_FIRST = tuple(reversed(TrainingRole))
"""Trainers stop first: a trainer that saves a checkpoint when it is stopped needs the servers."""


def reconcile(job: TrainingJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    facts = TrainingJobFacts.of(job, observed)
    status = job.status
    # 1. Final phases are final; pods that still run are stopped.
    if status.phase is not None and status.phase.final:
        return _clean_up(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The job's end: by its trainers, by too many failures, by a role that does not become ready. Nothing
    # is deleted before the status records the end: without the pods, the next decision could not know how the
    # job ended.
    if verdict := find_end(facts):
        return _act(facts, verdict)
    # 3. Suspended: no pods.
    if job.spec.suspend:
        return _suspend(facts)
    # 4. Objects of others have names that the job needs.
    if blocked := _report_conflict(facts):
        return blocked
    # 5. Pods of an earlier cluster go before those of the new one are made.
    if facts.stale:
        going = _next_to_stop(facts, [*facts.stale, *facts.surplus])
        return _keep_deadlines(facts, _act(facts, _current_phase(facts), delete=going))
    # 6. Surplus and failed pods go, missing ones are made: master, then pservers, then trainers.
    return _replace_pods(facts)


def _clean_up(facts: TrainingJobFacts, verdict: PhaseVerdict) -> Actions:
    """Delete the services and the pods that run; with autoclean also the ended pods with their logs."""
    gone = facts.pods if facts.job.spec.autoclean else facts.live
    return _act(facts, verdict, delete=delete_all([*gone, *facts.services]))


def _suspend(facts: TrainingJobFacts) -> Actions:
    if not facts.pods:
        message = f"TrainingJob {facts.job.key} is suspended."
        done = PhaseVerdict(TrainingJobPhase.SUSPENDED, "JobSuspended", message)
        return _act(facts, done, delete=delete_all(facts.services))
    going = _next_to_stop(facts, facts.recorded_pods)
    return _act(facts, suspending_verdict(facts, TrainingJobPhase.CREATING), delete=going)


def _next_to_stop(facts: TrainingJobFacts, going: list[Manifest]) -> list[Deletion]:
    """The pods to delete now: those that have ended, and the running ones of the role that stops next."""
    wave = [pod for pod in going if not facts.holds_up(pod)]
    for role in _LAST_FIRST:
        running = [p for p in going if manifests.get_label(p, pods.ROLE_LABEL) == role and facts.holds_up(p)]
        if running:
            return delete_all([*wave, *running])
    return delete_all(wave)


def _report_conflict(facts: TrainingJobFacts) -> Actions | None:
    """Report objects that have a name the job needs, but that the job does not own."""
    names = [("Pod", replica.name) for replica in facts.replicas]
    names += [("Service", r.name) for r in facts.replicas if pods.has_service(facts.job, r.role)]
    obstacle = obstacles.find_conflict(facts.job, facts.observed, names)
    if obstacle is None:
        return None
    verdict = PhaseVerdict(_current_phase(facts).phase, obstacle.reason, obstacle.message)
    return replace(_act(facts, verdict), requeue_after=obstacle.seconds)


def _replace_pods(facts: TrainingJobFacts) -> Actions:
    failed = [r for r in facts.replicas if r.failed and r.recorded and is_replaced(facts, r)]
    due = [r.pod for r in failed if r.pod is not None and not r.seconds_to_replacement(facts.now)]
    names = {r.name for r in facts.replicas if pods.has_service(facts.job, r.role)}
    leftover = [service for service in facts.services if manifests.name_of(service) not in names]
    going = delete_all([*facts.surplus, *due, *facts.outlived, *_idle_trainers(facts), *leftover])
    actions = _act(facts, _current_phase(facts), create=_missing_objects(facts), delete=going)
    return _keep_deadlines(
        facts, actions, [left for r in failed if (left := r.seconds_to_replacement(facts.now))]
    )


def _keep_deadlines(facts: TrainingJobFacts, actions: Actions, waits: Iterable[float] = ()) -> Actions:
    """The same actions, with the next decision after the shortest of these times, or when a role becomes
    overdue."""
    return requeue_within(actions, *waits, seconds_left(facts))


def _idle_trainers(facts: TrainingJobFacts) -> list[Manifest]:
    """Trainers that are still Pending when another one has succeeded: no data is left for them."""
    if not facts.winding_down:
        return []
    idle = [replica.pod for replica in facts.trainers if not replica.active and not replica.completed]
    return [pod for pod in idle if pod is not None and pod_state.pod_phase(pod) == "Pending"]


def _missing_objects(facts: TrainingJobFacts) -> list[Manifest]:
    """The missing objects: those of a role only when the roles before it are ready, and a service before its
    pod."""
    job, made = facts.job, list[Manifest]()
    services = {manifests.name_of(service) for service in facts.services}
    for role in job.spec.counts:
        if role is TrainingRole.TRAINER and facts.winding_down:
            break
        for replica in (r for r in facts.of_role(role) if not r.completed):
            if pods.has_service(job, role) and replica.name not in services:
                made.append(pods.make_service(job, role, replica.index))
            if replica.pod is None:
                made.append(pods.make_pod(job, role, replica.index))
        if not facts.role_up(role):
            break
    return made


def _current_phase(facts: TrainingJobFacts) -> PhaseVerdict:
    """The phase of a job that is neither suspended nor ended. A job that has run is never ``creating``
    again."""
    waits = obstacles.why_pods_wait(facts.live) or _why_replaced(facts)
    if facts.starting:
        waiting = facts.waiting_role
        if waiting is None:
            return _running(facts, waits)
        count = [replica.up for replica in facts.of_role(waiting)]
        message = f"{waiting}: {sum(count)} of {len(count)} ready"
        return PhaseVerdict(
            TrainingJobPhase.CREATING, "JobCreating", f"{message}; {waits}" if waits else message
        )
    desired = facts.job.spec.trainer.desired
    if (
        is_scaled(facts)
        or facts.stale
        or (facts.job.status.phase is TrainingJobPhase.SCALING and not _caught_up(facts))
    ):
        up = sum(replica.up for replica in facts.trainers)
        message = f"{up} of {desired} trainers run"
        reason = "ClusterChanging" if facts.stale else "JobScaling"
        return PhaseVerdict(TrainingJobPhase.SCALING, reason, f"{message}; {waits}" if waits else message)
    return _running(facts, waits)


def _why_replaced(facts: TrainingJobFacts) -> str:
    """How the first pod ended that is being replaced; "" if none is."""
    ended = (f"{r.name} is replaced ({describe_end(r)})" for r in facts.failed if is_replaced(facts, r))
    return next(ended, "")


def _running(facts: TrainingJobFacts, waits: str) -> PhaseVerdict:
    if facts.winding_down:
        return PhaseVerdict(
            TrainingJobPhase.RUNNING, "TrainersEnding", "a trainer has succeeded; the others end"
        )
    if facts.too_late:
        message = (
            f"{facts.too_late} trainers are wanted, but one of {facts.job.spec.trainer.desired} has "
            "succeeded, and the job is not fault_tolerant: it goes on with these"
        )
        return PhaseVerdict(TrainingJobPhase.RUNNING, TOO_LATE, f"{message}; {waits}" if waits else message)
    return PhaseVerdict(
        TrainingJobPhase.RUNNING, "JobRunning", waits or f"TrainingJob {facts.job.key} is running."
    )


def _caught_up(facts: TrainingJobFacts) -> bool:
    """Whether all wanted pods run, and no others."""
    return facts.winding_down or (not facts.surplus and all(replica.up for replica in facts.replicas))


def _act(
    facts: TrainingJobFacts,
    verdict: PhaseVerdict,
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """All actions of a decision. Refused creates are reported in the status and tried again."""
    create = tuple(create)
    verdict, obstacle = apply_obstacle(facts, create, verdict)
    patch = status_patch(facts, verdict)
    events = make_events(facts, verdict)
    actions = Actions(
        create=create,
        delete=tuple(delete),
        status=patch,
        status_may_wait=0.0 if events else status_delay(facts.job.status, patch),
        events=events,
        requeue_after=obstacle.seconds if obstacle else None,
    )
    return settle_lost_pods(facts, actions)
