"""Nodes: how they identify themselves, what they report, and what the master tells them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.reported import Identifier, OutputText, PodName, ShortText

NodeType = Annotated[str, Field(pattern=r"^(ps|worker|chief|evaluator)$")]


class NodeRef(Message):
    """A node of the job: (type, id). Ids are never reused."""

    type: NodeType
    id: int = Field(ge=0)

    def __str__(self) -> str:
        return f"{self.type}-{self.id}"


class Registration(Message):
    """`POST /v1/nodes`: the agent of a pod has started. Repeatable; the answer is the present `Directive`.

    Attributes:
        rank: rank of the node, from the agent's environment.
        pod: the pod's name.
        incarnation: an id that is new at each start of the agent process. A new incarnation of a known node
            means that its container was restarted: the shards of the previous incarnation are re-queued.
    """

    node: NodeRef
    rank: int = Field(ge=0)
    pod: PodName = ""
    incarnation: Identifier = Field(max_length=64)


class Usage(Message):
    """Present use of the pod's processes: CPU in cores, memory in MiB."""

    cpu: float = Field(ge=0)
    memory: float = Field(ge=0)


class Heartbeat(Message):
    """`POST /v1/nodes/heartbeat`, sent every few seconds; a node that is silent for too long has failed.

    Attributes:
        known: revision of the newest directive that the sender has. If there is no newer one, the answer is a
            directive with revision 0 and no content, since in a large group directives are long and
            heartbeats are many.
        own_copy: whether the node's program, which does not use the library, trains a model that nothing
            combines with those of other workers; None if the agent does not know.
        asks_to_leave: whether the agent, when its pod is told to end, waits for the job's last checkpoint
            (`LeaveReport`); those of earlier versions don't.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    usage: Usage | None = None
    known: int = -1
    own_copy: bool | None = None
    asks_to_leave: bool = False


class ServerChanges(StrEnum):
    """Which changes of its parameter servers a program's model survives."""

    ANY = "Any"
    SAME_COUNT = "SameCount"
    """Each server may be replaced, but their number must stay the same."""
    NEVER = "Never"


class ServerReport(Message):
    """What a program states about changes of its parameter servers, and about its model on them.

    Attributes:
        reason: why not all changes are allowed.
        warnings: what people should know about the model although the job goes on, such as variables that
            are not spread over the servers.
    """

    changes: ServerChanges
    reason: ShortText = ""
    warnings: list[ShortText] = Field(default_factory=list, max_length=16)


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
        in_place: with READY: whether the process can change its group while it runs. It then keeps the model
            in memory when a member is lost or joins, and continues in the next version.
        replica_size: with READY: number of processes, with consecutive ranks, that hold the model together.
            If one of them is lost, the other processes of this replica group can't continue.
        saving: with TRAINING: seconds for which the process has just stopped to save a checkpoint.
        own_copy: with TRAINING: the process trains from the job's data and saves a model, and nothing
            combines that with the models of other workers.
        saves: with TRAINING: the program has set how it saves, so the process answers requests for
            checkpoints.
    """

    node: NodeRef
    version: int = Field(ge=1)
    state: ProcessState
    servers: ServerReport | None = None
    in_place: bool = False
    replica_size: int = Field(default=1, ge=1, le=100_000)
    saving: float = Field(default=0.0, ge=0, le=1e6)
    own_copy: bool = False
    saves: bool = False


class PresenceReport(Message):
    """`POST /v1/processes/presence`: a member's process is alive. A process that can change its group in
    place sends this every few seconds while it reports no step, so that the master knows for which members
    the others wait.

    Attributes:
        step: the newest global step that the process has made.
        waiting: seconds for which it has waited for other members; 0 if it is not waiting.
        known: see `Heartbeat`.
    """

    node: NodeRef
    version: int = Field(ge=1)
    step: int = Field(default=0, ge=0, lt=2**63)
    waiting: float = Field(default=0.0, ge=0, le=1e9)
    known: int = -1


class StackReport(Message):
    """`POST /v1/nodes/stacks`: the stacks that the directive requested (`Directive.dump`). Repeatable.

    Attributes:
        dump: id of the request.
        stacks: the stacks of all threads of the training process, as written by `faulthandler`, the main
            thread last; "" if the process wrote none.
        recordings: files in the pod in which NCCL's flight recorder has written the last collective
            operations.
    """

    node: NodeRef
    dump: Identifier
    stacks: OutputText = ""
    recordings: list[ShortText] = Field(default_factory=list, max_length=16)


class CrashReport(Message):
    """`POST /v1/processes/crashes`: a process that was preparing the next version has ended, while another
    process of the node may still train. Repeatable.

    Attributes:
        version: the version that the process was preparing.
        crashes: how many such processes have ended on this agent, including this one.
        code, last_lines: see `ExitReport`.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=1)
    crashes: int = Field(ge=1)
    code: int
    last_lines: OutputText = ""


class ExitReport(Message):
    """`POST /v1/nodes/exit`: the training process of the active version has ended, and the agent asks whether
    to end, too.

    Also the body of `POST /v1/processes/deaths`, which an agent sends as soon as the process has ended,
    before it saves the copies that the process left in memory. So if other members can continue in place,
    they do so at once.

    Attributes:
        version: the version for which the process was started.
        code: exit code, 128+n for a signal.
        asked: whether the agent was told to end, and so ended the process; None: the agent is of a version
            that does not say.
        last_lines: the end of its output, for the job's status.
        own_copy: see `Heartbeat`.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)
    version: int = Field(ge=0)
    code: int
    asked: bool | None = None
    last_lines: OutputText = ""
    own_copy: bool | None = None


class LeaveReport(Message):
    """`POST /v1/nodes/leave`: the node's pod is told to end, as by a deletion, a suspension or a drain. The
    agent repeats it until it may end.
    """

    node: NodeRef
    incarnation: Identifier = Field(max_length=64)


class LeaveVerdict(Message):
    """Whether a node that is told to end waits.

    Attributes:
        wait: whether the job still needs the node for a last checkpoint; then ask again.
        seconds: how long that takes at most, by the measured duration of saves. If the process itself saves
            when it is told to end, it has this time, too.
    """

    wait: bool
    seconds: float = Field(default=0.0, ge=0, le=1e6)


class CheckMember(Message):
    """A node of a group, such as `worker-3`, and the address on which it listens for the others."""

    node: str = Field(max_length=64)
    address: str = Field(max_length=512)


class CheckRound(Message):
    """One round, part of the directive: each group measures its machines and their connection.

    Attributes:
        number: number of the round; never reused within a job.
        groups: nodes that measure together. The first node of a group listens, and the others connect to it.
        seconds: time after which a group gives up.
    """

    number: int = Field(ge=1)
    groups: list[list[CheckMember]]
    seconds: float = Field(gt=0, le=86_400)


class CheckReport(Message):
    """`POST /v1/nodes/check`: what a node measured in a round of the check before training. Repeatable.

    Attributes:
        round: number of the round.
        seconds: seconds that the node's work and exchange took.
        error: why the check failed; "" if it did not.
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
    """What the agent must do after the exit of its training process.

    Attributes:
        wait: whether to wait for the next cluster version instead of ending the pod, because the failure of
            another node, such as a lost parameter server, caused the exit.
    """

    wait: bool


class Directive(Message):
    """What the master wants now: the answer to `GET /v1/directive?type=&id=&after=<revision>`. The request is
    a long poll: it is answered at once if the revision is greater than `after`, and otherwise after at most
    `wait` seconds with the unchanged directive.

    Directives are level-triggered: each one is complete. An agent keeps one training process for `active` and
    one for `next`, the version that is being prepared. It ends the processes of all other versions: of an
    older version as soon as the active version trains, of any other version at once.

    Attributes:
        revision: grows with every change.
        active: the cluster version that trains; None until the first version is complete.
        next: the version to prepare.
        lost: whether `active` has lost its model and will not train again. No more processes are started for
            it; running processes wait until a later version trains.
        broken: whether `active` has lost a member or is rolled back, while its other processes can continue
            in place. They leave the group, keep the model in memory, and wait for the version in which they
            continue.
        drain: whether processes of `active` must stop between two steps, acknowledge or give back their
            shards, report DRAINED, and wait. If it becomes False while `active` stays the same, they
            continue.
        save: request id of a checkpoint that the chief must save now (between two steps); else "". With
            `drain`, it is set once all other processes are drained.
        trained: the newest version that made a step; processes of older versions must end.
        workers: address of each worker by rank, for information (used by evaluators and sparse clusters);
            empty in a collective job, whose workers are the members of `active` and `next`.
        stop: whether this node is released: it must end the training process as on SIGTERM and exit 0.
        finished: whether the job has succeeded, so that parameter servers and evaluators must end.
        dump: id of a request for stacks, because training hangs; else "". Once per id, each agent makes its
            process of `active` write the stacks of its threads to its log.
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
