"""Responses to the web page. Times are in Unix seconds, amounts in cores, bytes and items, speeds in steps
per second.

``GET /v1/cluster?seconds=`` returns `ClusterAnswer`, ``GET /v1/jobs?limit=&offset=&phase=&search=``
`JobsAnswer`, ``GET /v1/jobs/{uid}`` `JobAnswer`, ``GET /v1/plans?limit=&offset=&job=`` `ChangesAnswer`. Lists
begin with the newest entry. Lists of points begin with the oldest and contain at most `MAX_POINTS`, evenly
selected.
"""

from pydantic import Field

from edl_workflows.core.protocol.message import Message

MAX_POINTS = 500
"""Most points of a curve; a chart has fewer pixels."""
MAX_ROWS = 200
"""Most rows in one page of a list."""


class ClusterPoint(Message):
    """The cluster at one moment; see `edl_workflows.services.brain.observations.ClusterObservation`."""

    time: float
    nodes: int
    nodes_ready: int
    allocatable: dict[str, float]
    requested: dict[str, float]
    used: dict[str, float] = Field(default_factory=dict)
    pods_running: int
    pods_pending: int


class ClusterAnswer(Message):
    """The cluster over time.

    Attributes:
        now: the server's clock.
        monitored: whether this Brain watches the cluster; otherwise there are no points.
    """

    now: float
    monitored: bool
    points: list[ClusterPoint]


class RoleCounts(Message):
    """Replicas of one role.

    Attributes:
        ready: number of ready replicas. Only the monitor knows it; None if it has not seen the job.
    """

    desired: int
    ready: int | None = None


class JobRow(Message):
    """A job.

    Attributes:
        goodput: fraction of the time since the start that was spent on steps that were not lost, 0 to 1; None
            if too little is known.
        optimizer, stage, reasons, notes: of its newest advice, even if that was not carried out.
        metrics: the newest values that its program reported, by name; only the monitor knows them.
        seen: when the monitor or the master last reported the job.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    phase: str
    reason: str = ""
    message: str = ""
    replicas: dict[str, RoleCounts] = Field(default_factory=dict)
    step: int = 0
    speed: float = 0.0
    metrics: dict[str, float] = Field(default_factory=dict)
    goodput: float | None = None
    optimizer: str = ""
    stage: str = ""
    reasons: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    created: float | None = None
    started: float | None = None
    finished: float | None = None
    seen: float


class JobsAnswer(Message):
    """A page of the list of jobs.

    Attributes:
        total: the number of matching jobs.
    """

    now: float
    total: int
    jobs: list[JobRow]


class JobPoint(Message):
    """A job at one moment.

    Attributes:
        nodes: running nodes by role.
        metrics: values that the program reported, by name.
    """

    time: float
    step: int
    speed: float
    nodes: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)


class ChangeRow(Message):
    """A ScalePlan, or advice of the Brain for a job.

    Attributes:
        id: unique id; for ScalePlans the uid.
        name: name of the ScalePlan; "" for advice of the Brain for which there is no ScalePlan yet.
        changes: the requested changes, one line each.
        reason: why the plan was made.
        phase: phase of the ScalePlan.
        message: message of its executor.
    """

    id: str
    namespace: str
    job: str
    name: str = ""
    changes: list[str] = Field(default_factory=list)
    reason: str = ""
    phase: str = ""
    message: str = ""
    created: float | None = None
    finished: float | None = None


class ChangesAnswer(Message):
    """A page of the plans of all jobs, or of one."""

    now: float
    total: int
    plans: list[ChangeRow]


class JobAnswer(Message):
    """A job with its history."""

    now: float
    job: JobRow
    points: list[JobPoint]
    plans: list[ChangeRow]
