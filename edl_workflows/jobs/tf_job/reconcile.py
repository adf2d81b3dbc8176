"""The pure state machine of a TFJob: its pods and services, restarts, the job's end, suspend, and what stays
afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from edl_workflows.jobs import manifests, obstacles
from edl_workflows.jobs.actions import Actions, Deletion, Manifest, Observed, Patch
from edl_workflows.jobs.status import PhaseVerdict
from edl_workflows.jobs.tf_job import cluster, pods
from edl_workflows.jobs.tf_job.facts import Facts, Place
from edl_workflows.jobs.tf_job.model import ELSEWHERE, Restart, TFJob, TFJobPhase
from edl_workflows.jobs.tf_job.status import events, status_patch
from edl_workflows.jobs.tf_job.types import ReplicaType

FORCED = frozenset({"DeadlineExceeded", "BackoffLimitExceeded"})
"""Ends that are no replica's own: what still runs is stopped whatever the clean-up policy says."""


def reconcile(job: TFJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    if job.spec.run_policy.managed_by == ELSEWHERE:
        return Actions()
    facts = Facts.of(job, observed)
    # 1. Final phases are final; pods are cleaned up.
    status = job.status
    if status.phase is not None and status.phase.final:
        return _finished(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The job's end: by its replicas, by its deadline, by too many restarts. Nothing goes before the status
    # says it: who
    #    looks next could not tell from pods that are gone.
    restarts = _recorded(facts)
    if verdict := _verdict(facts, restarts):
        return _act(facts, verdict, restarts)
    # 3. Suspended: no pods.
    if job.spec.run_policy.suspend:
        return _suspend(facts)
    # 4. Foreign objects where ours should be.
    if blocked := _blocked(facts):
        return blocked
    # 5. Pods of an earlier cluster go before those of the new one are made.
    if facts.stale:
        why = _restarting(facts, "the cluster changed")
        return _act(facts, why, restarts, create=_gang(facts), delete=_oldest_wave(facts))
    # 6. Surplus and failed replicas go, missing ones are made.
    return _run(facts, restarts)


def _recorded(facts: Facts) -> dict[str, Restart]:
    """The restarts, with those that are about to happen. A pod is deleted only once it stands here: each
    counts once.

    Of pods that are gone the uid is not kept: a status has room for ten thousand such entries.
    """
    there = {place.name: place.recorded for place in facts.places}
    found = {
        name: restart if there.get(name) else Restart(count=restart.count, exit_code=restart.exit_code)
        for name, restart in facts.job.status.restarts.items()
    }
    for place in facts.failed:
        if place.pod is not None and place.retryable and not place.recorded:
            uid = str(place.pod["metadata"].get("uid", ""))
            found[place.name] = Restart(count=place.restart.count + 1, uid=uid, exit_code=place.exit_code)
    return found


def _verdict(facts: Facts, restarts: Mapping[str, Restart]) -> PhaseVerdict | None:
    """How the job has ended; None while it has not."""
    if _succeeded(facts):
        return PhaseVerdict(
            TFJobPhase.SUCCEEDED, "TFJobSucceeded", f"TFJob {facts.job.key} successfully completed."
        )
    if failed := _fatal(facts):
        return PhaseVerdict(TFJobPhase.FAILED, "TFJobFailed", _said(facts, failed))
    policies = facts.job.spec.policies
    if (left := _seconds_left(facts)) is not None and left <= 0:
        message = f"the job ran for its {policies.active_deadline_seconds} s of activeDeadlineSeconds"
        return PhaseVerdict(TFJobPhase.FAILED, "DeadlineExceeded", message)
    new = sum(r.count for r in restarts.values()) - sum(r.count for r in facts.job.status.restarts.values())
    total = facts.restarts + new
    if policies.backoff_limit is not None and total > policies.backoff_limit:
        message = f"replicas were restarted {total} times, and backoffLimit is {policies.backoff_limit}"
        return PhaseVerdict(TFJobPhase.FAILED, "BackoffLimitExceeded", message)
    return None


def _succeeded(facts: Facts) -> bool:
    """The chief decides, else worker 0 or all workers, else (a job of other replicas only) all there are."""
    deciding = facts.deciding
    one_is_enough = deciding[0].kind is ReplicaType.WORKER and facts.job.spec.success_policy != "AllWorkers"
    return deciding[0].completed if one_is_enough else all(place.completed for place in deciding)


def _fatal(facts: Facts) -> list[Place]:
    """The replicas whose failure is the job's."""
    failed = [place for place in facts.failed if not place.retryable and not place.completed]
    if not facts.job.spec.enable_dynamic_worker:
        return failed
    # Dynamic workers may be lost, as long as one can go on.
    workers = [place for place in facts.places if place.kind is ReplicaType.WORKER]
    lost = [place for place in failed if place.kind is ReplicaType.WORKER]
    others = [place for place in failed if place.kind is not ReplicaType.WORKER]
    none_left = bool(lost) and all(place in lost or place.completed for place in workers)
    return others + (lost if none_left else [])


def _said(facts: Facts, failed: list[Place]) -> str:
    """Which replicas failed and how, in upstream's words and then some."""
    kind = failed[0].kind
    same = sum(place.kind is kind for place in failed)
    how = ", ".join(f"{p.name} ({_how(p)})" for p in failed[:5])
    return f"TFJob {facts.job.key} has failed because {same} {kind} replica(s) failed: {how}; see their logs"


def _how(place: Place) -> str:
    code = "without an exit code" if place.exit_code is None else f"exit code {place.exit_code}"
    said = manifests.last_words(place.pod or {"spec": {}})
    if place.exit_code is not None and not place.disrupted:
        return f"{code}{said}"
    reason = ((place.pod or {}).get("status") or {}).get("reason") or "lost"
    return f"{reason}, {code}{said}"


def _seconds_left(facts: Facts) -> float | None:
    limit, start = facts.job.spec.policies.active_deadline_seconds, facts.job.status.start_time
    if limit is None or start is None:
        return None
    return (start + timedelta(seconds=limit) - facts.now).total_seconds()


def _finished(facts: Facts, outcome: PhaseVerdict) -> Actions:
    """What runs is stopped by the clean-up policy; services of pods that are gone or ended go."""
    gone = _cleaned(facts, outcome)
    staying = {manifests.name_of(pod) for pod in facts.live if pod not in gone}
    services = [
        s for name, s in facts.services.items() if name not in staying and not manifests.is_terminating(s)
    ]
    deletions = [
        manifests.delete_object(obj) for obj in (*gone, *services) if not manifests.is_terminating(obj)
    ]
    return _act(facts, outcome, facts.job.status.restarts, delete=deletions)


def _cleaned(facts: Facts, outcome: PhaseVerdict) -> list[Manifest]:
    policy = facts.job.spec.policies.clean_pod_policy
    if policy is None:
        policy = "None" if "keep-pods" in facts.job.compat else "Running"
    if policy == "All":
        return facts.pods
    return facts.live if policy == "Running" or outcome.reason in FORCED else []


def _suspend(facts: Facts) -> Actions:
    """Parameter servers last: a chief that saves a checkpoint when it is told to end needs them."""
    restarts = facts.job.status.restarts
    if not facts.pods:
        services = [
            manifests.delete_object(s) for s in facts.services.values() if not manifests.is_terminating(s)
        ]
        done = PhaseVerdict(TFJobPhase.SUSPENDED, "TFJobSuspended", f"TFJob {facts.job.key} is suspended.")
        return _act(facts, done, restarts, delete=services)
    # A replica that has just succeeded stays until the status says so.
    fresh = [place.pod for place in facts.places if place.completed and not facts.known_complete(place)]
    wave = _wave(pod for pod in facts.pods if pod not in fresh)
    outcome = PhaseVerdict(
        facts.job.status.phase or TFJobPhase.CREATED,
        "Suspending",
        f"pods that have not ended yet: {len(facts.live)}",
    )
    return _act(facts, outcome, restarts, delete=wave)


def _oldest_wave(facts: Facts) -> list[Deletion]:
    return _wave([*facts.stale, *facts.surplus])


def _wave(going: Iterable[Manifest]) -> list[Deletion]:
    """Who of these is to be deleted now: parameter servers only once none of the others runs any more."""
    going = list(going)
    first = {kind.slug for kind in cluster.STOPPED_FIRST}
    early = [pod for pod in going if manifests.get_label(pod, pods.TYPE_LABEL) in first]
    running = [pod for pod in early if not manifests.has_ended(pod)]
    return [manifests.delete_object(pod) for pod in (running or going) if not manifests.is_terminating(pod)]


def _blocked(facts: Facts) -> Actions | None:
    """Objects that have a name of ours and are not the job's."""
    names = [(kind, place.name) for place in facts.places for kind in ("Pod", "Service")]
    group = pods.pod_group(facts.job)
    names += [(group["kind"], manifests.name_of(group))] if group else []
    obstacle = obstacles.find_conflict(facts.job, facts.observed, names)
    if obstacle is None:
        return None
    outcome = PhaseVerdict(_phase(facts).phase, obstacle.reason, obstacle.message)
    return _by(_act(facts, outcome, facts.job.status.restarts), obstacle.seconds)


def _run(facts: Facts, restarts: Mapping[str, Restart]) -> Actions:
    failed = [
        p
        for p in facts.places
        if p.pod is not None and p.failed and p.retryable and p.recorded and not p.completed
    ]
    due = [place.pod for place in failed if place.pod is not None and not place.wait(facts.now)]
    names = {place.name for place in facts.places}
    leftover = [s for name, s in facts.services.items() if name not in names]
    going = [obj for obj in (*facts.surplus, *due, *leftover) if not manifests.is_terminating(obj)]
    waits = [seconds for place in failed if (seconds := place.wait(facts.now))]
    actions = _act(
        facts, _phase(facts), restarts, create=_missing(facts), delete=map(manifests.delete_object, going)
    )
    return _by(actions, *waits)


def _missing(facts: Facts) -> list[Manifest]:
    """What is to be made: the gang before its pods, a service before its pod. A replica that has succeeded is
    done.
    """
    made = _gang(facts)
    for place in facts.places:
        if place.completed:
            continue
        if place.name not in facts.services:
            made.append(pods.service(facts.job, place.kind, place.index))
        if place.pod is None:
            made.append(pods.pod(facts.job, place.kind, place.index, facts.observed.settings))
    return made


def _gang(facts: Facts) -> list[Manifest]:
    """The gang, where it may be missing or not be what the spec says by now.

    Nobody watches it, since its definition need not be installed: to find that its name is taken is how it is
        looked at.
    """
    group, status = pods.pod_group(facts.job), facts.job.status
    if group is None or _observed_gang(facts, group) is not None:
        return []
    edited = status.observed_generation != facts.job.metadata.generation
    # After an obstacle this one may never have been looked at.
    return [group] if edited or not facts.pods or status.reason in obstacles.REASONS else []


def _gang_patch(facts: Facts) -> tuple[Patch, ...]:
    """What makes an observed gang what the spec says."""
    group = pods.pod_group(facts.job)
    there = _observed_gang(facts, group) if group else None
    if group is None or there is None or not manifests.owned_by(there, facts.job):
        return ()
    change = pods.gang_change(there, group)
    body = {"metadata": {"resourceVersion": there["metadata"]["resourceVersion"]}, "spec": change}
    return (Patch(there["apiVersion"], there["kind"], manifests.name_of(there), body),) if change else ()


def _observed_gang(facts: Facts, group: Manifest) -> Manifest | None:
    return facts.observed.find(group["kind"], manifests.name_of(group))


def _phase(facts: Facts) -> PhaseVerdict:
    """The phase of a job that is to run. What it was before tells a start from a restart."""
    before = facts.job.status.phase
    going = [place for place in facts.places if place.recorded or (place.failed and place.retryable)]
    if going:
        place = going[0]
        return _restarting(facts, f"{place.name} is being replaced ({_how(place)})")
    if any(place.active for place in facts.deciding):
        return PhaseVerdict(
            TFJobPhase.RUNNING,
            "TFJobRunning",
            obstacles.why_pods_wait(facts.live) or f"TFJob {facts.job.key} is running.",
        )
    if before in (TFJobPhase.RUNNING, TFJobPhase.RESTARTING):
        return _restarting(
            facts, obstacles.why_pods_wait(facts.live) or "no replica that decides about the job runs"
        )
    reason = (
        "TFJobResumed"
        if before is TFJobPhase.SUSPENDED or facts.job.status.reason == "TFJobResumed"
        else "TFJobCreated"
    )
    return PhaseVerdict(
        TFJobPhase.CREATED,
        reason,
        obstacles.why_pods_wait(facts.live) or f"TFJob {facts.job.key} is created.",
    )


def _restarting(facts: Facts, why: str) -> PhaseVerdict:
    return PhaseVerdict(
        TFJobPhase.RESTARTING, "TFJobRestarting", f"TFJob {facts.job.key} is restarting: {why}."
    )


def _act(
    facts: Facts,
    outcome: PhaseVerdict,
    restarts: Mapping[str, Restart],
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """Everything at once. Refused creations are told in the status, and tried again; the deadline is kept
    whatever else the job waits for."""
    create = tuple(create)
    obstacle = obstacles.find_refusal(facts.observed, create)
    if obstacle is not None:
        outcome = PhaseVerdict(outcome.phase, obstacle.reason, obstacle.message)
    actions = Actions(
        create=create,
        delete=tuple(delete),
        patch=_gang_patch(facts),
        status=status_patch(facts, outcome, restarts),
        events=events(facts, outcome),
    )
    at_rest = outcome.phase.final or outcome.phase is TFJobPhase.SUSPENDED
    deadline = None if at_rest else _seconds_left(facts)
    return _by(actions, obstacle.seconds if obstacle else None, deadline)


def _by(actions: Actions, *seconds: float | None) -> Actions:
    """The same, with another look after the shortest of these times at the latest."""
    times = [time for time in (actions.requeue_after, *seconds) if time is not None]
    return replace(actions, requeue_after=min(times, default=None))
