"""The pure state machine of a Kubeflow job: its pods and services, restarts, the job's end, suspend,
clean-up.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Observed, Patch
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.facts import KubeflowFacts, KubeflowReplicaState, sort_facts
from edl_workflows.core.jobs.kubeflow.model import KubeflowJob, KubeflowPhase, ReplicaRestarts
from edl_workflows.core.jobs.kubeflow.pods import KubeflowFramework
from edl_workflows.core.jobs.kubeflow.status import make_events, status_patch
from edl_workflows.core.jobs.replicas.steps import (
    apply_obstacle,
    delete_all,
    requeue_within,
    settle_lost_pods,
    suspending_verdict,
)
from edl_workflows.core.jobs.status import PhaseVerdict

FORCED = frozenset({"DeadlineExceeded", "BackoffLimitExceeded"})
"""Reasons of ends that no replica caused: pods that still run are stopped, whatever the clean-up policy
is."""
_NAMED = 5
"""The most replicas that a message names."""


def reconcile(framework: KubeflowFramework, job: KubeflowJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    if job.managed_elsewhere:
        return Actions()
    facts = sort_facts(framework, job, observed)
    # 1. Final phases are final; pods are cleaned up.
    status = job.status
    if status.phase is not None and status.phase.final:
        return _clean_up(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The job's end: by its replicas, by its deadline, by too many restarts. Nothing is deleted before the
    # status records the end: without the pods, the next decision could not know how the job ended.
    restarts = _count_restarts(facts)
    if verdict := _find_end(facts, restarts):
        return _act(facts, verdict, restarts)
    # 3. Suspended: no pods.
    if job.spec.run_policy.suspend:
        return _suspend(facts)
    # 4. Objects of others have names that the job needs.
    if blocked := _report_conflict(facts):
        return blocked
    # 5. Pods of an earlier cluster go before those of the new one are made.
    if facts.stale:
        verdict = _restarting(facts, "the cluster changed")
        going = _next_to_stop(facts, [*facts.stale, *facts.surplus])
        return _act(facts, verdict, restarts, create=_missing_pod_group(facts), delete=going)
    # 6. Surplus and failed replicas go, missing ones are made.
    return _replace_pods(facts, restarts)


def _count_restarts(facts: KubeflowFacts) -> dict[str, ReplicaRestarts]:
    """The restarts by replica, including those that are about to happen.

    A pod is deleted only after its restart is recorded here, so that each restart counts once. The uids of
    pods that are gone are dropped, so that ten thousand entries fit into a status.
    """
    present = {replica.name: replica.recorded for replica in facts.replicas}
    restarts = {
        name: restart
        if present.get(name)
        else ReplicaRestarts(count=restart.count, exit_code=restart.exit_code)
        for name, restart in facts.job.status.restarts.items()
    }
    for replica in facts.failed:
        if replica.retryable and not replica.recorded:
            restarts[replica.name] = ReplicaRestarts(
                count=replica.restart.count + 1, uid=replica.uid, exit_code=replica.exit_code
            )
    return restarts


def _find_end(facts: KubeflowFacts, restarts: Mapping[str, ReplicaRestarts]) -> PhaseVerdict | None:
    """How the job has ended; None while it has not."""
    job = facts.job
    if _succeeded(facts):
        message = f"{job.kind} {job.key} successfully completed."
        return PhaseVerdict(KubeflowPhase.SUCCEEDED, f"{job.kind}Succeeded", message)
    if failed := _fatal(facts):
        return PhaseVerdict(KubeflowPhase.FAILED, f"{job.kind}Failed", _describe_failure(facts, failed))
    policies = job.spec.policies
    if (left := _seconds_to_deadline(facts)) is not None and left <= 0:
        message = f"the job ran for its {policies.active_deadline_seconds} s of activeDeadlineSeconds"
        return PhaseVerdict(KubeflowPhase.FAILED, "DeadlineExceeded", message)
    new = sum(r.count for r in restarts.values()) - sum(r.count for r in job.status.restarts.values())
    total = facts.restarts + new
    if policies.backoff_limit is not None and total > policies.backoff_limit:
        message = f"replicas were restarted {total} times, and backoffLimit is {policies.backoff_limit}"
        return PhaseVerdict(KubeflowPhase.FAILED, "BackoffLimitExceeded", message)
    return None


def _succeeded(facts: KubeflowFacts) -> bool:
    """The chief decides, else worker 0 or all workers, else (a job without either) all replicas."""
    deciding = facts.deciding
    worker_0_decides = deciding[0].kind.is_worker and not facts.job.spec.waits_for_all_workers
    return deciding[0].completed if worker_0_decides else all(replica.completed for replica in deciding)


def _fatal(facts: KubeflowFacts) -> list[KubeflowReplicaState]:
    """The replicas whose failure makes the job fail."""
    failed = [replica for replica in facts.failed if not replica.retryable and not replica.completed]
    if not facts.job.spec.workers_may_be_lost:
        return failed
    workers = [replica for replica in facts.replicas if replica.kind.is_worker]
    lost = [replica for replica in failed if replica.kind.is_worker]
    non_workers = [replica for replica in failed if not replica.kind.is_worker]
    none_left = bool(lost) and all(replica in lost or replica.completed for replica in workers)
    return non_workers + (lost if none_left else [])


def _describe_failure(facts: KubeflowFacts, failed: list[KubeflowReplicaState]) -> str:
    """Which replicas failed and how; it begins with upstream's sentence."""
    job, kind = facts.job, failed[0].kind
    same = sum(replica.kind is kind for replica in failed)
    how = ", ".join(f"{r.name} ({_describe_end(r)})" for r in failed[:_NAMED])
    return f"{job.kind} {job.key} has failed because {same} {kind} replica(s) failed: {how}; see their logs"


def _describe_end(replica: KubeflowReplicaState) -> str:
    last_words = manifests.last_words(replica.pod or {"spec": {}})
    if replica.pod is not None and manifests.failed_init_container(replica.pod) and not replica.disrupted:
        return last_words.removeprefix(": ")
    code = "without an exit code" if replica.exit_code is None else f"exit code {replica.exit_code}"
    if replica.exit_code is not None and not replica.disrupted:
        return f"{code}{last_words}"
    reason = ((replica.pod or {}).get("status") or {}).get("reason") or "lost"
    return f"{reason}, {code}{last_words}"


def _seconds_to_deadline(facts: KubeflowFacts) -> float | None:
    limit, start = facts.job.spec.policies.active_deadline_seconds, facts.job.status.start_time
    if limit is None or start is None:
        return None
    return (start + timedelta(seconds=limit) - facts.now).total_seconds()


def _clean_up(facts: KubeflowFacts, verdict: PhaseVerdict) -> Actions:
    """Delete pods by the clean-up policy, and the services of pods that are gone or have ended."""
    policy = _clean_pod_policy(facts)
    if policy == "All":
        gone = facts.pods
    else:
        gone = facts.live if policy == "Running" or verdict.reason in FORCED else []
    staying = {manifests.name_of(pod) for pod in facts.live if pod not in gone}
    services = [service for service in facts.services if manifests.name_of(service) not in staying]
    return _act(facts, verdict, facts.job.status.restarts, delete=delete_all([*gone, *services]))


def _clean_pod_policy(facts: KubeflowFacts) -> str:
    default = "None" if "keep-pods" in facts.job.compat else "Running"
    return facts.job.spec.policies.clean_pod_policy or default


def _suspend(facts: KubeflowFacts) -> Actions:
    job, restarts = facts.job, facts.job.status.restarts
    if not facts.pods:
        done = PhaseVerdict(
            KubeflowPhase.SUSPENDED, f"{job.kind}Suspended", f"{job.kind} {job.key} is suspended."
        )
        return _act(facts, done, restarts, delete=delete_all(facts.services))
    going = _next_to_stop(facts, facts.recorded_pods)
    return _act(facts, suspending_verdict(facts, KubeflowPhase.CREATED), restarts, delete=going)


def _next_to_stop(facts: KubeflowFacts, going: list[Manifest]) -> list[Deletion]:
    """The pods to delete now: parameter servers only after all other pods have ended, because a chief that
    saves a checkpoint when it is stopped needs them.
    """
    early = [pod for pod in going if manifests.get_label(pod, pods.TYPE_LABEL) != "ps"]
    running = [pod for pod in early if facts.holds_up(pod)]
    return delete_all(running or going)


def _report_conflict(facts: KubeflowFacts) -> Actions | None:
    """Report objects that have a name the job needs, but that the job does not own."""
    names = [(kind, replica.name) for replica in facts.replicas for kind in ("Pod", "Service")]
    group = pods.make_pod_group(facts.job)
    names += [(group["kind"], manifests.name_of(group))] if group else []
    obstacle = obstacles.find_conflict(facts.job, facts.observed, names)
    if obstacle is None:
        return None
    verdict = PhaseVerdict(_current_phase(facts).phase, obstacle.reason, obstacle.message)
    return requeue_within(_act(facts, verdict, facts.job.status.restarts), obstacle.seconds)


def _replace_pods(facts: KubeflowFacts, restarts: Mapping[str, ReplicaRestarts]) -> Actions:
    failed = [r for r in facts.replicas if r.failed and r.retryable and r.recorded and not r.completed]
    due = [r.pod for r in failed if r.pod is not None and not r.seconds_to_replacement(facts.now)]
    names = {replica.name for replica in facts.replicas}
    leftover = [service for service in facts.services if manifests.name_of(service) not in names]
    outlived = [] if _clean_pod_policy(facts) == "None" else facts.outlived
    going = delete_all([*facts.surplus, *due, *outlived, *leftover])
    waits = [seconds for r in failed if (seconds := r.seconds_to_replacement(facts.now))]
    actions = _act(facts, _current_phase(facts), restarts, create=_missing_objects(facts), delete=going)
    return requeue_within(actions, *waits)


def _missing_objects(facts: KubeflowFacts) -> list[Manifest]:
    """The missing objects, in the order of creation: the PodGroup before the pods, a service before its pod;
    none for a completed replica.
    """
    framework, job, settings = facts.framework, facts.job, facts.observed.settings
    services = {manifests.name_of(service) for service in facts.services}
    made = _missing_pod_group(facts)
    for replica in facts.replicas:
        if replica.completed:
            continue
        if replica.name not in services:
            made.append(pods.make_service(framework, job, replica.kind, replica.index))
        if replica.pod is None:
            made.append(pods.make_pod(framework, job, replica.kind, replica.index, settings))
    return made


def _missing_pod_group(facts: KubeflowFacts) -> list[Manifest]:
    """The PodGroup, if it may be missing or may differ from the spec.

    The controller does not watch PodGroups, because their CRD may not be installed. It learns of an existing
    one when a create fails with AlreadyExists.
    """
    group, status = pods.make_pod_group(facts.job), facts.job.status
    if group is None or _observed_pod_group(facts, group) is not None:
        return []
    edited = status.observed_generation != facts.job.metadata.generation
    # After an obstacle, the existing PodGroup may never have been observed.
    return [group] if edited or not facts.pods or status.reason in obstacles.REASONS else []


def _pod_group_patch(facts: KubeflowFacts) -> tuple[Patch, ...]:
    """The patch that gives an observed PodGroup the spec that the job wants."""
    group = pods.make_pod_group(facts.job)
    present = _observed_pod_group(facts, group) if group else None
    if group is None or present is None or not manifests.owned_by(present, facts.job):
        return ()
    change = pods.pod_group_change(present, group)
    body = {"metadata": {"resourceVersion": present["metadata"]["resourceVersion"]}, "spec": change}
    name = manifests.name_of(present)
    return (Patch(present["apiVersion"], present["kind"], name, body),) if change else ()


def _observed_pod_group(facts: KubeflowFacts, group: Manifest) -> Manifest | None:
    return facts.observed.find(group["kind"], manifests.name_of(group))


def _current_phase(facts: KubeflowFacts) -> PhaseVerdict:
    """The phase of a job that is neither suspended nor ended. Its previous phase distinguishes a start from a
    restart."""
    job, before = facts.job, facts.job.status.phase
    going = [r for r in facts.replicas if r.recorded or (r.failed and r.retryable)]
    if going:
        return _restarting(facts, f"{going[0].name} is being replaced ({_describe_end(going[0])})")
    waits = obstacles.why_pods_wait(facts.live)
    if any(replica.runs for replica in facts.deciding):
        message = waits or f"{job.kind} {job.key} is running."
        return PhaseVerdict(KubeflowPhase.RUNNING, f"{job.kind}Running", message)
    if before in (KubeflowPhase.RUNNING, KubeflowPhase.RESTARTING):
        return _restarting(facts, waits or "no replica that decides about the job runs")
    resumed = f"{job.kind}Resumed"
    again = before is KubeflowPhase.SUSPENDED or job.status.reason == resumed
    message = waits or f"{job.kind} {job.key} is created."
    return PhaseVerdict(KubeflowPhase.CREATED, resumed if again else f"{job.kind}Created", message)


def _restarting(facts: KubeflowFacts, cause: str) -> PhaseVerdict:
    job = facts.job
    message = f"{job.kind} {job.key} is restarting: {cause}."
    return PhaseVerdict(KubeflowPhase.RESTARTING, f"{job.kind}Restarting", message)


def _act(
    facts: KubeflowFacts,
    verdict: PhaseVerdict,
    restarts: Mapping[str, ReplicaRestarts],
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """All actions of a decision. Refused creates are reported in the status and tried again.

    The job is decided on again at its deadline at the latest, whatever else it waits for.
    """
    create = tuple(create)
    verdict, obstacle = apply_obstacle(facts, create, verdict)
    actions = Actions(
        create=create,
        delete=tuple(delete),
        patch=_pod_group_patch(facts),
        status=status_patch(facts, verdict, restarts),
        events=make_events(facts, verdict),
    )
    at_rest = verdict.phase.final or verdict.phase is KubeflowPhase.SUSPENDED
    deadline = None if at_rest else _seconds_to_deadline(facts)
    actions = settle_lost_pods(facts, actions)
    return requeue_within(actions, obstacle.seconds if obstacle else None, deadline)
