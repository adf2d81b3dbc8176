"""The pure state machine of a DIJob: its pods and service, restarts, reschedules, the job's end, suspend,
what stays.

Changes are recorded before they are made: a decision that counts a restart or a reschedule, or that ends the
job, deletes nothing. So each is counted once, and an end stays final, even if the controller dies in between.
"""

from collections.abc import Iterable
from dataclasses import replace

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Observed
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.facts import DIJobFacts, DIReplicaState
from edl_workflows.core.jobs.di_job.model import DIJob, DIJobPhase
from edl_workflows.core.jobs.di_job.status import CounterChange, make_events, status_delay, status_patch
from edl_workflows.core.jobs.replicas.steps import (
    apply_obstacle,
    delete_all,
    requeue_within,
    settle_lost_pods,
    suspending_verdict,
)
from edl_workflows.core.jobs.status import PhaseVerdict

NOTHING = CounterChange()
_NAMED = 5
"""The most replicas that a message names."""


def reconcile(job: DIJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    facts = DIJobFacts.of(job, observed)
    status = job.status
    # 1. Final phases never change; only remaining objects are cleaned up.
    if status.phase is not None and status.phase.final:
        return _finished(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The job's end: all replicas have succeeded, or one failed too often.
    if end := _find_end(facts):
        return _finished(facts, end)
    # 3. Suspended: no pods.
    if job.spec.suspend:
        return _suspend(facts)
    # 4. Objects of others have names that the job needs.
    if blocked := _report_conflict(facts):
        return blocked
    # 5. A restart or reschedule is counted before pods are replaced.
    if (counted := _counted(facts)) is not None:
        return counted
    # 6. Unwanted pods are deleted, missing ones are made.
    return _run(facts)


def _find_end(facts: DIJobFacts) -> PhaseVerdict | None:
    """How the job has ended; None while it has not."""
    key = facts.job.key
    if facts.completed and not facts.cut_short:
        return PhaseVerdict(
            DIJobPhase.SUCCEEDED, "JobSucceeded", f"DIJob {key} has succeeded: all its replicas have."
        )
    failed, limit = facts.new_failures, facts.job.spec.backoff_limit
    if refused := [r for r in failed if r.pod is not None and manifests.refused_by_node(r.pod)]:
        return PhaseVerdict(DIJobPhase.FAILED, "JobFailed", f"{_said(refused)} can't run on any node")
    if failed and limit is not None and facts.job.status.restarts >= limit:
        message = (
            f"{_said(failed)} failed, and the backoffLimit of {limit} restarts is used up; see their logs"
        )
        return PhaseVerdict(DIJobPhase.FAILED, "JobFailed", message)
    return None


def _said(replicas: list[DIReplicaState]) -> str:
    named = ", ".join(f"{replica.name} ({replica.how()})" for replica in replicas[:_NAMED])
    more = len(replicas) - _NAMED
    return f"{named} and {more} more" if more > 0 else named


def _finished(facts: DIJobFacts, verdict: PhaseVerdict) -> Actions:
    """Write the final phase first. Once the status has it, delete services and, by policy, pods."""
    if not (facts.phase and facts.phase.final):
        return _act(facts, verdict)  # so far only the pods show that it has ended
    policy = facts.job.spec.clean_pod_policy
    going = {"All": facts.pods, "Running": facts.live, "None": []}[policy]
    return _act(facts, verdict, delete=delete_all([*going, *facts.services]))


def _suspend(facts: DIJobFacts) -> Actions:
    if not facts.pods:
        done = PhaseVerdict(DIJobPhase.SUSPENDED, "JobSuspended", f"DIJob {facts.job.key} is suspended.")
        # With the new generation, a pod that still runs unobserved is stale.
        count = CounterChange(generation=int(facts.phase is not DIJobPhase.SUSPENDED))
        return _act(facts, done, count, delete=delete_all(facts.services))
    return _act(facts, suspending_verdict(facts, DIJobPhase.PENDING), delete=delete_all(facts.recorded_pods))


def _report_conflict(facts: DIJobFacts) -> Actions | None:
    """Report objects that have a name the job needs, but that the job does not own."""
    children = [("Pod", replica.name) for replica in facts.replicas]
    children.append(("Secret", pods.token_secret_name(facts.job)))
    children.append(("Service", pods.service_name(facts.job)))
    obstacle = obstacles.find_conflict(facts.job, facts.observed, children)
    if obstacle is None:
        return None
    verdict = PhaseVerdict(_going_on(facts), obstacle.reason, obstacle.message)
    return replace(_act(facts, verdict), requeue_after=obstacle.seconds)


def _going_on(facts: DIJobFacts) -> DIJobPhase:
    """The phase of a job that can't proceed just now: its present one, or Pending if it is new or was
    suspended."""
    return DIJobPhase.PENDING if facts.phase in (None, DIJobPhase.SUSPENDED) else facts.phase


def _counted(facts: DIJobFacts) -> Actions | None:
    """A restart, a reschedule or a new generation that begins now; None if nothing has to be counted."""
    if failed := facts.new_failures:
        return _act(
            facts,
            PhaseVerdict(DIJobPhase.RESTARTING, "JobRestarting", f"{_said(failed)} failed"),
            CounterChange(restarts=1),
        )
    if facts.cut_short:
        anew = elastic.tasks_by_rank(facts.job.spec)[-1].title
        message = f"only replicas that had succeeded are left of those at work: task {anew} begins anew"
        count = CounterChange(reschedules=1, generation=1, anew=anew)
        return _act(facts, PhaseVerdict(DIJobPhase.RESCHEDULING, "JobRescheduling", message), count)
    if facts.reallocated:
        count = CounterChange(reschedules=1, generation=1)
        return _act(
            facts, PhaseVerdict(DIJobPhase.RESCHEDULING, "JobRescheduling", "the allocation changed"), count
        )
    if facts.phase in (DIJobPhase.STARTING, DIJobPhase.RUNNING) and facts.deviates:
        verdict = PhaseVerdict(DIJobPhase.RESCHEDULING, "JobRescheduling", _why(facts))
        return _act(facts, verdict, CounterChange(reschedules=1))
    return None


def _why(facts: DIJobFacts) -> str:
    """How the pods differ from the wanted replicas, for the message of a reschedule."""
    lost = [replica for replica in facts.replicas if replica.lost]
    if lost:
        return f"{_said(lost)} ended for a cause outside of the program"
    if gone := [p.name for p in facts.replicas if not p.completed and not p.live]:
        return f"pods that are missing: {', '.join(gone[:_NAMED])}"
    if moved := [p.name for p in facts.replicas if p.moved]:
        return f"pods that are to have another rank or template: {', '.join(moved[:_NAMED])}"
    return f"pods that are not wanted any more: {len(facts.surplus) + len(facts.stale)}"


def _run(facts: DIJobFacts) -> Actions:
    stale = facts.stale
    over = [replica for replica in facts.replicas if replica.over]
    pauses = [(replica, facts.pause(replica)) for replica in over]
    due = [replica.pod for replica, seconds in pauses if not seconds and replica.pod is not None]
    moved = [replica.pod for replica in facts.replicas if replica.moved and replica.pod is not None]
    going = {manifests.name_of(pod): pod for pod in (*stale, *facts.surplus, *moved, *due)}
    outlived = [] if facts.job.spec.clean_pod_policy == "None" else facts.outlived
    # No pod of a new generation is made before all pods of earlier ones are gone.
    create = [] if stale else _missing(facts)
    made = {manifests.name_of(manifest) for manifest in create if manifest["kind"] == "Pod"}
    waiting = going or [p for p in facts.replicas if not (p.completed or p.live or p.name in made)]
    verdict = _still(facts) if waiting else _settled(facts, starting=bool(made))
    actions = _act(facts, verdict, create=create, delete=delete_all([*going.values(), *outlived]))
    return requeue_within(actions, *(seconds for _, seconds in pauses if seconds))


def _missing(facts: DIJobFacts) -> list[Manifest]:
    """Token and service first: pods don't start without the token, and their programs look each other up by
    the service as soon as they run. A replica that has succeeded gets no pod."""
    made: list[Manifest] = []
    if facts.secret is None and facts.replicas:
        made.append(pods.make_token_secret(facts.job, facts.observed.new_token))
    if not facts.services and facts.replicas:
        made.append(pods.make_service(facts.job))
    missing = [replica for replica in facts.replicas if replica.pod is None and not replica.completed]
    if missing:
        maker = pods.DIPodMaker(facts.job, facts.observed.settings)
        made += [maker.pod(replica.desired) for replica in missing]
    return made


def _still(facts: DIJobFacts) -> PhaseVerdict:
    """The verdict while pods have to end before others can be made."""
    phase, status = _going_on(facts), facts.job.status
    reason = f"Job{phase}"
    same = (status.phase, status.reason) == (phase, reason)
    return PhaseVerdict(
        phase, reason, status.message if same else "pods are still to go before others are made"
    )


def _settled(facts: DIJobFacts, *, starting: bool) -> PhaseVerdict:
    """The verdict when every replica has a pod or has succeeded."""
    key = facts.job.key
    if not facts.replicas:
        message = "the job is preemptible and has no allocation of nodes yet (status.allocation)"
        return PhaseVerdict(DIJobPhase.PENDING, "Unallocated", message)
    ready = not starting and all(replica.ready or replica.completed for replica in facts.replicas)
    hint = obstacles.why_pods_wait(facts.live)
    if ready or (facts.phase is DIJobPhase.RUNNING and not starting):
        return PhaseVerdict(DIJobPhase.RUNNING, "JobRunning", hint or f"DIJob {key} is running.")
    return PhaseVerdict(
        DIJobPhase.STARTING, "JobStarting", hint or f"DIJob {key} has its pods, and waits until they run."
    )


def _act(
    facts: DIJobFacts,
    verdict: PhaseVerdict,
    count: CounterChange = NOTHING,
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """All actions of a decision. Refused creates are reported in the status and tried again."""
    create = tuple(create)
    verdict, obstacle = apply_obstacle(facts, create, verdict, _going_on(facts))
    secrets = [manifest for manifest in create if manifest["kind"] == "Secret" and obstacle is None]
    patch = status_patch(facts, verdict, count, next(iter(secrets), facts.secret))
    actions = Actions(
        create=create,
        delete=tuple(delete),
        status=patch,
        status_may_wait=status_delay(facts.job.status, patch),
        events=make_events(facts, verdict),
        requeue_after=obstacle.seconds if obstacle else None,
    )
    return settle_lost_pods(facts, actions)
