"""Connects the autoscaling of the master's own job with the rest of the state: when the optimizer is asked,
how its answer is applied, and how nodes that stay pending are shrunk. Also describes the job to optimizers
(`optimizer_job`).

A decision is stored before its ScalePlan is created, under a name derived from its number, and is then
carried out like any manual plan. The job's status shows the advice even if the master may not carry it out.
"""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.core.jobs.scale_plan import model
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.metrics import choose_charted
from edl_workflows.core.protocol.nodes import ServerChanges
from edl_workflows.core.scaling.dlrover import resources
from edl_workflows.core.scaling.dlrover.allreduce import WorldSize, advise_worker_count
from edl_workflows.core.scaling.dlrover.ps_stages import (
    OptimizerStage,
    StageProgress,
    advance_stage,
    optimize_locally,
)
from edl_workflows.core.scaling.dlrover.recovery import PENDING_SECONDS, advise_pending_cut
from edl_workflows.core.scaling.dlrover.resources import (
    Advice,
    OptimizerJob,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
    empty_advice,
    scale_plan_spec,
)
from edl_workflows.core.scaling.dlrover.samples import NodeSample
from edl_workflows.services.master.state.autoscale import autoscale_state
from edl_workflows.services.master.state.autoscale.autoscale_state import (
    STARTING_SAMPLES,
    AutoscalingIntervals,
    AutoscalingState,
    OptimizerAnswer,
)
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeStatus
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import MIB, merge_resources
from edl_workflows.services.master.state.versions import cluster_versions
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause

MAX_REASON = 4_096
"""Characters of a ScalePlan's reason."""
MAX_NOTES = 20


@dataclass(frozen=True)
class OptimizerRequest:
    """A question to the optimizer.

    Attributes:
        progress: the optimizer's progress with the job.
        job: the job with its samples.
        brain: whether Brain is asked (`optimizeMode: cluster`).
        world: which group sizes the rendezvous of a collective job allows.
    """

    progress: StageProgress
    job: OptimizerJob
    brain: bool = False
    world: WorldSize | None = None


def autoscaling_intervals(state: JobState) -> AutoscalingIntervals:
    return AutoscalingIntervals(state.settings.timeouts.autoscale)


def scales_itself(state: JobState) -> bool:
    """Whether the master changes counts and sizes at all."""
    return state.settings.optimizing.mode is not OptimizeMode.MANUAL


def uses_brain(state: JobState) -> bool:
    """Whether the job's advice comes from Brain as long as it answers.

    Brain has no rules for collective jobs: it receives their samples, but their advice is made locally.
    """
    return state.settings.optimizing.mode is OptimizeMode.CLUSTER


def record_sample(state: JobState, now: float) -> None:
    statistics = state.volatile.statistics
    charted = choose_charted(statistics.metrics, state.history.metric_names)
    statistics.record_sample(state.steps.step, usage_of(state), now, charted)
    active = state.versions.active
    if state.settings.collective and active is not None and state.versions.settled:
        state.volatile.statistics.record_world_speed(len(active.members))


def first_request(state: JobState, now: float) -> OptimizerRequest | None:
    """The question to ask about a new job before any node is created; None for any other job."""
    if state.settings.collective:
        return None  # its global batch depends on the number of workers it begins with
    new = state.autoscaling.progress.stage is OptimizerStage.CREATE and not state.nodes.next_ids
    return (
        OptimizerRequest(StageProgress(), optimizer_job(state, now), uses_brain(state))
        if new and scales_itself(state)
        else None
    )


def apply_first_answer(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    """Apply the answer to `first_request`. No node exists yet, so the counts change without a ScalePlan."""
    if state.settings.optimizing.allowed:
        for role, request in scale_plan_spec(answer.advice, asked.job).replica_resource_specs.items():
            state.counts[role] = state.counts.get(role, 0) if request.replicas is None else request.replicas
            state.sizes[role] = merge_resources(request.resource, state.sizes.get(role, NodeResource()))
    _show_answer(state, asked, answer, now)
    state.autoscaling = replace(state.autoscaling, progress=answer.progress)


def next_request(state: JobState, now: float) -> OptimizerRequest | None:
    """The question to ask now; None if there is none."""
    if not scales_itself(state) or state.settings.suspend or state.outcome is not None:
        return None
    # No optimizer was asked when this job was created, and it is too late for that stage now.
    progress = state.autoscaling.progress
    if progress.stage is OptimizerStage.CREATE:
        progress = replace(progress, stage=OptimizerStage.WORKER_INITIAL)
    if not (state.versions.settled and state.steps.step > 0) or _plan_under_way(state):
        return None
    if now - state.volatile.statistics.same_since < autoscaling_intervals(state).steady:
        return None
    if state.settings.optimizing.allowed and state.autoscaling.rests(autoscaling_intervals(state), now):
        return None
    if state.settings.collective:
        limits = state.rendezvous
        size = WorldSize(
            limits.min_nodes, limits.max_nodes, limits.node_unit, dict(state.volatile.statistics.world_speeds)
        )
        return OptimizerRequest(
            replace(progress, stage=OptimizerStage.RUNNING), optimizer_job(state, now), world=size
        )
    return OptimizerRequest(progress, optimizer_job(state, now), uses_brain(state))


def answer_if_too_early(asked: OptimizerRequest) -> OptimizerAnswer | None:
    """The answer for a job that has too few samples; None if an optimizer must be asked."""
    made = sum(1 for sample in asked.job.samples if sample.speed > 0)
    if asked.progress.stage is not OptimizerStage.WORKER_INITIAL or made >= STARTING_SAMPLES:
        return None
    note = f"{made} samples show progress; {STARTING_SAMPLES} are needed to begin"
    return OptimizerAnswer(empty_advice(note, waiting=True), asked.progress)


def local_answer(asked: OptimizerRequest, now: float) -> OptimizerAnswer:
    if asked.world is not None:
        return OptimizerAnswer(advise_worker_count(asked.job, asked.world), asked.progress)
    return answer_if_too_early(asked) or OptimizerAnswer(
        *advance_stage(asked.progress, asked.job, now, optimize_locally)
    )


def apply_answer(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    """Store an optimizer's answer to `next_request`: open a ScalePlan if the master may carry the advice out,
    and show the answer in the job's status.

    The answer is dropped if the job has changed since the request.
    """
    present = next_request(state, now)
    if present is None or _shape_of(present.job) != _shape_of(asked.job):
        return
    if answer.advice.empty:
        state.autoscaling = replace(state.autoscaling, progress=answer.progress)
    elif state.settings.optimizing.allowed:
        state.autoscaling = autoscale_state.open_plan(
            state.autoscaling, _plan_spec(answer.advice, asked.job), answer.progress, now
        )
    _show_answer(state, asked, answer, now)


def settle_autoscaling(state: JobState, now: float) -> None:
    """Follow the open plan, and shrink nodes that stay pending."""
    if state.autoscaling.shown is not None and not scales_itself(state):
        # The master no longer decides; a plan under way continues.
        state.autoscaling = replace(state.autoscaling, shown=None)
    _withdraw_old_advice(state)
    _follow_open_plan(state, now)
    if state.settings.optimizing.allowed and scales_itself(state):
        _shrink_pending(state, now)


def _withdraw_old_advice(state: JobState) -> None:
    """While a plan of somebody else changes the job, withdraw the advice for its former size: it would
    contradict what was just chosen. The next advice is measured with the new size."""
    shown, about = state.autoscaling.shown, state.autoscaling
    if state.plan is None or about.open is not None or shown is None:
        return
    if shown.replica_resource_specs or shown.migrate_pods:
        notes = [f"ScalePlan {state.plan.name} changes the job"]
        none = {"replica_resource_specs": {}, "migrate_pods": [], "reasons": {}, "notes": notes}
        state.autoscaling = replace(about, shown=shown.model_copy(update=none))


def note_refused_plan(state: JobState, number: int, reason: str, now: float) -> None:
    """Record that the ScalePlan of the open plan can't be created."""
    about = state.autoscaling
    if about.open is not None and about.open.number == number:
        _fail_open_plan(state, f"{about.open.name(state.settings.name)} could not be made: {reason}", now)


def why_forbidden(state: JobState, rollout: Rollout) -> str:
    """Why one of the master's own plans must not begin any more; "" if it may, and for any other plan.

    The scale stage of a pipeline switches autoscaling off. The count that it sets must stay, even if a plan
    of the master is still queued behind the stage's plan.
    """
    made = range(1, state.autoscaling.last_number + 1)
    own = rollout.name in {names.own_plan_name(state.settings.name, number) for number in made[-2:]}
    if not own or (state.settings.optimizing.allowed and scales_itself(state)):
        return ""
    return "autoscaling of the job was switched off"


def _plan_under_way(state: JobState) -> bool:
    if state.plan is not None or state.autoscaling.open is not None:
        return True
    return any(
        seen.uid not in state.finished_plans and not seen.over for seen in state.volatile.plans_seen or ()
    )


def _plan_spec(advice: Advice, job: OptimizerJob) -> ScalePlanSpec:
    reason = "; ".join(f"{key}: {text}" for key, text in sorted(advice.reasons.items()))
    return scale_plan_spec(advice, job).model_copy(update={"reason": reason[:MAX_REASON]})


def _shape_of(job: OptimizerJob) -> object:
    """The parts of a job that must not change between a question and its answer."""
    return job.roles, job.limits, {(n.name, n.resource, n.pending_since is None) for n in job.nodes}


def _show_answer(state: JobState, asked: OptimizerRequest, answer: OptimizerAnswer, now: float) -> None:
    advice, about, optimizing = answer.advice, state.autoscaling, state.settings.optimizing
    spec = scale_plan_spec(answer.advice, asked.job)
    notes = [*advice.notes, *_own_notes(about, optimizing.problem)]
    fresh = AutoscalingStatus(
        optimizer=answer.optimizer,
        stage=asked.progress.stage,
        replica_resource_specs=spec.replica_resource_specs,
        migrate_pods=spec.migrate_pods,
        reasons=dict(advice.reasons),
        notes=notes[:MAX_NOTES],
        time=datetime.fromtimestamp(math.floor(now), UTC),
    )
    before = about.shown
    if before is None or before.model_copy(update={"time": fresh.time}) != fresh:
        state.autoscaling = replace(about, shown=fresh)


def _own_notes(about: AutoscalingState, problem: str) -> list[str]:
    notes = [problem] if problem else []
    return [*notes, f"the last plan failed: {about.problem}"] if about.problem else notes


def _follow_open_plan(state: JobState, now: float) -> None:
    decision = state.autoscaling.open
    if decision is None:
        return
    name = decision.name(state.settings.name)
    rollout = state.plan if state.plan is not None and state.plan.name == name else None
    listed = next((seen for seen in state.volatile.plans_seen or () if seen.name == name), None)
    phase = rollout.phase if rollout is not None else listed.phase if listed is not None else None
    if phase is ScalePlanPhase.SUCCEEDED:
        state.autoscaling = autoscale_state.close_succeeded_plan(state.autoscaling, name)
    elif phase is ScalePlanPhase.FAILED:
        reason = f"{rollout.reason}: {rollout.message}" if rollout is not None else "see its status"
        _fail_open_plan(state, f"{name} ({reason})", now)
    elif listed is not None:
        state.autoscaling = autoscale_state.mark_plan_seen(state.autoscaling)
    elif rollout is None and decision.seen and state.volatile.plans_seen is not None:
        _fail_open_plan(state, f"{name} was deleted", now)
    elif (
        rollout is None
        and not decision.seen
        and not (state.settings.optimizing.allowed and scales_itself(state))
    ):
        state.autoscaling = autoscale_state.withdraw_plan(state.autoscaling)


def _fail_open_plan(state: JobState, reason: str, now: float) -> None:
    about = autoscale_state.close_failed_plan(state.autoscaling, reason, now)
    if about.shown is not None:
        notes = [*about.shown.notes[: MAX_NOTES - 1], f"the last plan failed: {about.problem}"]
        about = replace(about, shown=about.shown.model_copy(update={"notes": notes}))
    state.autoscaling = about


def _shrink_pending(state: JobState, now: float) -> None:
    """Replace each node that has been pending for too long by a smaller one, once. Do nothing while a plan
    changes the members, since the plan handles its own nodes.
    """
    late = {node for node, since in state.volatile.pending_since.items() if now - since > PENDING_SECONDS}
    change = state.versions.change
    if late <= state.volatile.uncut or (change is not None and change.cause is ChangeCause.PLAN):
        return
    state.volatile.uncut |= late
    job = optimizer_job(state, now)
    advice = advise_pending_cut(job, now)
    if not advice.node_resources:
        return
    sizes = {pod.name: pod.resource for pod in scale_plan_spec(advice, job).migrate_pods}
    for pod, size in sizes.items():
        node = state.nodes.by_pod(state.settings.name, pod)
        assert node is not None, "advice names present nodes only"
        reason = f"{node} is made smaller: {advice.reasons[pod]}"
        _replace_resized(state, node, merge_resources(size, node.resource), reason, now)
    progress = state.autoscaling.progress
    _show_answer(state, OptimizerRequest(progress, job), OptimizerAnswer(advice, progress), now)


def _replace_resized(state: JobState, node: JobNode, size: NodeResource, reason: str, now: float) -> None:
    fresh = replace(state.nodes.new_successor(node, now, size, node.relaunches), why=reason)
    state.nodes.release(node, now)
    state.nodes.replace_by(node, fresh)
    if node.type == names.PS_TYPE:
        state.versions = cluster_versions.follow_replacements(state.versions, {node.id: fresh.id})


def optimizer_job(state: JobState, now: float) -> OptimizerJob:
    """Describe the job to optimizers (`edl_workflows.core.scaling.dlrover.resources.OptimizerJob`).

    Released nodes are left out, even if their pods still run.
    """
    nodes = tuple(_node(state, node, now) for node in state.nodes if node.live)
    roles = {role: _role(state, role) for role in state.settings.roles}
    return OptimizerJob(
        state.settings.name, roles, _limits(state), nodes, tuple(state.volatile.statistics.samples)
    )


def job_with_oom(state: JobState, node: JobNode, now: float) -> OptimizerJob:
    """Describe the job (`optimizer_job`) together with a node that ran out of memory.

    The node's role counts as scalable: a replacement may get more memory even if no autoscaler may change the
    role.
    """
    job = optimizer_job(state, now)
    ill = replace(_node(state, node, now), pending_since=None, oom=True)
    role = replace(job.roles[node.type], auto_scale=True)
    return replace(job, roles={**job.roles, node.type: role}, nodes=(*job.nodes, ill))


def usage_of(state: JobState) -> tuple[NodeSample, ...]:
    """CPU and memory use that nodes reported; in a collective job, workers that don't train are left out."""
    usage = state.volatile.statistics.usage
    idle = state.joined.keys() - {node.id for node in state.trainers} if state.settings.collective else set()
    return tuple(
        NodeSample(
            state.settings.pod_name(node.type, node.id),
            node.type,
            usage[str(node)].cpu,
            usage[str(node)].memory,
        )
        for node in state.nodes
        if node.live and node.registered and str(node) in usage
        if not (node.type == names.WORKER_TYPE and node.id in idle)
    )


def _node(state: JobState, node: JobNode, now: float) -> resources.OptimizerNode:
    size = merge_resources(node.resource, state.settings.roles[node.type].resource)
    pending = None
    if node.status is not NodeStatus.RUNNING:
        pending = state.volatile.pending_since.get(str(node), now)
    elif not node.registered:
        pending = now  # its pod runs, and its agent has not registered yet
    return resources.OptimizerNode(
        state.settings.pod_name(node.type, node.id), node.type, node.id, resources.node_size_of(size), pending
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
    limits = dict(state.settings.limits)
    if "memory" in limits:
        limits["memory"] /= MIB
    return replace(ResourceLimits(), **limits)
