"""What the cluster monitor sees, in the store's words. Pure values; times are Unix seconds, amounts cores, bytes and pieces."""

from collections.abc import Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, float]
"""By resource, in base units."""


@dataclass(frozen=True)
class ClusterSample:
    """The cluster at one moment.

    Attributes:
        nodes: how many there are.
        nodes_ready: those of them that take pods.
        allocatable: what the nodes offer together.
        requested: what the pods that have a node and have not ended ask it for.
        used: what the nodes' processes use, as the cluster's metrics server says; empty where there is none.
        pods_running, pods_pending: pods by phase; one whose deletion has begun is in neither.
    """

    time: float
    nodes: int = 0
    nodes_ready: int = 0
    allocatable: Amounts = field(default_factory=dict)
    requested: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    pods_running: int = 0
    pods_pending: int = 0


@dataclass(frozen=True)
class RoleSeen:
    """Counts of one role."""

    desired: int = 0
    ready: int = 0


@dataclass(frozen=True)
class JobSeen:
    """A job of any kind as its object says now.

    Attributes:
        uid: the object's; a job of the same name that is made anew has another.
        phase: a `JobPhase`.
        requests: what its pods ask their nodes for, together.
        stage, reasons, notes: of ``status.autoscaling``: the plan's stage, why by role or pod, and why not.
        optimizer: who was asked for that plan, ``local`` or ``brain``; "" for nobody.
        created, started, finished: None where it is not known or not so far.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    phase: str
    reason: str = ""
    message: str = ""
    replicas: Mapping[str, RoleSeen] = field(default_factory=dict)
    requests: Amounts = field(default_factory=dict)
    step: int = 0
    speed: float = 0.0
    optimizer: str = ""
    stage: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    created: float | None = None
    started: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class PlanSeen:
    """A ScalePlan as its object says now.

    Attributes:
        job: name of the ElasticJob, in the plan's namespace.
        changes: what it asks for, a line each, as ``worker: 4 replicas of 2 cores``.
        reason: why it was made, in the words of who made it (``spec.reason``).
        phase: of the plan; "" before anybody has looked at it.
        message: what its executor says of it.
    """

    uid: str
    namespace: str
    name: str
    job: str
    changes: tuple[str, ...] = ()
    reason: str = ""
    phase: str = ""
    message: str = ""
    created: float | None = None
    finished: float | None = None
