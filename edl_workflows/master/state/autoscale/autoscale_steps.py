"""Between the master's own plans (`autoscaling`) and the rest of the state: when the optimizer is asked, what its answer does,
what becomes of its plan, and nodes that find no place.

A plan is stored before its ScalePlan is made, under a name that a repetition finds again, and is then carried out as anybody's.
Whether or not it may be, it stands in the job's status.

The job as planners see it (`edl_workflows.scaling.dlrover.resources.OptimizerJob`), read from the master's state.
"""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.jobs.scale_plan import model
from edl_workflows.jobs.scale_plan.model import NodeResource, ScalePlanPhase, ScalePlanSpec
from edl_workflows.master.state.autoscale import own_plans
from edl_workflows.master.state.autoscale.own_plans import (
    STARTING_SAMPLES,
    AutoscalingIntervals,
    AutoscalingState,
    OptimizerAnswer,
)
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.nodes import replicas
from edl_workflows.master.state.nodes.registry import JobNode, NodeStatus
from edl_workflows.master.state.plans.plan_run import PlanRun
from edl_workflows.master.state.settings import MIB, merge_resources
from edl_workflows.master.state.versions import cluster_versions
from edl_workflows.master.state.versions.cluster_versions import ChangeCause
from edl_workflows.protocol.nodes import ServerChanges
from edl_workflows.scaling.dlrover import resources
from edl_workflows.scaling.dlrover.allreduce import WorldSize, workers_plan
from edl_workflows.scaling.dlrover.ps_stages import (
    OptimizerStage,
    StageProgress,
    advance_stage,
    optimize_locally,
)
from edl_workflows.scaling.dlrover.recovery import PENDING_SECONDS, pending_cut_plan
from edl_workflows.scaling.dlrover.resources import (
    OptimizerJob,
    OptimizerRole,
    Range,
    ResourceLimits,
    ResourcePlan,
    UserBounds,
    empty_plan,
    scale_plan_spec,
)
from edl_workflows.scaling.dlrover.samples import NodeSample

MAX_REASON = 4_096
"""Characters of a ScalePlan's reason."""
MAX_NOTES = 20


@dataclass(frozen=True)
class OptimizerRequest:
    """What the optimizer is asked about.

    Attributes:
        progress: how far the job is.
        job: as it is, with its samples.
        brain: whether Brain is to be asked (mode cluster).
        world: of a collective job: what its rendezvous allows.
    """

    progress: StageProgress
    job: OptimizerJob
    brain: bool = False
    world: WorldSize | None = None


def autoscaling_intervals(state: JobState) -> AutoscalingIntervals:
    """The job's intervals."""
    return AutoscalingIntervals(state.settings.timeouts.autoscale)


def plans_own_size(state: JobState) -> bool:
    """Whether the master plans at all."""
    return state.settings.optimizing.mode is not OptimizeMode.MANUAL


def uses_brain(state: JobState) -> bool:
    """Whether the job's plans come from Brain, as long as it answers; those of collective jobs, for which it has no rule, never
    do, but it is told of them."""
    return state.settings.optimizing.mode is OptimizeMode.CLUSTER


def take_sample(state: JobState, now: float) -> None:
    """Takes a sample of the job as it is."""
    state.statistics.take_sample(state.steps.step, usage_of(state), now)
    active = state.versions.active
    if state.settings.collective and active is not None and state.versions.settled:
        state.statistics.take_world_speed(len(active.members))


def first_request(state: JobState, now: float) -> OptimizerRequest | None:
    """What a new job's optimizer is asked before any node is made; None for another job."""
    if state.settings.collective:
        return None  # how many workers it begins with is part of its batch
    new = state.autoscaling.progress.stage is OptimizerStage.CREATE and not state.nodes.next_ids
    return (
        OptimizerRequest(StageProgress(), planned_job(state, now), uses_brain(state))
        if new and plans_own_size(state)
        else None
    )


def take_first_answer(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    """Takes the answer to `first_request`: nothing runs yet, so no ScalePlan is needed to begin with other numbers."""
    if state.settings.optimizing.allowed:
        for role, wanted in scale_plan_spec(answer.plan, asked.job).replica_resource_specs.items():
            state.counts[role] = state.counts.get(role, 0) if wanted.replicas is None else wanted.replicas
            state.sizes[role] = merge_resources(wanted.resource, state.sizes.get(role, NodeResource()))
    _show(state, asked, answer, now)
    state.autoscaling = replace(state.autoscaling, progress=answer.progress)


def next_request(state: JobState, now: float) -> OptimizerRequest | None:
    """What the optimizer is to be asked now; None while nothing is."""
    if not plans_own_size(state) or state.settings.suspend or state.outcome is not None:
        return None
    # A job that was begun without being asked about is past its creation.
    progress = state.autoscaling.progress
    if progress.stage is OptimizerStage.CREATE:
        progress = replace(progress, stage=OptimizerStage.WORKER_INITIAL)
    if not _trains(state) or _plan_under_way(state):
        return None
    if now - state.statistics.same_since < autoscaling_intervals(state).steady:
        return None
    if state.settings.optimizing.allowed and state.autoscaling.rests(autoscaling_intervals(state), now):
        return None
    if state.settings.collective:
        said = state.rendezvous
        size = WorldSize(said.min_nodes, said.max_nodes, said.node_unit, dict(state.statistics.world_speeds))
        return OptimizerRequest(
            replace(progress, stage=OptimizerStage.RUNNING), planned_job(state, now), world=size
        )
    return OptimizerRequest(progress, planned_job(state, now), uses_brain(state))


def answer_if_too_early(asked: OptimizerRequest) -> OptimizerAnswer | None:
    """The answer for a job of which too little is known to begin with; None where an optimizer is to be asked."""
    made = sum(1 for sample in asked.job.samples if sample.speed > 0)
    if asked.progress.stage is not OptimizerStage.WORKER_INITIAL or made >= STARTING_SAMPLES:
        return None
    note = f"{made} samples show progress, {STARTING_SAMPLES} are needed to begin"
    return OptimizerAnswer(empty_plan(note, waiting=True), asked.progress)


def local_answer(asked: OptimizerRequest, now: float) -> OptimizerAnswer:
    """What the local optimizer says."""
    if asked.world is not None:
        return OptimizerAnswer(workers_plan(asked.job, asked.world), asked.progress)
    return answer_if_too_early(asked) or OptimizerAnswer(
        *advance_stage(asked.progress, asked.job, now, optimize_locally)
    )


def take_answer(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    """Takes the answer to `next_request`: shows it, and decides on it where the master may. Forgets it if the job has changed
    since it was asked about."""
    present = next_request(state, now)
    if present is None or _shape(present.job) != _shape(asked.job):
        return
    plan = answer.plan
    if plan.empty:
        state.autoscaling = replace(state.autoscaling, progress=answer.progress)
    elif state.settings.optimizing.allowed:
        state.autoscaling = own_plans.open_plan(
            state.autoscaling, _spec(plan, asked.job), answer.progress, now
        )
    _show(state, asked, answer, now)


def settle_autoscaling(state: JobState, now: float) -> None:
    """Follows the open plan, and cuts nodes that find no place."""
    if state.autoscaling.shown is not None and not plans_own_size(state):
        # Somebody else decides now; a plan that is under way goes on.
        state.autoscaling = replace(state.autoscaling, shown=None)
    _follow(state, now)
    if state.settings.optimizing.allowed and plans_own_size(state):
        _cut_pending(state, now)


def note_refused_plan(state: JobState, number: int, why: str, now: float) -> None:
    """The ScalePlan of the open plan can't be made."""
    about = state.autoscaling
    if about.open is not None and about.open.number == number:
        _fail(state, f"{about.open.name(state.settings.name)} could not be made: {why}", now)


def why_forbidden(state: JobState, run: PlanRun) -> str:
    """Why a plan that the master made for itself must not begin any more; "" for any other plan.

    A pipeline's scale stage switches autoscaling off: its number must stay, even where the master's plan comes after its.
    """
    made = range(1, state.autoscaling.last_number + 1)
    own = run.name in {names.own_plan_name(state.settings.name, number) for number in made[-2:]}
    if not own or (state.settings.optimizing.allowed and plans_own_size(state)):
        return ""
    return "autoscaling of the job was switched off"


def _trains(state: JobState) -> bool:
    return state.versions.settled and state.steps.step > 0


def _plan_under_way(state: JobState) -> bool:
    if state.plan is not None or state.autoscaling.open is not None:
        return True
    return any(
        seen.uid not in state.finished_plans and not (seen.phase is not None and seen.phase.final)
        for seen in state.plans_seen or ()
    )


def _spec(plan: ResourcePlan, job: OptimizerJob) -> ScalePlanSpec:
    reason = "; ".join(f"{key}: {why}" for key, why in sorted(plan.reasons.items()))
    return scale_plan_spec(plan, job).model_copy(update={"reason": reason[:MAX_REASON]})


def _shape(job: OptimizerJob) -> object:
    """What of a job makes an answer about it out of date when it changes."""
    return job.roles, job.limits, {(n.name, n.resource, n.pending_since is None) for n in job.nodes}


def _show(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    plan, about, optimizing = answer.plan, state.autoscaling, state.settings.optimizing
    spec = scale_plan_spec(plan, asked.job)
    notes = [*plan.notes, *_own_notes(about, optimizing.problem)]
    fresh = AutoscalingStatus(
        optimizer=answer.optimizer,
        stage=asked.progress.stage,
        replica_resource_specs=spec.replica_resource_specs,
        migrate_pods=spec.migrate_pods,
        reasons=dict(plan.reasons),
        notes=notes[:MAX_NOTES],
        time=datetime.fromtimestamp(math.floor(now), UTC),
    )
    before = about.shown
    if before is None or before.model_copy(update={"time": fresh.time}) != fresh:
        state.autoscaling = replace(about, shown=fresh)


def _own_notes(about: AutoscalingState, problem: str) -> list[str]:
    said = [problem] if problem else []
    return [*said, f"the last plan failed: {about.problem}"] if about.problem else said


def _follow(state: JobState, now: float) -> None:
    plan = state.autoscaling.open
    if plan is None:
        return
    name = plan.name(state.settings.name)
    run = state.plan if state.plan is not None and state.plan.name == name else None
    listed = next((seen for seen in state.plans_seen or () if seen.name == name), None)
    phase = run.phase if run is not None else listed.phase if listed is not None else None
    if phase is ScalePlanPhase.SUCCEEDED:
        state.autoscaling = own_plans.close_succeeded_plan(state.autoscaling, name)
    elif phase is ScalePlanPhase.FAILED:
        why = f"{run.reason}: {run.message}" if run is not None else "see its status"
        _fail(state, f"{name} ({why})", now)
    elif listed is not None:
        state.autoscaling = own_plans.mark_plan_seen(state.autoscaling)
    elif run is None and plan.seen and state.plans_seen is not None:
        _fail(state, f"{name} was deleted", now)
    elif run is None and not plan.seen and not (state.settings.optimizing.allowed and plans_own_size(state)):
        state.autoscaling = own_plans.withdraw_plan(state.autoscaling)


def _fail(state: JobState, why: str, now: float) -> None:
    about = own_plans.close_failed_plan(state.autoscaling, why, now)
    if about.shown is not None:
        notes = [*about.shown.notes[: MAX_NOTES - 1], f"the last plan failed: {about.problem}"]
        about = replace(about, shown=about.shown.model_copy(update={"notes": notes}))
    state.autoscaling = about


def _cut_pending(state: JobState, now: float) -> None:
    """Nodes that have waited too long for a place are made anew, smaller; each is looked at once. A plan's own servers are
    the plan's matter."""
    late = {node for node, since in state.pending_since.items() if now - since > PENDING_SECONDS}
    change = state.versions.change
    if late <= state.uncut or (change is not None and change.cause is ChangeCause.PLAN):
        return
    state.uncut |= late
    job = planned_job(state, now)
    plan = pending_cut_plan(job, now)
    if not plan.node_resources:
        return
    sizes = {pod.name: pod.resource for pod in scale_plan_spec(plan, job).migrate_pods}
    for pod, size in sizes.items():
        node = state.nodes.by_pod(state.settings.name, pod)
        assert node is not None, "it was planned for what is there"
        why = f"{node} is made smaller: {plan.reasons[pod]}"
        _make_anew(state, node, merge_resources(size, node.resource), why, now)
    progress = state.autoscaling.progress
    _show(state, OptimizerRequest(progress, job), OptimizerAnswer(plan, progress), now)


def _make_anew(state: JobState, node: JobNode, size: NodeResource, why: str, now: float) -> None:
    replicas.replace_nodes(state.nodes, [(node, size)], now)
    fresh = state.nodes.at_rank(node.type, node.rank)
    assert fresh is not None, "it was just made"
    state.nodes.change(fresh, why=why)
    if node.type == names.PS_TYPE:
        state.versions = cluster_versions.follow_replacements(state.versions, {node.id: fresh.id})


def planned_job(state: JobState, now: float) -> OptimizerJob:
    """The job now. Nodes that were released don't count, even while their pods still end."""
    nodes = tuple(_node(state, node, now) for node in state.nodes if node.live)
    roles = {role: _role(state, role) for role in state.settings.roles}
    return OptimizerJob(state.settings.name, roles, _limits(state), nodes, tuple(state.statistics.samples))


def job_with_oom(state: JobState, node: JobNode, now: float) -> OptimizerJob:
    """The job, and beside its nodes the one that ran out of memory. Who must be made anew may get more memory even where
    no autoscaler may change the role."""
    job = planned_job(state, now)
    ill = replace(_node(state, node, now), pending_since=None, oom=True)
    role = replace(job.roles[node.type], auto_scale=True)
    return replace(job, roles={**job.roles, node.type: role}, nodes=(*job.nodes, ill))


def usage_of(state: JobState) -> tuple[NodeSample, ...]:
    """What the nodes use, as far as they say it. Of a collective job's workers, those that train."""
    known = state.statistics.usage
    idle = state.joined.keys() - {node.id for node in state.trainers} if state.settings.collective else set()
    return tuple(
        NodeSample(_pod(state, node), node.type, known[str(node)].cpu, known[str(node)].memory)
        for node in state.nodes
        if node.live and node.registered and str(node) in known
        if not (node.type == names.WORKER_TYPE and node.id in idle)
    )


def _pod(state: JobState, node: JobNode) -> str:
    return names.node_name(state.settings.name, node.type, node.id)


def _node(state: JobState, node: JobNode, now: float) -> resources.OptimizerNode:
    size = merge_resources(node.resource, state.settings.roles[node.type].resource)
    pending = None
    if node.status is not NodeStatus.RUNNING:
        pending = state.pending_since.get(str(node), now)
    elif not node.registered:
        pending = now  # its pod runs, and its agent has not said so yet
    return resources.OptimizerNode(
        _pod(state, node), node.type, node.id, resources.node_size_of(size), pending
    )


def _role(state: JobState, name: str) -> OptimizerRole:
    role, optimizing = state.settings.roles[name], state.settings.optimizing
    size = merge_resources(state.sizes.get(name, model.NodeResource()), role.resource)
    bounds = UserBounds()
    if name == names.WORKER_TYPE and state.settings.collective:
        allowed = state.rendezvous
        low, high = optimizing.workers or (allowed.min_nodes, allowed.max_nodes)
        bounds = UserBounds(count=Range(max(low, allowed.min_nodes), min(high, allowed.max_nodes)))
    elif name == names.WORKER_TYPE and optimizing.workers is not None:
        bounds = UserBounds(count=Range(*optimizing.workers))
    auto_scale = role.auto_scale
    if name == names.PS_TYPE and state.servers is not None and state.servers.changes is not ServerChanges.ANY:
        count = state.counts.get(name, 0)
        bounds = replace(bounds, count=Range(count, count))
        auto_scale = auto_scale and state.servers.changes is ServerChanges.SAME_COUNT
    return OptimizerRole(state.counts.get(name, 0), resources.node_size_of(size), auto_scale, bounds)


def _limits(state: JobState) -> ResourceLimits:
    said = dict(state.settings.limits)
    if "memory" in said:
        said["memory"] /= MIB
    return replace(ResourceLimits(), **said)
