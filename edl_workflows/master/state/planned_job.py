"""The job as planners see it (`edl_workflows.scaling.dlrover.resources.OptimizerJob`), read from the master's state."""

from dataclasses import replace

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan import model
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.nodes import JobNode, NodeStatus
from edl_workflows.master.state.settings import MIB, merge_resources
from edl_workflows.protocol.nodes import ServerChanges
from edl_workflows.scaling.dlrover import resources
from edl_workflows.scaling.dlrover.resources import (
    OptimizerJob,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
)
from edl_workflows.scaling.dlrover.samples import NodeSample


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
