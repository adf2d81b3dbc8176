"""Conversion between the messages of the Brain service and the values of the algorithms."""

import math
from collections.abc import Iterable

from edl_workflows.core.protocol import brain
from edl_workflows.core.scaling.dlrover.brain.request import TrainingParameters
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerQuestion, OptimizerStage, WorkerPhase
from edl_workflows.core.scaling.dlrover.resources import (
    AMOUNTS,
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
)
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample

BOUNDED = ("count", "cpu", "memory")


def job_of(
    facts: brain.JobDescription, nodes: Iterable[brain.NodeFacts] = (), samples: Iterable[JobSample] = ()
) -> OptimizerJob:
    roles = {
        name: OptimizerRole(role.count, _resource(role.resource), role.auto_scale, _bounds(role.bounds))
        for name, role in facts.roles.items()
    }
    limits = ResourceLimits(facts.limits.cpu, facts.limits.memory, facts.limits.gpu)
    optimizer_nodes = tuple(
        OptimizerNode(n.name, n.role, n.id, _resource(n.resource), n.pending_since, n.oom) for n in nodes
    )
    return OptimizerJob(facts.name, roles, limits, optimizer_nodes, tuple(samples))


def roles_of(job: OptimizerJob) -> dict[str, brain.RoleFacts]:
    """A job's roles as messages.

    Raises:
        pydantic.ValidationError: a number is out of its range.
    """
    return {
        name: brain.RoleFacts(
            count=role.count,
            resource=_size(role.resource),
            auto_scale=role.auto_scale,
            bounds=brain.RoleBounds.model_validate(
                {quantity: _between(role.bounds.of(quantity)) for quantity in BOUNDED}
            ),
        )
        for name, role in job.roles.items()
    }


def limits_of(job: OptimizerJob) -> brain.JobLimits:
    """A job's limits as a message.

    Raises:
        pydantic.ValidationError: as `roles_of`.
    """
    return brain.JobLimits.model_validate({name: job.limits.of(name) for name in AMOUNTS})


def nodes_of(job: OptimizerJob) -> list[brain.NodeFacts]:
    """A job's nodes as messages.

    Raises:
        pydantic.ValidationError: as `roles_of`.
    """
    return [
        brain.NodeFacts(
            name=node.name,
            role=node.role,
            id=node.id,
            resource=_size(node.resource),
            pending_since=node.pending_since,
            oom=node.oom,
        )
        for node in job.nodes
    ]


def sample_of(message: brain.SampleMessage) -> JobSample:
    """The sample of a message, not validated."""
    nodes = tuple(NodeSample(node.name, node.role, node.cpu, node.memory) for node in message.nodes)
    return JobSample(message.time, message.step, message.speed, nodes, message.metrics)


def sample_message(sample: JobSample) -> brain.SampleMessage:
    return brain.SampleMessage(
        time=sample.time,
        step=sample.step,
        speed=sample.speed,
        nodes=[
            brain.NodeUsageMessage(name=node.name, role=node.role, cpu=node.cpu, memory=node.memory)
            for node in sample.nodes
        ],
        metrics=dict(sample.metrics),
    )


def question_of(request: brain.OptimizeRequest) -> OptimizerQuestion:
    return OptimizerQuestion(OptimizerStage(request.stage), WorkerPhase(request.phase), request.ps_may_change)


def training_of(facts: brain.TrainingFacts) -> TrainingParameters:
    return TrainingParameters(**facts.model_dump())


def training_facts(training: TrainingParameters) -> brain.TrainingFacts:
    """The parameters of a training as a message.

    Raises:
        pydantic.ValidationError: as `roles_of`.
    """
    return brain.TrainingFacts.model_validate(vars(training))


def advice_message(advice: Advice) -> brain.OptimizeReply:
    return brain.OptimizeReply(
        groups={
            role: brain.RoleAdvice(count=group.count, resource=_size(group.node_resource))
            for role, group in advice.node_group_resources.items()
        },
        nodes={name: _size(size) for name, size in advice.node_resources.items()},
        reasons=dict(advice.reasons),
        notes=list(advice.notes),
        waiting=advice.waiting,
    )


def advice_of(message: brain.OptimizeReply) -> Advice:
    return Advice(
        {
            role: NodeGroupResource(group.count, _resource(group.resource))
            for role, group in message.groups.items()
        },
        {name: _resource(size) for name, size in message.nodes.items()},
        dict(message.reasons),
        tuple(message.notes),
        message.waiting,
    )


def _resource(size: brain.NodeSizeMessage) -> NodeSize:
    return NodeSize(size.cpu, size.memory, size.gpu, size.gpu_type)


def _size(resource: NodeSize) -> brain.NodeSizeMessage:
    return brain.NodeSizeMessage(
        cpu=resource.cpu, memory=resource.memory, gpu=resource.gpu, gpu_type=resource.gpu_type
    )


def _bounds(bounds: brain.RoleBounds) -> UserBounds:
    ranges = (bounds.count, bounds.cpu, bounds.memory)
    return UserBounds(*(Range(each.low, each.high) if each is not None else None for each in ranges))


def _between(bounds: Range | None) -> brain.AmountRange | None:
    """Bounds as a message; an infinite upper bound becomes the largest allowed amount."""
    if bounds is None:
        return None
    return brain.AmountRange(
        low=bounds.low, high=brain.MAX_AMOUNT if bounds.high == math.inf else bounds.high
    )
