"""Nodes: who talks to the master, what they report, and what the master tells them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from edl_workflows.protocol.cluster import Cluster
from edl_workflows.protocol.message import Message
from edl_workflows.protocol.node_check import CheckRound
from edl_workflows.protocol.reported import Identifier, OutputText, PodName, ShortText

NodeType = Annotated[str, Field(pattern=r"^(ps|worker|chief|evaluator)$")]


class NodeRef(Message):
    """A node of the job: (type, id). Ids are never used twice, so a ref also names an incarnation."""

    type: NodeType
    id: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.type}-{self.id}"


class Registration(Message):
    """``POST /v1/nodes``: the agent of a pod has started. Repeatable; the answer is the current `Directive`.

    Attributes:
        rank: as its environment says.  pod: the pod's name.
        incarnation: fresh at each start of the agent process. A new one for a known node means that the container was
            restarted: leases of the older one go back.
    """

    node: NodeRef
    rank: int = Field(ge=0)
    pod: PodName = ""
    incarnation: Identifier = Field(max_length=64)


class Usage(Message):
    """What the pod's processes use now: CPU in cores, memory in MiB."""

    cpu: float = Field(ge=0)
    memory: float = Field(ge=0)


class Heartbeat(Message):
    """``POST /v1/nodes/heartbeat``, every few seconds; a node silent for long counts as failed.

    Attributes:
        known: revision of the newest directive that the sender has: one that is no newer is left out of the answer, which then
            has revision 0. In a large world directives are long, and many of these messages come.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    usage: Usage | None = None
    known: int = -1


class ServerChanges(StrEnum):
    """Which changes of its parameter servers a program's model survives."""

    ANY = "Any"
    SAME_COUNT = "SameCount"
    """Each server may be replaced, but there must be as many as before."""
    NEVER = "Never"


class ServerReport(Message):
    """What a program says of changes of its parameter servers.

    Attributes:
        reason: why not all are allowed.
    """

    changes: ServerChanges
    reason: ShortText = ""


class ProcessState(StrEnum):
    """Where a training process of a cluster version stands."""

    CONNECTED = "connected"
    """It uses the library and has found its master. A program that never says so forms its group from the environment."""
    READY = "ready"
    """Prepared: imports done, graph built; a parameter server listens. It waits until its version is active."""
    DRAINED = "drained"
    """Stopped at a step boundary; its leases are acknowledged or given back. It waits to be retired or to go on."""
    TRAINING = "training"
    """It has made its first step in an active version."""
    UNFIT = "unfit"
    """It prepared a version whose model would be another than that which trains; `ProcessReport.servers` says why."""


class ProcessReport(Message):
    """``POST /v1/processes``: a training process reached a state. Repeatable.

    Attributes:
        servers: with READY and UNFIT, as far as the program says it.
    """

    node: NodeRef
    version: int = Field(ge=1)
    state: ProcessState
    servers: ServerReport | None = None


class CrashReport(Message):
    """``POST /v1/processes/crashes``: a process that only prepares its version ended, beside the one that trains. Repeatable.

    Attributes:
        version: that it was to prepare.
        crashes: how often this agent has seen it so, this time included.
        code, last_lines: as of `ExitReport`.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=1)
    crashes: int = Field(ge=1)
    code: int
    last_lines: OutputText = ""


class ExitReport(Message):
    """``POST /v1/nodes/exit``: the training process of the active version ended, and the agent is about to.

    Attributes:
        code: exit code, 128+n for a signal.
        last_lines: the end of its output, for the job's status.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=0)
    code: int
    last_lines: OutputText = ""


class CheckReport(Message):
    """``POST /v1/nodes/check``: what a node measured in a round of the check before training. Repeatable.

    Attributes:
        round: its number.
        seconds: for its work and its part of the exchange.
        error: why it could not; "" if it could.
    """

    node: NodeRef
    round: int = Field(ge=1)
    seconds: float = Field(default=0.0, ge=0, le=1e6)
    error: ShortText = ""


CLUSTER_LOST_EXIT_CODE = 75
"""A training process ends so when its cluster broke and the master named no other version meanwhile (the code is
sysexits' EX_TEMPFAIL): most likely a parameter server was lost, and the process itself is sound."""


CHECKPOINT_EXIT_CODE = 74
"""A training process ends so when its training is through and the last checkpoint can't be saved (sysexits' EX_IOERR)."""


class ExitVerdict(Message):
    """What the agent does about the exit.

    Attributes:
        wait: the exit was the shadow of another node's failure (a lost parameter server): stay and wait for the next
            cluster version instead of ending the pod.
    """

    wait: bool


class Directive(Message):
    """What the master wants now: the answer of ``GET /v1/directive?type=&id=&after=<revision>`` (a long poll that
    answers at once when revision > after, else after at most ``wait`` seconds with the unchanged directive).

    Level-triggered: it says everything, each time. An agent keeps one training process for each of ``active`` and
    ``next`` (``next`` is the prepared successor) and ends those of all other versions: an older one as soon as the
    active version trains, any other at once.

    Attributes:
        revision: grows with every change.
        active: the cluster version that trains; None until the first is complete.
        next: the version to prepare.
        lost: ``active`` has lost its model and will not train again: no process of it is started any more. Those that run
            wait until a later version trains.
        drain: processes of ``active``: stop at the next step boundary, settle leases, report DRAINED, wait.
            False again with ``active`` unchanged means: go on.
        save: request id of a checkpoint that the chief shall take now (between steps); "" for none. While ``drain``
            is set it is given once all others are drained.
        trained: the newest version that made a step; processes of older versions end.
        workers: address of each worker by rank, informational (evaluator and sparse clusters use it).
        stop: this node is released: end the training process as on SIGTERM and exit 0.
        finished: the job's data is consumed and all workers ended: parameter servers and evaluators end.
        dump: id of a request for stacks, since training stands still: each agent has the process of ``active`` write
            what its threads do to its log, once for each id. "" for none.
        check: a round of the check before training, for the nodes that it names.
    """

    revision: int
    active: Cluster | None = None
    next: Cluster | None = None
    lost: bool = False
    drain: bool = False
    save: str = ""
    trained: int = 0
    workers: dict[int, str] = Field(default_factory=dict)
    stop: bool = False
    finished: bool = False
    dump: str = Field(default="", max_length=64)
    check: CheckRound | None = None

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The versions that have processes: the active one and the next, as far as there are."""
        return tuple(cluster for cluster in (self.active, self.next) if cluster is not None)
