"""Messages between the Brain service and the masters of jobs (HTTP + JSON). CPU in cores, memory in MiB, GPUs
in pieces.

If what a message states about a job is invalid, the whole message is rejected. *Measurements* may have any
value: only an implausible sample itself is left out (`edl_workflows.core.scaling.dlrover.samples`), and the
receipt says why. Every message may be sent twice: a sample is identified by its time.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.metrics import ChartedMetrics

MAX_SAMPLES = 500
MAX_NODES = 2_000
MAX_COUNT = 10_000
MAX_AMOUNT = 1e9
"""More than any cluster has of any resource."""
MAX_WORDS = 1024
MAX_TIME = 1e11
"""Unix seconds, within the range of calendars."""
MAX_STATE_BYTES = 3_600_000
"""Largest state of a job in bytes. As text in a JSON message it has at most twice as many."""
MAX_HEAD = 4_096
"""Characters."""
NO_STATE = "there is no state of job"
"""Begins the error of a write to a state that does not exist. Without it, a 404 is not from a Brain with
states."""

_DNS = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
Namespace = Annotated[str, Field(pattern=f"^{_DNS}$")]
JobName = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$")]
JobUid = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:]{0,127}$")]
Kind = Annotated[str, Field(pattern=r"^[A-Za-z]{1,63}$")]
RoleName = Annotated[str, Field(pattern=f"^{_DNS}$")]
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?$")]
GpuType = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Words = Annotated[str, Field(max_length=MAX_WORDS, pattern=r"^[^\x00-\x1f]*$")]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT)]
Number = Annotated[int, Field(ge=0, lt=2**53)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


class NodeSizeMessage(Message):
    """Size of one node; fields that are left out are unknown."""

    cpu: Amount | None = None
    memory: Amount | None = None
    gpu: Amount | None = None
    gpu_type: GpuType | None = None


class AmountRange(Message):
    """From `low` to `high`, both included."""

    low: Amount
    high: Amount


class RoleBounds(Message):
    """What the user allows: number of nodes of a role, and cores and MiB of one node."""

    count: AmountRange | None = None
    cpu: AmountRange | None = None
    memory: AmountRange | None = None


class RoleFacts(Message):
    """One role of a job.

    Attributes:
        count: wanted nodes.
        resource: size of new nodes.
        auto_scale: whether advice may change the role.
    """

    count: Count
    resource: NodeSizeMessage = NodeSizeMessage()
    auto_scale: bool = True
    bounds: RoleBounds = RoleBounds()


class JobLimits(Message):
    """What the whole job may use."""

    cpu: Amount
    memory: Amount
    gpu: Amount


class TrainingFacts(Message):
    """Facts about a job's training; 0 is unknown.

    See `edl_workflows.core.scaling.dlrover.brain.request.TrainingParameters`.
    """

    batch_size: Number = 0
    dataset_size: Number = 0
    epochs: Number = 0
    max_steps: Number = 0
    recv_ops: Number = 0


class JobDescription(Message):
    """A job as its master knows it.

    Attributes:
        uid: uid of the job's object; a job that is created again under the same name has another uid.
        scenario: to advise on a job, Brain uses measurements of other jobs of the same scenario and
        namespace; "" means the job's name.
    """

    uid: JobUid
    namespace: Namespace
    name: JobName
    kind: Kind = "ElasticJob"
    scenario: Words = ""
    roles: dict[RoleName, RoleFacts] = Field(default_factory=dict, max_length=20)
    limits: JobLimits
    training: TrainingFacts = TrainingFacts()


class MeasuredMessage(Message):
    """Numbers measured by a program, which may have any value."""

    model_config = ConfigDict(allow_inf_nan=True)


class NodeUsageMessage(MeasuredMessage):
    """What one node used: cores and MiB."""

    name: NodeName
    role: RoleName
    cpu: float
    memory: float


class SampleMessage(MeasuredMessage):
    """A job at one moment.

    Attributes:
        time: Unix seconds.
        step: global step.
        speed: steps per second; 0 while unknown.
        nodes: the running nodes.
        metrics: values that the program reported, by name.
    """

    time: float
    step: int
    speed: float
    nodes: list[NodeUsageMessage] = Field(default_factory=list, max_length=MAX_NODES)
    metrics: ChartedMetrics = Field(default_factory=dict)


class NodeOom(Message):
    """A node ran out of memory."""

    node: NodeName
    time: Time


class JobEnd(Message):
    """A job is over.

    Attributes:
        completed: whether it succeeded.
        reason: why it failed, if it did.
    """

    time: Time
    completed: bool
    reason: Words = ""


class MetricsReport(Message):
    """`POST /v1/metrics`: new measurements of a job. Answered once they are durable. Repeatable."""

    job: JobDescription
    samples: list[SampleMessage] = Field(default_factory=list, max_length=MAX_SAMPLES)
    ooms: list[NodeOom] = Field(default_factory=list, max_length=MAX_NODES)
    end: JobEnd | None = None


class MetricsReceipt(Message):
    """Answer to `MetricsReport`.

    Attributes:
        accepted: number of samples that are stored now, including those stored before.
        refused: why other samples were not stored.
    """

    accepted: int
    refused: list[str] = Field(default_factory=list)


class NodeFacts(Message):
    """One node that exists, or that ran out of memory and is to be replaced.

    Attributes:
        id: unique within the role.
        resource: size of this node.
        pending_since: since when its pod has been pending, in Unix seconds; None if it runs.
        oom: whether it ran out of memory and waits for its replacement.
    """

    name: NodeName
    role: RoleName
    id: Number
    resource: NodeSizeMessage = NodeSizeMessage()
    pending_since: Time | None = None
    oom: bool = False


Stage = Literal["job_stage_create", "job_stage_worker_initial", "job_stage_ps_initial", "job_stage_running"]
Phase = Literal["initial", "sample", "stable"]


class OptimizeRequest(Message):
    """`POST /v1/optimize`: asks what should change about a job. The answer is based on the reported samples.

    Attributes:
        stage, phase, ps_may_change: see `edl_workflows.core.scaling.dlrover.ps_stages.OptimizerQuestion`.
        nodes: all nodes of the job.
    """

    job: JobDescription
    stage: Stage
    phase: Phase = "initial"
    ps_may_change: bool = True
    nodes: list[NodeFacts] = Field(default_factory=list, max_length=MAX_NODES)


class RoleAdvice(Message):
    """The wanted count and node size of a role; fields that are left out do not change."""

    count: Count | None = None
    resource: NodeSizeMessage = NodeSizeMessage()


class OptimizeReply(Message):
    """Answer to `OptimizeRequest`; see `edl_workflows.core.scaling.dlrover.resources.Advice`.

    Attributes:
        groups: changes of roles, by role.
        nodes: new sizes by node name; each of these nodes is replaced by a node of the new size.
        reasons: reasons for the changes, by role or node name.
        notes: why nothing else changes.
        waiting: whether statistics are missing that may still arrive; if so, ask again.
    """

    groups: dict[RoleName, RoleAdvice] = Field(default_factory=dict, max_length=20)
    nodes: dict[NodeName, NodeSizeMessage] = Field(default_factory=dict, max_length=MAX_NODES)
    reasons: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    waiting: bool = False


class JobMetrics(Message):
    """`GET /v1/jobs/{uid}/metrics`: what Brain has stored about a job.

    Attributes:
        samples: the newest samples, oldest first.
        ooms: nodes that ran out of memory, oldest first.
        end: how it ended, if it is known to be over.
    """

    job: JobDescription
    samples: list[SampleMessage]
    ooms: list[NodeOom]
    end: JobEnd | None = None


def _check_size(document: str) -> str:
    if len(document.encode()) > MAX_STATE_BYTES:
        raise ValueError(f"it has more than {MAX_STATE_BYTES} bytes")
    return document


class JobStateKey(Message):
    """Whose state it is.

    Attributes:
        uid: uid of the job's object; a job that is created again under the same name has another state.
        name: for people.
    """

    uid: JobUid
    namespace: Namespace
    name: JobName


class StateVersion(Message):
    """Order of the snapshots of a job's state: first by term, then by number.

    Attributes:
        term: of the master that wrote it.
        number: counts that master's attempts to write.
    """

    term: Number
    number: Number


class StoredSnapshot(Message):
    """A snapshot as it is stored. It may be damaged: the master finds out, and then uses the one before.

    Attributes:
        head: format and checksum of the document.
        document: the state.
    """

    version: StateVersion
    head: str
    document: str


class StateSnapshot(StoredSnapshot):
    """A snapshot of a job's state. Brain stores head and document as they are; only masters read them."""

    head: Annotated[str, Field(max_length=MAX_HEAD, pattern=r"^[^\x00]*$")]
    document: Annotated[
        str, Field(max_length=MAX_STATE_BYTES, pattern=r"^[^\x00]*$"), AfterValidator(_check_size)
    ]


class StateClaim(Message):
    """`POST /v1/states/claim`: a master takes over the state of its job. From now on the masters before it
    can't write. Each call begins another term."""

    job: JobStateKey


class ClaimedState(Message):
    """Answer to `StateClaim`.

    Attributes:
        term: of the master that has asked.
        snapshots: the stored ones, the newest first.
    """

    term: Number
    snapshots: list[StoredSnapshot] = Field(default_factory=list)


class StateWrite(Message):
    """`POST /v1/states/write`: stores a snapshot. Answered once it is durable.

    Attributes:
        snapshot: of the master's term, with a number that it has not used before.
        before: the snapshot that is kept, in case the new one is damaged; all others are deleted.
    """

    job: JobStateKey
    snapshot: StateSnapshot
    before: StateVersion | None = None


class StateReceipt(Message):
    """Answer to `StateWrite`.

    Attributes:
        version: of the newest snapshot.
    """

    version: StateVersion
