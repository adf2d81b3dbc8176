"""The job as optimizers see it, the advice that changes its nodes, and the effect of advice on a job.

Optimizers (`local_optimizer`, `brain`, `allreduce`) give `Advice`, and `bounds` reduces it to what
the user's bounds and the job's limits allow. DLRover's design calls it ``ResourcePlan``;
`NodeGroupResource` is a name of its. CPU is counted in cores, memory in MiB.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from edl_workflows.core.jobs.scale_plan import model
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.scaling.dlrover.samples import JobSample

PS, WORKER, CHIEF = names.PS_TYPE, names.WORKER_TYPE, names.CHIEF_TYPE
TRAINERS = (CHIEF, WORKER)
"""The roles whose nodes compute gradients."""
AMOUNTS = ("cpu", "memory", "gpu")
UNITS = {"cpu": "cores", "memory": "MiB", "gpu": "GPUs"}
_MIB = 2.0**20


@dataclass(frozen=True)
class NodeSize:
    """Size of one node: cores, MiB and GPUs. None keeps the value of the node or of its role.

    Attributes:
        gpu_type: the type of the GPUs. No advice changes it.
    """

    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_type: str | None = None

    @classmethod
    def of(cls, amounts: Mapping[str, float | None]) -> "NodeSize":
        return cls(amounts.get("cpu"), amounts.get("memory"), amounts.get("gpu"))

    def amount(self, name: str) -> float | None:
        return {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu}[name]

    def over(self, default: "NodeSize") -> "NodeSize":
        """This size, with missing amounts taken from `default`."""
        amounts = {name: value for name, value in vars(self).items() if value is not None}
        return replace(default, **amounts)

    @property
    def empty(self) -> bool:
        return self == NodeSize()

    def __str__(self) -> str:
        amounts = [(self.amount(name), UNITS[name]) for name in AMOUNTS]
        words = [f"{value:g} {unit}" for value, unit in amounts if value is not None]
        words += [f"GPUs of type {self.gpu_type}"] if self.gpu_type is not None else []
        return ", ".join(words) or "no size"


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`, both included."""

    low: float
    high: float

    def clamp(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def including(self, value: float | None) -> "Range":
        """The range, widened to include this value."""
        return self if value is None else Range(min(self.low, value), max(self.high, value))

    @property
    def possible(self) -> bool:
        """Whether both ends are finite, not negative, and in order."""
        return math.isfinite(self.low) and math.isfinite(self.high) and 0 <= self.low <= self.high


@dataclass(frozen=True)
class UserBounds:
    """The user's bounds of a role: the number of nodes, and a node's size. None means the default.

    Attributes:
        fewer_because: why the upper bound of `count` is lower than the user's; "" if it is the user's.
    """

    count: Range | None = None
    cpu: Range | None = None
    memory: Range | None = None
    fewer_because: str = field(default="", kw_only=True)

    def of(self, name: str) -> Range | None:
        """The bounds of ``count`` or of one of `AMOUNTS`."""
        return {"count": self.count, "cpu": self.cpu, "memory": self.memory}.get(name)


@dataclass(frozen=True)
class ResourceLimits:
    """Limits of the whole job (``resourceLimits``) in cores, MiB and GPUs. The defaults are DLRover's."""

    cpu: float = 100.0
    memory: float = 102_400.0
    gpu: float = 4.0

    def of(self, name: str) -> float:
        return {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu}[name]


@dataclass(frozen=True)
class OptimizerRole:
    """One role of a job.

    Attributes:
        count: desired number of nodes.
        resource: size of new nodes.
        auto_scale: whether advice may change the role (``autoScale``).
        bounds: the user's bounds.
    """

    count: int
    resource: NodeSize = field(default_factory=NodeSize)
    auto_scale: bool = True
    bounds: UserBounds = field(default_factory=UserBounds)


@dataclass(frozen=True)
class OptimizerNode:
    """A node of the job that exists, or is to be replaced.

    Attributes:
        name: the pod's name, unique.
        id: unique within the role and never reused; a role that shrinks loses its highest ids first.
        resource: the node's own size, which may differ from its role's; an amount without a limit is None.
        pending_since: Unix seconds since when its pod is pending; None if it runs.
        oom: whether it ran out of memory and has not been replaced yet.
    """

    name: str
    role: str
    id: int
    resource: NodeSize = field(default_factory=NodeSize)
    pending_since: float | None = None
    oom: bool = False


@dataclass(frozen=True)
class OptimizerJob:
    """A job as an optimizer sees it.

    Attributes:
        roles: by name; a role that is missing has no template and gets no nodes.
        nodes: in any order.
        samples: measurements in any order; they should reach back before the last change of the number of
            workers.
    """

    name: str
    roles: Mapping[str, OptimizerRole]
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    nodes: tuple[OptimizerNode, ...] = ()
    samples: tuple[JobSample, ...] = ()

    def of(self, *roles: str) -> list[OptimizerNode]:
        """The nodes of these roles, by role and id."""
        return sorted((n for n in self.nodes if n.role in roles), key=lambda n: (n.role, n.id))


@dataclass(frozen=True)
class NodeGroupResource:
    """Changes of a role: the number of nodes, and the size of new nodes. None changes nothing."""

    count: int | None = None
    node_resource: NodeSize = field(default_factory=NodeSize)


@dataclass(frozen=True)
class Advice:
    """Changes of a job's nodes.

    Attributes:
        node_group_resources: by role.
        node_resources: by node name; each node is replaced by one of another size (a parameter server is
            *migrated*).
        reasons: by role or node name, a reason in words for each change.
        notes: why other things don't change.
        waiting: statistics are missing that may still arrive: ask again.
    """

    node_group_resources: Mapping[str, NodeGroupResource] = field(default_factory=dict)
    node_resources: Mapping[str, NodeSize] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    waiting: bool = False

    @property
    def empty(self) -> bool:
        return not self.node_group_resources and not self.node_resources

    def changes(self, job: OptimizerJob, role: str) -> bool:
        """Whether nodes of this role are added, removed or replaced."""
        group = self.node_group_resources.get(role, NodeGroupResource())
        return group.count is not None or any(node.name in self.node_resources for node in job.of(role))


def empty_advice(*notes: str, waiting: bool = False) -> Advice:
    """Advice without changes, with notes that say why."""
    return Advice(notes=notes, waiting=waiting)


def role_advice(role: str, reason: str, count: int | None = None, size: NodeSize | None = None) -> Advice:
    """Advice that changes one role."""
    return Advice({role: NodeGroupResource(count, size or NodeSize())}, reasons={role: reason})


def merge_advice(first: Advice, second: Advice) -> Advice:
    """Both together; where both name a role or a node, the second one wins."""
    return Advice(
        {**first.node_group_resources, **second.node_group_resources},
        {**first.node_resources, **second.node_resources},
        {**first.reasons, **second.reasons},
        first.notes + second.notes,
        first.waiting or second.waiting,
    )


def follow_advice(job: OptimizerJob, advice: Advice) -> OptimizerJob:
    """The job after the advice is carried out: missing nodes exist, and surplus nodes are gone.

    A replaced node has a new id. If a role changes, its nodes that ran out of memory are replaced, with the
    larger of their own memory and the role's.
    """
    roles = {name: _changed(role, advice.node_group_resources.get(name)) for name, role in job.roles.items()}
    after = replace(job, roles=roles)
    nodes: list[OptimizerNode] = []
    for name, role in roles.items():
        ids = _fresh_ids(job, name)
        existing_nodes = [_replaced(after, node, advice, ids) for node in job.of(name)]
        nodes += existing_nodes[: role.count]
        for _ in range(role.count - len(existing_nodes)):
            nodes.append(_made(job.name, name, next(ids), role.resource))
    return replace(after, nodes=tuple(nodes))


def total_amount(job: OptimizerJob, amount: str) -> float:
    """The sum over a job's nodes; a node without a size counts as 0."""
    return math.fsum(node.resource.amount(amount) or 0.0 for node in job.nodes)


def node_size_of(size: model.NodeResource) -> NodeSize:
    amounts = {name: parse_quantity(value) for name in AMOUNTS if (value := getattr(size, name)) is not None}
    if "memory" in amounts:
        amounts["memory"] /= _MIB
    return NodeSize(**amounts, gpu_type=size.gpu_type)


def scale_plan_spec(advice: Advice, job: OptimizerJob) -> model.ScalePlanSpec:
    groups = {
        role: model.ReplicaResourceSpec(replicas=group.count, resource=_quantities(group.node_resource))
        for role, group in advice.node_group_resources.items()
    }
    pods = [
        model.PodMeta.model_validate(
            {"name": node.name, "id": node.id, "type": node.role, "resource": _quantities(size)}
        )
        for node in sorted(job.nodes, key=lambda node: (node.role, node.id))
        if (size := advice.node_resources.get(node.name)) is not None
    ]
    return model.ScalePlanSpec.model_validate(
        {"owner_job": job.name, "replica_resource_specs": groups, "migrate_pods": pods}
    )


def _quantities(size: NodeSize) -> model.NodeResource:
    return model.NodeResource(
        cpu=None if size.cpu is None else f"{round(size.cpu * 1000)}m",
        memory=None if size.memory is None else f"{math.floor(size.memory)}Mi",
        gpu=None if size.gpu is None else f"{size.gpu:g}",
        gpu_type=size.gpu_type,
    )


def _changed(role: OptimizerRole, group: NodeGroupResource | None) -> OptimizerRole:
    if group is None:
        return role
    count = role.count if group.count is None else group.count
    return replace(role, count=count, resource=group.node_resource.over(role.resource))


def _replaced(job: OptimizerJob, node: OptimizerNode, advice: Advice, ids: Iterator[int]) -> OptimizerNode:
    size = advice.node_resources.get(node.name)
    if size is None and node.oom and node.role in advice.node_group_resources:
        memory = job.roles[node.role].resource.memory or 0.0
        size = NodeSize(memory=max(memory, node.resource.memory)) if node.resource.memory else NodeSize()
    if size is None:
        return node
    return _made(job.name, node.role, next(ids), size.over(node.resource))


def _made(job: str, role: str, node_id: int, size: NodeSize) -> OptimizerNode:
    return OptimizerNode(names.node_name(job, role, node_id), role, node_id, size)


def _fresh_ids(job: OptimizerJob, role: str) -> Iterator[int]:
    first = max((node.id for node in job.nodes if node.role == role), default=-1) + 1
    return iter(range(first, 2**62))
