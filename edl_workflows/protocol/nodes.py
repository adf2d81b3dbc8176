"""Nodes: how they identify themselves, what they report, and what the master tells them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from edl_workflows.protocol.cluster import TrainingCluster
from edl_workflows.protocol.message import Message
from edl_workflows.protocol.node_check import CheckRound
from edl_workflows.protocol.reported import Identifier, OutputText, PodName, ShortText

NodeType = Annotated[str, Field(pattern=r"^(ps|worker|chief|evaluator)$")]


class NodeRef(Message):
    """A node of the job: (type, id). Ids are never used twice."""

    type: NodeType
    id: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.type}-{self.id}"


class Registration(Message):
    """`POST /v1/nodes`: the agent of a pod has started. Repeatable; the answer is the present `Directive`.

    Attributes:
        rank: from the agent's environment.
        pod: the pod's name.
        incarnation: new at each start of the agent process. A new one for a known node means that the
            container was restarted: leases of the previous one are re-queued.
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
    """`POST /v1/nodes/heartbeat`, every few seconds; a node that is silent for long counts as failed.

    Attributes:
        known: revision of the newest directive that the sender has. If there is no newer one, the answer has
            revision 0 instead of the directive: in a large group directives are long, and there are many
            heartbeats.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    usage: Usage | None = None
    known: int = -1


class ServerChanges(StrEnum):
    """Which changes of its parameter servers a program's model survives."""

    ANY = "Any"
    SAME_COUNT = "SameCount"
    """Each server may be replaced, but their number must stay the same."""
    NEVER = "Never"


class ServerReport(Message):
    """What a program states about changes of its parameter servers.

    Attributes:
        reason: why not all changes are allowed.
    """

    changes: ServerChanges
    reason: ShortText = ""


class ProcessState(StrEnum):
    """State of a training process of a cluster version."""

    CONNECTED = "connected"
    """It uses the library and has reached its master. The master assumes that a program that never reports
    this forms its group from environment variables.
    """
    READY = "ready"
    """Prepared: imports done, graph built; a parameter server listens. It waits until its version is
    active.
    """
    DRAINED = "drained"
    """Stopped between two steps; its shards are acknowledged or given back. It waits until it is terminated
    or may continue.
    """
    TRAINING = "training"
    """It has made its first step in an active version."""
    UNFIT = "unfit"
    """It has prepared a version whose model would differ from that of the active version;
    `ProcessReport.servers` says why.
    """


class ProcessReport(Message):
    """`POST /v1/processes`: a training process reached a state. Repeatable.

    Attributes:
        servers: with READY and UNFIT, if the program states it.
        in_place: with READY: the process can change its group while it runs. It keeps the model in memory
            when a member is lost or joins, and goes on in the version that follows.
        replica_size: with READY: number of processes, in consecutive ranks, that hold the model together. If
            one of them is lost, the others of this replica group can't go on.
        saving: with TRAINING: seconds for which the process has just stopped to save a checkpoint.
        own_copy: with TRAINING: the process trains from the job's data and saves a model, and nothing
            combines that with the models of other workers.
    """

    node: NodeRef
    version: int = Field(ge=1)
    state: ProcessState
    servers: ServerReport | None = None
    in_place: bool = False
    replica_size: int = Field(default=1, ge=1, le=100_000)
    saving: float = Field(default=0.0, ge=0, le=1e6)
    own_copy: bool = False


class PresenceReport(Message):
    """`POST /v1/processes/presence`: a member's process lives. A process that can change its group in place
    sends it every few seconds while it reports no step, so that the master knows for whom the others wait.

    Attributes:
        step: the newest global step that it has made.
        waiting: seconds for which it has waited for other members; 0 while it waits for none.
        known: as of `Heartbeat`.
    """

    node: NodeRef
    version: int = Field(ge=1)
    step: int = Field(default=0, ge=0, lt=2**63)
    waiting: float = Field(default=0.0, ge=0, le=1e9)
    known: int = -1


class StackReport(Message):
    """`POST /v1/nodes/stacks`: the stacks for which the directive asked (`Directive.dump`). Repeatable.

    Attributes:
        dump: id of the request.
        stacks: of all threads of the training process, as `faulthandler` writes them, the main thread's last;
            "" if the process wrote none.
        recordings: files in the pod in which NCCL's flight recorder has written the last collective
            operations.
    """

    node: NodeRef
    dump: Identifier
    stacks: OutputText = ""
    recordings: list[ShortText] = Field(default_factory=list, max_length=16)


class CrashReport(Message):
    """`POST /v1/processes/crashes`: a process ended that only prepared its version, beside the one that
    trains. Repeatable.

    Attributes:
        version: the one that it prepared.
        crashes: how many such ends this agent has seen, including this one.
        code, last_lines: as of `ExitReport`.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=1)
    crashes: int = Field(ge=1)
    code: int
    last_lines: OutputText = ""


class ExitReport(Message):
    """`POST /v1/nodes/exit`: the training process of the active version ended, and the agent is about to end.

    Also the body of `POST /v1/processes/deaths`, which an agent sends as soon as the process has ended,
    before it saves what the process left in memory. If other members can go on in place, they do so at once.

    Attributes:
        version: the one for which the process was started.
        code: exit code, 128+n for a signal.
        last_lines: the end of its output, for the job's status.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=0)
    code: int
    last_lines: OutputText = ""


class CheckReport(Message):
    """`POST /v1/nodes/check`: what a node measured in a round of the check before training. Repeatable.

    Attributes:
        round: its number.
        seconds: for its work and its part of the exchange.
        error: why it failed; else "".
    """

    node: NodeRef
    round: int = Field(ge=1)
    seconds: float = Field(default=0.0, ge=0, le=1e6)
    error: ShortText = ""


CLUSTER_LOST_EXIT_CODE = 75
"""Exit code (sysexits' EX_TEMPFAIL) of a training process whose cluster broke and that can't continue in
another version. Most likely another node was lost, and the process itself is sound.
"""


STATE_DAMAGED_EXIT_CODE = 76
"""Exit code (sysexits' EX_PROTOCOL) of a training process that received a damaged state from another
member.
"""


CHECKPOINT_EXIT_CODE = 74
"""Exit code (sysexits' EX_IOERR) of a training process that finished its training but could not save the last
checkpoint.
"""


class ExitVerdict(Message):
    """What the agent does after the exit.

    Attributes:
        wait: another node's failure (such as a lost parameter server) caused the exit: wait for the next
            cluster version instead of ending the pod.
    """

    wait: bool


class Directive(Message):
    """What the master wants now: the answer of `GET /v1/directive?type=&id=&after=<revision>`. The request is
    a long poll: it is answered at once if the revision is greater than `after`, and after at most `wait`
    seconds with the unchanged directive.

    It is level-triggered: each directive is complete. An agent keeps one training process for each of
    `active` and `next` (`next` is the prepared successor) and ends those of all other versions: an older one
    as soon as the active version trains, any other at once.

    Attributes:
        revision: grows with every change.
        active: the cluster version that trains; None until the first is complete.
        next: the version to prepare.
        lost: `active` has lost its model and will not train again. No process of it is started any more;
            running ones wait until a later version trains.
        broken: `active` has lost a member, and too few are left. Its processes leave the group, keep the
            model in memory, and wait for the version in which they go on.
        drain: processes of `active` stop between two steps, settle their leases, report DRAINED, and wait.
            False again with `active` unchanged means: continue.
        save: request id of a checkpoint that the chief takes now (between two steps); else "". With `drain`,
            it is set once all other processes are drained.
        trained: the newest version that made a step; processes of older versions end.
        workers: address of each worker by rank, informational (used by evaluators and sparse clusters).
        stop: this node is released: end the training process as on SIGTERM and exit 0.
        finished: the job's data is consumed and all workers ended: parameter servers and evaluators end.
        dump: id of a request for stacks, because training stands still: each agent has the process of
            `active` write its threads' stacks to its log, once per id. Else "".
        check: a round of the check before training, for the nodes that it names.
    """

    revision: int
    active: TrainingCluster | None = None
    next: TrainingCluster | None = None
    lost: bool = False
    broken: bool = False
    drain: bool = False
    save: str = ""
    trained: int = 0
    workers: dict[int, str] = Field(default_factory=dict)
    stop: bool = False
    finished: bool = False
    dump: str = Field(default="", max_length=64)
    check: CheckRound | None = None

    @property
    def clusters(self) -> tuple[TrainingCluster, ...]:
        """The versions that have processes: the active version and the next one, if they exist."""
        return tuple(cluster for cluster in (self.active, self.next) if cluster is not None)
