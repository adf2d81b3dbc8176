"""The data that the page gets. Times are in Unix seconds, durations in seconds. Lists and texts are
bounded."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from edl_workflows.core.protocol.message import Message

MAX_POINTS = 300
"""Most points of a curve; a chart is about as many pixels wide."""
MAX_PLANS = 30
MAX_RESTARTS = 50
MAX_ROWS = 20
"""Most entries of other lists."""
MAX_TEXT = 1000
"""Most characters of a text."""
MAX_LOG_LINES = 100


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


Text = Annotated[str, AfterValidator(_cut)]
"""A text for users, truncated if it is too long."""


class ProgressDocument(Message):
    """How far training is.

    Attributes:
        steps_total: estimated number of steps for the whole data set; None if unknown or unlimited.
        fraction: share of the records that are consumed, 0 to 1; None if unknown.
        eta_seconds: estimated time until all data is consumed; None if unknown.
        speed: steps per second.
    """

    step: int = 0
    steps_total: int | None = None
    records: int = 0
    records_total: int = 0
    fraction: float | None = None
    eta_seconds: float | None = None
    speed: float = 0.0
    records_per_second: float = 0.0


class FiguresDocument(Message):
    """Where the newest figures of a running ElasticJob come from.

    Attributes:
        live: whether its master has given them now; otherwise they are those of its status.
        time: when they were measured; None if there are none yet.
        memory: of all training pods, in MiB; None if unknown.
        obstacle: why the master has not given them; "" if it has.
    """

    live: bool
    time: float | None = None
    memory: float | None = None
    obstacle: Text = ""


class RoleDocument(Message):
    """Counts of one role."""

    role: str
    desired: int
    ready: int


class PointDocument(Message):
    """A job at one moment.

    Attributes:
        speed: steps per second since the previous points; None for the first point.
        nodes: running nodes by role.
        metrics: the values that the program had reported, by name.
    """

    time: float
    step: int
    speed: float | None = None
    nodes: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)


class SpentDocument(Message):
    """The job's time with one cause; `meaning` explains the cause."""

    cause: str
    meaning: str
    seconds: float


class GoodputDocument(Message):
    """How the job's time was spent.

    Attributes:
        ratio: useful over elapsed time, 0 to 1.
        spent: all time of the job by cause; empty if the status does not contain it.
    """

    ratio: float
    spent: list[SpentDocument]


class RestartDocument(Message):
    """One restart."""

    time: float
    subject: Text
    cause: Text
    message: Text = ""


class RestartsDocument(Message):
    """All restarts.

    Attributes:
        total: how many there were.
        counts: by cause.
        recent: the newest first.
    """

    total: int = 0
    counts: dict[str, int] = Field(default_factory=dict)
    recent: list[RestartDocument] = Field(default_factory=list)


class ChangeStepDocument(Message):
    """One step of a plan; `end` is None while it is under way."""

    phase: str
    start: float
    end: float | None = None


class ChangeDocument(Message):
    """A ScalePlan, or a plan that Brain has stored.

    Attributes:
        changes: one line for each change.
        reason: why it was created.
        message: the reason and message in its status.
        stall_seconds: how long training paused for it; None if unknown.
        may_be_rejected: whether it can be withdrawn because it has not begun.
    """

    name: str
    phase: str
    changes: list[Text] = Field(default_factory=list)
    reason: Text = ""
    message: Text = ""
    created: float | None = None
    finished: float | None = None
    steps: list[ChangeStepDocument] = Field(default_factory=list)
    stall_seconds: float | None = None
    may_be_rejected: bool = False


class ProposalDocument(Message):
    """What the job's optimizer would change now.

    Attributes:
        id: digest of the changes. A decision contains it, so that nobody approves changes that they have not
            seen.
        state: "open": it waits for a decision; "automatic": the job's master carries it out itself.
        decided: who rejected it, and when; "" unless rejected.
    """

    id: str
    state: Literal["open", "automatic", "rejected"]
    optimizer: str = ""
    stage: str = ""
    changes: list[Text] = Field(default_factory=list)
    reasons: list[Text] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)
    time: float | None = None
    decided: Text = ""


class CheckpointDocument(Message):
    """A complete checkpoint.

    Attributes:
        origin: the plan that asked for it; "" for the job's newest.
    """

    step: int
    uri: Text
    time: float | None = None
    origin: str = ""


class LogDocument(Message):
    """The last lines of a pod.

    Attributes:
        pod: its name; "" if no pod has started or the log can't be read.
        note: why there is no log; "" if it was read.
    """

    pod: str = ""
    node: str = ""
    lines: list[Text] = Field(default_factory=list)
    note: Text = ""


class TaskReference(Message):
    """A task instance; `map_index` is -1 for a task that is not mapped."""

    task_id: str
    map_index: int = -1


class JobDocument(Message):
    """One job.

    Attributes:
        source: where the document comes from: the cluster, or a Brain for a job that the cluster no longer
            has.
        tasks: the tasks of the run that work on it.
        dashboard: URL of the job in the dashboard of the connection; "" for none.
        may_edit: whether the user may approve and reject its plans.
        figures: None for jobs that are not running, and for those of other kinds.
        metrics: the newest values that the program reported, by name.
        points: oldest first.
        plans: newest first.
        log: None if logs were not requested, or the user may not read them. In the second case all messages
            and warnings are empty, too.
        notes: what could not be read, and why.
    """

    kind: str
    namespace: str
    name: str
    uid: str = ""
    source: Literal["cluster", "brain"] = "cluster"
    tasks: list[TaskReference] = Field(default_factory=list)
    dashboard: str = ""
    may_edit: bool = False
    phase: str
    reason: Text = ""
    message: Text = ""
    started: float | None = None
    finished: float | None = None
    progress: ProgressDocument = ProgressDocument()
    figures: FiguresDocument | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    roles: list[RoleDocument] = Field(default_factory=list)
    points: list[PointDocument] = Field(default_factory=list)
    goodput: GoodputDocument | None = None
    restarts: RestartsDocument = RestartsDocument()
    plans: list[ChangeDocument] = Field(default_factory=list)
    proposal: ProposalDocument | None = None
    checkpoints: list[CheckpointDocument] = Field(default_factory=list)
    warnings: list[Text] = Field(default_factory=list)
    log: LogDocument | None = None
    notes: list[Text] = Field(default_factory=list)


class TabDocument(Message):
    """The tab of a task instance or of a DAG run.

    Attributes:
        now: the server's clock.
        jobs: most recently begun first.
        notes: why there is less to see than expected.
    """

    now: float
    jobs: list[JobDocument] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)
