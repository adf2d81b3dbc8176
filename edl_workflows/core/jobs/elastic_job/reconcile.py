"""The pure state machine of an ElasticJob: its master, its phase, suspend and resume.

Training pods are made by `scale_plan.reconcile`, from the auto ScalePlans that the job's master creates. This
module only counts them, and deletes them when the job is suspended or has ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Observed, Patch
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.elastic_job.facts import ElasticJobFacts
from edl_workflows.core.jobs.elastic_job.missing_pods import (
    find_hopeless_role,
    missing_pods_event,
    why_pods_are_missing,
)
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase, ReplicaSpec
from edl_workflows.core.jobs.elastic_job.status import (
    add_progress_period,
    make_events,
    spec_replicas,
    status_delay,
    status_patch,
)
from edl_workflows.core.jobs.grace import needed_grace, template_grace
from edl_workflows.core.jobs.replicas.facts import seconds_to_restart
from edl_workflows.core.jobs.replicas.steps import requeue_within
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.jobs.scale_plan.model import POD_REFUSED
from edl_workflows.core.jobs.status import PhaseVerdict
from edl_workflows.core.kubernetes import names, pod_state

KEPT_PLANS = 10
"""Finished plans of a job that stay for users to read, of each scale type; older ones are deleted."""


DEADLINE_EXCEEDED = "DeadlineExceeded"
FATAL_EXIT_CODE = 1
"""A master that ends with this code has given the job up (upstream's rule). After any other nonzero code the
master is replaced.
"""


_NODE_TYPES = tuple(names.NODE_PORTS)
_WORKERS = (names.WORKER_TYPE, names.CHIEF_TYPE, names.EVALUATOR_TYPE)


def reconcile(job: ElasticJob, observed: Observed) -> Actions:
    """What to do about a job now."""
    facts = ElasticJobFacts.of(job, observed)
    # 1. Final phases never change; running pods are deleted, ended ones stay for their logs.
    status = job.status
    if status.phase is not None and status.phase.final:
        return _finished(facts, PhaseVerdict(status.phase, status.reason, status.message))
    # 2. The master's end is the job's end, unless it was an accident.
    if verdict := _verdict(facts):
        return _finished(facts, verdict)
    if message := find_hopeless_role(facts):
        return _finished(facts, PhaseVerdict(ElasticJobPhase.FAILED, POD_REFUSED, message))
    if (left := facts.seconds_to_deadline) is not None and left <= 0:
        message = f"the job ran for its {job.spec.active_deadline_seconds} s of activeDeadlineSeconds"
        return _finished(facts, PhaseVerdict(ElasticJobPhase.FAILED, DEADLINE_EXCEEDED, message))
    # 3. Suspended: no pods.
    if job.spec.suspend:
        return _suspend(facts)
    # 4. Foreign objects have names that the job needs.
    needed = _needed(facts)
    if blocked := _blocked(facts, needed):
        return blocked
    # 5. The master and what it needs; changes of the spec.
    return _run(facts, needed)


def _finished(facts: ElasticJobFacts, outcome: PhaseVerdict) -> Actions:
    if outcome.reason == DEADLINE_EXCEEDED and facts.live(*_NODE_TYPES, names.MASTER_TYPE):
        return _act(facts, outcome, delete=_stop_next(facts))
    live = facts.live(*_NODE_TYPES, names.MASTER_TYPE)
    return _act(facts, outcome, delete=_delete([*live, *facts.services]))


def _verdict(facts: ElasticJobFacts) -> PhaseVerdict | None:
    """How the job ended, according to the end of its newest master; None while the job has not ended."""
    master = facts.master
    if master is None or not pod_state.has_ended(master):
        return None
    if pod_state.pod_phase(master) == "Succeeded":
        return PhaseVerdict(ElasticJobPhase.SUCCEEDED, "JobSucceeded")
    if manifests.is_terminating(master) or _disrupted(master):
        return None
    code = pod_state.own_end(master).get("exitCode")
    how = "could not run" if code is None else f"ended with exit code {code}"
    log = f"{manifests.last_words(master)}; see `{_log_command(facts.job, master)}`"
    failure = facts.job.status.failure
    if failure:
        return PhaseVerdict(
            ElasticJobPhase.FAILED,
            failure.get("reason", "MasterFailed"),
            failure.get("message", log.lstrip(":; ")),
        )
    if code == FATAL_EXIT_CODE or manifests.refused_by_node(master):
        return PhaseVerdict(ElasticJobPhase.FAILED, "MasterFailed", f"the master {how}{log}")
    if facts.failures_before_master >= _restart_limit(facts):
        message = f"the master {how} after {facts.failures_before_master} restarts{log}"
        return PhaseVerdict(ElasticJobPhase.FAILED, "MasterRestartsExhausted", message)
    return None


def _log_command(job: ElasticJob, master: Manifest) -> str:
    node = f"{names.MASTER_TYPE}-{manifests.index_of(master)}"
    return f"edl logs {job.metadata.name} {node} --namespace {job.metadata.namespace}"


def _disrupted(master: Manifest) -> bool:
    """Whether the master ended through no fault of its own, so that its end does not count against the
    restart budget."""
    return manifests.was_disrupted(master) and not manifests.refused_by_node(master)


def _restart_limit(facts: ElasticJobFacts) -> int:
    return (pods.role_spec(facts.job, names.MASTER_TYPE) or ReplicaSpec()).restart_count


def _suspend(facts: ElasticJobFacts) -> Actions:
    live = facts.live(*_NODE_TYPES, names.MASTER_TYPE)
    if not live:
        return _act(facts, PhaseVerdict(ElasticJobPhase.SUSPENDED, "JobSuspended"))
    message = f"pods that have not ended yet: {len(live)}"
    outcome = PhaseVerdict(facts.job.status.phase or ElasticJobPhase.PENDING, "Suspending", message)
    return _act(facts, outcome, delete=_stop_next(facts))


def _stop_next(facts: ElasticJobFacts) -> Iterator[Deletion]:
    """Stop workers first: the chief saves a checkpoint before its pod ends, for which it needs the servers
    and the master. Pods get the time that saves took, whatever their templates allow."""
    going = facts.live(*_WORKERS) or facts.live(names.PS_TYPE, names.MASTER_TYPE)
    for deletion in _delete(going):
        yield replace(deletion, grace_seconds=_last_grace(facts))


def _last_grace(facts: ElasticJobFacts) -> int:
    """The longest grace that a template allows, or a longer one if the last checkpoint needs it."""
    checkpoint = facts.job.status.checkpoint
    needed = needed_grace(checkpoint.save_seconds if checkpoint is not None else 0.0)
    return max(needed, *(template_grace(spec.template) for spec in facts.job.spec.replica_specs.values()))


def _needed(facts: ElasticJobFacts) -> list[Manifest]:
    """The objects that a master needs, in the order of creation. If its template names a ServiceAccount, none
    is made here, and its rights come from elsewhere.
    """
    job = facts.job
    own_account = (pods.master_account, pods.master_role, pods.master_role_binding)
    return [
        pods.token_secret(job, facts.observed.new_token),
        pods.state_config_map(job),
        *(make(job) for make in own_account if not pods.master_account_named(job, facts.observed.settings)),
        pods.master_service(job),
        pods.nodes_service(job),
    ]


def _find(facts: ElasticJobFacts, child: Manifest) -> Manifest | None:
    return facts.observed.find(child["kind"], manifests.name_of(child))


def _blocked(facts: ElasticJobFacts, needed: Sequence[Manifest]) -> Actions | None:
    names_of_ours = [(m["kind"], manifests.name_of(m)) for m in (*needed, *_new_master(facts))]
    obstacle = obstacles.find_conflict(facts.job, facts.observed, names_of_ours)
    if obstacle is None:
        return None
    phase = _phase(facts).phase if facts.master_runs else ElasticJobPhase.PENDING
    outcome = PhaseVerdict(phase, obstacle.reason, obstacle.message)
    return replace(_act(facts, outcome), requeue_after=obstacle.seconds)


def _run(facts: ElasticJobFacts, needed: Sequence[Manifest]) -> Actions:
    missing = [child for child in needed if _find(facts, child) is None]
    # The master is created only after everything that it needs: it must never start with a foreign token. The
    # loop stops at a create that is refused or whose name is taken.
    refused = {(r.kind, r.name) for r in facts.observed.refused}
    complete = not any((m["kind"], manifests.name_of(m)) in refused for m in missing)
    create = (*missing, *(_new_master(facts) if complete else ()))
    replaced = facts.masters[:-1]
    disrupted = [p for p in replaced if pod_state.has_ended(p) and _disrupted(p)]
    outlived = [p for p in replaced if pod_state.outliving_containers(p)]
    # Their state is fenced and their names are not used again. While they exist, agents would ask them, too.
    gone = [p for p in replaced if facts.is_gone(p) and not manifests.waits_for_finalizer(p)]
    ended = _delete([*disrupted, *outlived, *_old_pods(facts)])
    delete = (*ended, *map(manifests.delete_by_force, gone))
    new = facts.job.status.phase in (None, ElasticJobPhase.CREATED)
    outcome = _phase(facts) if complete or not new else PhaseVerdict(ElasticJobPhase.CREATED, "JobCreated")
    actions = _act(facts, outcome, create=create, delete=delete)
    actions = replace(actions, patch=(*actions.patch, *_role_changes(facts, needed)))
    return requeue_within(actions, _until_restart(facts) or None)


def _role_changes(facts: ElasticJobFacts, needed: Sequence[Manifest]) -> Iterator[Patch]:
    """Give the master's role the rights of this version: it may be older than the next master."""
    for child in needed:
        current = _find(facts, child)
        if current is not None and current.get("rules") != child.get("rules"):
            version = {"resourceVersion": current["metadata"]["resourceVersion"]}
            body = {"metadata": version, "rules": child["rules"]}
            yield Patch(child["apiVersion"], child["kind"], manifests.name_of(current), body)


def _old_pods(facts: ElasticJobFacts) -> Iterator[Manifest]:
    """Ended and replaced pods beyond the history limit; on unreliable nodes they would accumulate."""
    limit = facts.job.spec.fault_tolerance.replaced_pods_history_limit
    for replaced in facts.replaced().values():
        yield from replaced[: max(0, len(replaced) - limit)]


def _phase(facts: ElasticJobFacts) -> PhaseVerdict:
    """The phase of a job that is not suspended and has not ended. Its previous phase distinguishes a start
    from a restart."""
    before = facts.job.status.phase
    if facts.master_runs:
        plan = facts.plan_in_progress
        if plan is not None:
            return PhaseVerdict(
                ElasticJobPhase.SCALING, "JobScaling", f"ScalePlan {plan.metadata.name}: {plan.status.phase}"
            )
        message = obstacles.why_pods_wait(facts.nodes) or why_pods_are_missing(facts)
        return PhaseVerdict(ElasticJobPhase.RUNNING, "JobRunning", message)
    message = obstacles.why_pods_wait(facts.masters[-1:])
    if before in (ElasticJobPhase.RUNNING, ElasticJobPhase.SCALING, ElasticJobPhase.RESTARTING):
        return PhaseVerdict(ElasticJobPhase.RESTARTING, "JobRestarting", message or _last_end(facts))
    ended = facts.master is not None and pod_state.has_ended(facts.master)
    return PhaseVerdict(ElasticJobPhase.PENDING, "JobPending", message or (_last_end(facts) if ended else ""))


def _last_end(facts: ElasticJobFacts) -> str:
    """Why a master is being replaced."""
    for master in reversed(facts.masters):
        code = pod_state.own_end(master).get("exitCode")
        if code is not None or manifests.failed_init_container(master):
            how = "could not start" if code is None else f"ended with exit code {code}"
            limit, last_words = _restart_limit(facts), manifests.last_words(master)
            return f"{manifests.name_of(master)} {how} (restarts: at most {limit}){last_words}"
    newest = facts.master
    if newest is not None and manifests.is_terminating(newest):
        return f"pod {manifests.name_of(newest)} is being deleted and will be replaced"
    return "the master's pod is gone and is being replaced"


def _new_master(facts: ElasticJobFacts) -> tuple[Manifest, ...]:
    """The next master pod, if one is to be made now.

    While the old one is being deleted, none is made, unless nobody confirms the old one's end: if it still
    runs on a lost machine, it can't write any more once the new one has started (`ConfigMapStore`). Disrupted
    and deleted masters do not count against the restart budget; failed ones do, and each further replacement
    waits longer.
    """
    master = facts.master
    if master is None:
        return (_master_pod(facts, facts.restarts, facts.restarts),)
    if facts.is_gone(master):
        return (_master_pod(facts, manifests.index_of(master) + 1, facts.restarts),)
    if not pod_state.has_ended(master) or manifests.is_terminating(master) or _until_restart(facts) > 0:
        return ()
    failures = facts.failures_before_master + (0 if _disrupted(master) else 1)
    return (_master_pod(facts, manifests.index_of(master) + 1, max(facts.restarts, failures)),)


def _master_pod(facts: ElasticJobFacts, index: int, restarts: int) -> Manifest:
    return pods.master_pod(facts.job, index, restarts, facts.observed.settings)


def _until_restart(facts: ElasticJobFacts) -> float:
    """Seconds until a failed master's successor is made."""
    master = facts.master
    if master is None or not pod_state.has_ended(master) or _disrupted(master):
        return 0.0
    ended = manifests.failed_init_container(master) or pod_state.own_end(master)
    finished = manifests.parse_time(ended.get("finishedAt"))
    return seconds_to_restart(facts.failures_before_master + 1, finished, facts.now)


def _act(
    facts: ElasticJobFacts,
    outcome: PhaseVerdict,
    create: Iterable[Manifest] = (),
    delete: Iterable[Deletion] = (),
) -> Actions:
    """All actions of a decision: the children, the plan made from an edit of the spec, the deletion of old
    plans, the status.

    Refused creations are reported in the status and tried again. An edit counts as seen only once its plan
    exists.
    """
    plan = _spec_plan(facts, outcome)
    earlier = any(_find(facts, manifest) for manifest in plan)  # of a deleted job with this name
    create = (*create, *(() if earlier else plan))
    obstacle = obstacles.find_refusal(facts.observed, create)
    if obstacle is not None:
        outcome = PhaseVerdict(outcome.phase, obstacle.reason, obstacle.message)
    seen = facts.job.status.spec_replicas if plan and (obstacle or earlier) else spec_replicas(facts)
    retry = obstacles.GARBAGE_SECONDS if earlier else None
    status = status_patch(facts, outcome, seen)
    actions = Actions(
        create=create,
        delete=(*delete, *_old_plans(facts)),
        status=add_progress_period(facts, outcome, status),
        status_may_wait=status_delay(facts.job.status, status),
        events=(*make_events(facts, outcome), *missing_pods_event(facts, outcome)),
        requeue_after=obstacle.seconds if obstacle else retry,
    )
    deadline = None if outcome.phase.final else facts.seconds_to_deadline
    return requeue_within(actions, facts.until_gone, deadline)


def _spec_plan(facts: ElasticJobFacts, outcome: PhaseVerdict) -> tuple[Manifest, ...]:
    """The manual plan for an edit of ``replicas``. It is named after the generation, so that a repeated
    decision makes no second plan.
    """
    job, recorded = facts.job, facts.job.status.spec_replicas
    changed = {role: n for role, n in spec_replicas(facts).items() if recorded.get(role, 0) != n}
    if not recorded or not changed or outcome.phase.final:
        return ()
    name = names.spec_plan_name(job.metadata.name, job.metadata.generation)
    if any(plan.metadata.name == name for plan in facts.plans):
        return ()
    made = manifests.elastic_job_child(
        names.API_VERSION, SCALE_PLAN, name, job, {names.SCALE_TYPE_LABEL: names.SCALE_MANUAL}
    )
    made["metadata"]["ownerReferences"] = [manifests.owner_reference(job, controller=False)]
    resource_specs = {role: {"replicas": replicas} for role, replicas in changed.items()}
    made["spec"] = {"ownerJob": job.metadata.name, "replicaResourceSpecs": resource_specs}
    return (made,)


def _old_plans(facts: ElasticJobFacts) -> Iterator[Deletion]:
    for auto in (True, False):  # so that auto plans do not displace manual ones
        finished = [p.metadata for p in facts.plans if p.finished and p.auto is auto]
        for metadata in finished[:-KEPT_PLANS]:
            yield Deletion(names.API_VERSION, SCALE_PLAN, metadata.name, metadata.uid)


def _delete(objects: Iterable[Manifest]) -> tuple[Deletion, ...]:
    """Deletions of the objects that are not being deleted already."""
    return tuple(manifests.delete_object(o) for o in objects if not manifests.is_terminating(o))
