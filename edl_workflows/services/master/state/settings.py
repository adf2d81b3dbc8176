"""What the job's spec asks of its master, as plain values: counts, sizes, restart rules.

The replica counts of the spec apply only at the start of the job; afterwards ScalePlans change them
(`edl_workflows.services.master.state.job`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.awaited_steps import awaited_steps
from edl_workflows.core.jobs.elastic_job.model import (
    DistributionStrategy,
    ElasticJob,
    ElasticJobSpec,
    OptimizeMode,
    ReplicaSpec,
)
from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance
from edl_workflows.core.jobs.grace import GRACE_SECONDS, template_grace
from edl_workflows.core.jobs.scale_plan.model import LABEL_VALUE, NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.lost_pods import UNREACHABLE_SECONDS
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.write_budget import PROGRESS_SECONDS

TRAINING_TYPES = (names.PS_TYPE, names.CHIEF_TYPE, names.WORKER_TYPE, names.EVALUATOR_TYPE)
ELASTIC_TYPES = (names.CHIEF_TYPE, names.WORKER_TYPE, names.EVALUATOR_TYPE)
"""Roles whose nodes come and go within a version; in a collective job, workers are members of the version."""
MIB = 2.0**20
MAX_BUDGET = 5
"""As in DLRover, the budget of a node is min(restartCount, 5)."""


@dataclass(frozen=True)
class RoleSettings:
    """One role of the job.

    Attributes:
        replicas: nodes that the spec asks for.
        restart_always: whether a node is replaced even after a fatal exit code.
        restart_count: number of replacements of a node.
        restart_timeout: seconds that a replacement may stay pending; 0: no limit.
        critical_nodes: as in the spec: "", `all`, `none` or "<rank>:<budget>,…".
        resource: size of a node according to the template.
        auto_scale: whether the master's own plans may change the role.
        grace: seconds that its pods have to end.
    """

    replicas: int = 0
    restart_always: bool = False
    restart_count: int = 3
    restart_timeout: int = 0
    critical_nodes: str = ""
    resource: NodeResource = field(default_factory=NodeResource)
    auto_scale: bool = True
    grace: int = GRACE_SECONDS


@dataclass(frozen=True)
class Timeouts:
    """All in seconds.

    Attributes:
        heartbeat: a node that is silent for longer has failed.
        unreachable: a node whose machine and whose agent are both silent for longer is lost.
        pending: the job fails when a node that it needs is pending for longer; 0: never.
        verdict: how long the failure of a worker may still turn out to be caused by the loss of another
            member, if there is one.
        prepare: a member of the next version whose process is not ready in this time has failed; 0: never.
        release: a released node may take this long to end before its pod is removed.
        autoscale: least time between two plans of the master's own; the other intervals of autoscaling keep
            their proportion to it (`AutoscalingIntervals`).
        finish: how long the job waits for its other nodes once the data and all critical nodes are done.
    """

    heartbeat: float = 600.0
    pending: float = 900.0
    verdict: float = 10.0
    prepare: float = 900.0
    release: float = 30.0
    autoscale: float = 300.0
    finish: float = 300.0
    unreachable: float = UNREACHABLE_SECONDS


@dataclass(frozen=True)
class RendezvousLimits:
    """Limits of a training group.

    Attributes:
        min_nodes, max_nodes: least and greatest number of members.
        node_unit: the number of members is a multiple of it, unless that would be below `min_nodes`.
        waiting_timeout: seconds after the last join until a group that is smaller than wanted is formed.
        join_timeout: seconds after which the job fails if fewer than `min_nodes` workers have joined.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    waiting_timeout: float = 30.0
    join_timeout: float = 600.0


@dataclass(frozen=True)
class AutoscalingSettings:
    """Who decides counts and sizes, and whether the master may carry out its decisions.

    Attributes:
        mode: the job's `optimizeMode`; in `manual` mode the master decides nothing.
        allowed: whether the job's annotation allows it.
        workers: least and greatest number of workers, if the annotation gives them.
        problem: why the annotation can't be read; else "".
    """

    mode: OptimizeMode = OptimizeMode.MANUAL
    allowed: bool = False
    workers: tuple[int, int] | None = None
    problem: str = ""

    @classmethod
    def of(cls, job: ElasticJob) -> "AutoscalingSettings":
        """Settings of a job. An annotation that can't be read allows nothing."""
        mode = job.spec.optimize_mode
        try:
            wish = autoscaling.read_annotation(job)
        except ManifestError as error:
            return cls(mode, problem=str(error))
        return cls(mode, bool(wish), wish if isinstance(wish, tuple) else None)


@dataclass(frozen=True)
class JobSettings:
    """What the job's spec and annotations say.

    Attributes:
        limits: upper bound of the whole job by resource (cpu in cores, memory in bytes, gpu in pieces).
        collective: whether the workers train together by collective operations (`AllreduceStrategy`).
        fault_tolerance: as in the spec; its time-out for pending nodes is in `timeouts`.
        rendezvous: limits of a collective job's training group; `max_nodes` applies to a new job.
        created: when the job was created, in Unix seconds; 0 if that is unknown.
        awaited_steps: the steps that somebody waits for.
        progress_period: least seconds between two writes of mere progress; the controller publishes it.
    """

    name: str
    namespace: str
    roles: Mapping[str, RoleSettings]
    limits: Mapping[str, float] = field(default_factory=dict)
    suspend: bool = False
    timeouts: Timeouts = Timeouts()
    optimizing: AutoscalingSettings = AutoscalingSettings()
    collective: bool = False
    rendezvous: RendezvousLimits = field(default_factory=RendezvousLimits)
    fault_tolerance: FaultTolerance = field(default_factory=FaultTolerance)
    created: float = 0.0
    awaited_steps: tuple[int, ...] = ()
    progress_period: int = PROGRESS_SECONDS

    @property
    def member_type(self) -> str:
        """The role whose nodes are members of a cluster version; "" if versions have no members."""
        if self.collective:
            return names.WORKER_TYPE
        return names.PS_TYPE if self.has_ps else ""

    @property
    def has_ps(self) -> bool:
        """Whether the model is held by parameter servers."""
        return names.PS_TYPE in self.roles

    @property
    def chief_type(self) -> str:
        """The role whose rank 0 initialises, saves and restores the model."""
        return names.CHIEF_TYPE if names.CHIEF_TYPE in self.roles else names.WORKER_TYPE

    def pod_name(self, node_type: str, node_id: int) -> str:
        return names.node_name(self.name, node_type, node_id)

    def critical(self, node_type: str, rank: int) -> bool:
        """Whether the job can't continue without this node.

        Parameter servers and the chief are always critical; a collective job continues with any worker as its
        chief.
        """
        chief = (node_type, rank) == (self.chief_type, 0) and not self.collective
        if node_type == names.PS_TYPE or chief:
            return True
        listed = self.roles[node_type].critical_nodes
        return listed == "all" or str(rank) in _critical_budgets(listed)

    def budget(self, node_type: str, rank: int) -> int:
        """How often a node of this rank may be replaced."""
        role = self.roles[node_type]
        own = _critical_budgets(role.critical_nodes).get(str(rank))
        return min(role.restart_count, MAX_BUDGET) if own is None else own


def settings_of(job: ElasticJob, namespace: str, timeouts: Timeouts) -> JobSettings:
    """The settings of a job.

    Args:
        job: as it is now.
        namespace: of the job.
        timeouts: of the installation.
    """
    spec = job.spec
    bounds, pending = spec.resource_limits, spec.fault_tolerance.pending_timeout_seconds
    created = job.metadata.creation_timestamp
    return JobSettings(
        name=job.metadata.name,
        namespace=namespace,
        roles={
            role: _role(spec.replica_specs[role]) for role in TRAINING_TYPES if role in spec.replica_specs
        },
        limits={
            "cpu": parse_quantity(bounds.cpu),
            "memory": parse_quantity(bounds.memory),
            "gpu": parse_quantity(bounds.gpu),
        },
        suspend=spec.suspend,
        timeouts=timeouts if pending is None else replace(timeouts, pending=float(pending)),
        fault_tolerance=spec.fault_tolerance,
        optimizing=AutoscalingSettings.of(job),
        collective=spec.distribution_strategy is DistributionStrategy.ALLREDUCE,
        rendezvous=_rendezvous(spec),
        created=created.timestamp() if created is not None else 0.0,
        awaited_steps=awaited_steps(job.metadata.annotations),
        progress_period=job.status.progress_period_seconds or PROGRESS_SECONDS,
    )


def merge_resources(resource: NodeResource, default: NodeResource) -> NodeResource:
    """`resource`, with missing values taken from `default`."""
    given = {name: value for name, value in resource if value is not None}
    return default.model_copy(update=given)


def _rendezvous(spec: ElasticJobSpec) -> RendezvousLimits:
    rendezvous = spec.rendezvous
    worker = spec.replica_specs.get("worker")
    return RendezvousLimits(
        min_nodes=rendezvous.min_nodes,
        max_nodes=rendezvous.max_nodes or (worker.replicas if worker else 0),
        node_unit=rendezvous.node_unit,
        waiting_timeout=rendezvous.waiting_timeout_seconds,
        join_timeout=rendezvous.join_timeout_seconds,
    )


def _role(spec: ReplicaSpec) -> RoleSettings:
    return RoleSettings(
        replicas=spec.replicas,
        restart_always=spec.policy == "Always",
        restart_count=spec.restart_count,
        restart_timeout=spec.restart_timeout,
        critical_nodes=spec.critical_nodes,
        resource=_template_resource(spec.template),
        auto_scale=spec.auto_scale,
        grace=template_grace(spec.template),
    )


def _template_resource(template: Mapping[str, Any]) -> NodeResource:
    """Size of the main container (limits, else requests), and the GPU type that the pod's node must have."""
    spec = template.get("spec") or {}
    container: Mapping[str, Any] = (spec.get("containers") or [{}])[0]
    resources = container.get("resources") or {}
    quantities = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    gpus = next((value for name, value in sorted(quantities.items()) if name.endswith("/gpu")), None)
    selected = str((spec.get("nodeSelector") or {}).get(names.GPU_TYPE_LABEL, ""))
    gpu_type = selected if re.match(LABEL_VALUE, selected) else None  # the API server rejects others
    return NodeResource(
        cpu=quantities.get("cpu"), memory=quantities.get("memory"), gpu=gpus, gpu_type=gpu_type
    )


def _critical_budgets(text: str) -> dict[str, int]:
    if ":" not in text:
        return {}
    return {rank: int(budget) for rank, budget in (part.split(":") for part in text.split(","))}
