"""The whole state of a job's master: one mutable object and one small JSON document.

`messages` and `observations` enter what nodes report and what the cluster shows, `transitions.settle_job`
derives the consequences, and `views` reads what is reported. `JobDocument` holds all that matters after a
crash; the rest is measured or reported again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from edl_workflows.jobs import names
from edl_workflows.jobs.objects import Count
from edl_workflows.jobs.scale_plan.model import NodeResource, ScalePlan, ScalePlanPhase, ScalePlanSpec
from edl_workflows.master.shards.manager import ShardManager
from edl_workflows.master.shards.snapshot import ShardsSnapshot
from edl_workflows.master.state.autoscale.own_plans import AutoscalingState
from edl_workflows.master.state.checkpoints import Checkpoints
from edl_workflows.master.state.goodput import Goodput, GoodputMeter
from edl_workflows.master.state.job_result import TrainingResult
from edl_workflows.master.state.nodes.hang import Hangs, LastMove
from edl_workflows.master.state.nodes.node_check import NodeCheck
from edl_workflows.master.state.nodes.pod_plans import PodPlans
from edl_workflows.master.state.nodes.registry import JobNode, NodeRegistry, NodeStatus
from edl_workflows.master.state.nodes.relaunch import JobRestart, Restarts, record_restart
from edl_workflows.master.state.plans.plan_run import PlanRun
from edl_workflows.master.state.settings import JobSettings, RendezvousLimits
from edl_workflows.master.state.statistics import History, Statistics
from edl_workflows.master.state.sync import SyncGroups
from edl_workflows.master.state.versions.cluster_versions import ClusterVersion, ClusterVersions
from edl_workflows.protocol.nodes import Directive, ServerReport

FORMAT = 2
EARLIEST = 1e-3
"""Unix seconds for a time that was shifted before 0, since 0 means "never"."""


@dataclass(frozen=True)
class StepProgress:
    """The global step of the active version, and when it was made.

    Attributes:
        step: the newest step.
        time: Unix seconds at the worker that made it.
        first, first_time: the first reported step, and when it was made.
        records: records done in a collective job, as counted by its members; other jobs acknowledge records.
    """

    step: int = 0
    time: float = 0.0
    first: int = 0
    first_time: float = 0.0
    records: int = 0


@dataclass(frozen=True)
class Announcement:
    """What the nodes were told last: the directive, and the nodes that shall stop."""

    directive: Directive = field(default_factory=lambda: Directive(revision=0))
    stopping: tuple[str, ...] = ()


@dataclass(frozen=True)
class ObservedPlan:
    """A manual ScalePlan in the cluster; `generation` is that of its spec."""

    uid: str
    name: str
    spec: ScalePlanSpec
    phase: ScalePlanPhase | None = None
    generation: int = 0

    @classmethod
    def of(cls, plan: ScalePlan) -> "ObservedPlan":
        metadata = plan.metadata
        return cls(metadata.uid, metadata.name, plan.spec, plan.status.phase, metadata.generation)


@dataclass(frozen=True)
class JobDocument:
    """What is stored. Unknown fields are an error: a newer master's state must not be understood in part.

    Attributes:
        counts: desired nodes by role; after the start only ScalePlans change them.
        sizes: size of new nodes by role, where it differs from the template's.
        finished_plans: uids of the newest plans that have ended.
        max_workers: of a collective job, the most workers of a training group, as of the start; else 0.
        servers: which changes of its parameter servers the program allows; None if it did not say.
        connected: whether a training process has reported to the master, so that the program uses the
            library.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    counts: dict[str, Count]
    sizes: dict[str, NodeResource] = field(default_factory=dict)
    nodes: tuple[JobNode, ...] = ()
    next_ids: dict[str, int] = field(default_factory=dict)
    versions: ClusterVersions = field(default_factory=ClusterVersions)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    sync: SyncGroups = field(default_factory=SyncGroups)
    plan: PlanRun | None = None
    finished_plans: tuple[str, ...] = ()
    pod_plans: PodPlans = field(default_factory=PodPlans)
    steps: StepProgress = field(default_factory=StepProgress)
    outcome: TrainingResult | None = None
    said: Announcement = field(default_factory=Announcement)
    shards: ShardsSnapshot = field(default_factory=ShardsSnapshot)
    history: History = field(default_factory=History)
    autoscaling: AutoscalingState = field(default_factory=AutoscalingState)
    max_workers: int = 0
    goodput: Goodput = field(default_factory=Goodput)
    restarts: Restarts = field(default_factory=Restarts)
    hangs: Hangs = field(default_factory=Hangs)
    node_check: NodeCheck = field(default_factory=NodeCheck)
    servers: ServerReport | None = None
    connected: bool = False
    format: int = FORMAT

    def to_json(self) -> bytes:
        return _adapter().dump_json(self, exclude_defaults=True)

    @classmethod
    def from_json(cls, text: bytes | str) -> "JobDocument":
        """Parses the text of `to_json`.

        Raises:
            ValueError: it is not such a document.
        """
        document = _adapter().validate_json(text)
        if document.format != FORMAT:
            raise ValueError(f"format: it is {document.format}, this version reads {FORMAT}")
        return document


class JobState:
    """The state, for one thread: the master's loop.

    Args:
        settings: of the job; `settings` is replaced when the job's spec changes.
        document: as the previous master stored it; None for a new job.
        watches_pods: whether pods are observed (in a cluster); otherwise only agents report.
    """

    def __init__(
        self, settings: JobSettings, document: JobDocument | None = None, *, watches_pods: bool = False
    ) -> None:
        stored = document or JobDocument({role: spec.replicas for role, spec in settings.roles.items()})
        self.settings = settings
        self.watches_pods = watches_pods
        self.counts = dict(stored.counts)
        self.sizes = dict(stored.sizes)
        self.nodes = NodeRegistry(stored.nodes, stored.next_ids)
        self.versions = stored.versions
        self.checkpoints = stored.checkpoints
        self.sync = stored.sync
        self.plan = stored.plan
        self.finished_plans = stored.finished_plans
        self.pod_plans = stored.pod_plans
        self.steps = stored.steps
        self.outcome = stored.outcome
        self.said = stored.said
        self.shards = ShardManager(stored.shards)
        self.history = stored.history
        self.autoscaling = stored.autoscaling
        self.max_workers = stored.max_workers or (settings.rendezvous.max_nodes if settings.collective else 0)
        self.goodput = GoodputMeter(stored.goodput)
        self.restarts = stored.restarts
        self.hangs = stored.hangs
        self.node_check = stored.node_check
        self.servers = stored.servers
        self.connected = stored.connected
        # Not stored: reported or measured again.
        self.statistics = Statistics()
        self.last_seen: dict[str, float] = {}
        self.pending_since: dict[str, float] = {}  # restarts with each master and after a suspension
        # Nodes from before a suspension that have not reported since.
        self.taken_by_suspension: set[str] = set()
        self.uncut: set[str] = set()  # nodes pending for long that were considered for a smaller size
        self.prepared_since: tuple[int, float] = (0, 0.0)  # number of the next version, and since when
        self.exits_since: dict[str, float] = {}
        self.missing_since: float | None = None  # too few workers have joined for a group
        self.listening_since: float | None = None  # the master receives acknowledgements
        self.done_since: float | None = None  # the data and all critical nodes are done
        self.newcomers_wait_until = 0.0  # the last attempt to admit newcomers failed
        self.moved: LastMove | None = None
        self.plans_seen: tuple[ObservedPlan, ...] | None = None
        self.recorded_serial = 0
        self.refused: dict[str, str] = {}  # requests that the API server refuses, with the reason

    def document(self) -> JobDocument:
        return JobDocument(
            counts=self.counts,
            sizes=self.sizes,
            nodes=tuple(self.nodes),
            next_ids=self.nodes.next_ids,
            versions=self.versions,
            checkpoints=self.checkpoints,
            sync=self.sync,
            plan=self.plan,
            finished_plans=self.finished_plans,
            pod_plans=self.pod_plans,
            steps=self.steps,
            outcome=self.outcome,
            said=self.said,
            shards=self.shards.snapshot(),
            history=self.history,
            autoscaling=self.autoscaling,
            max_workers=self.max_workers,
            goodput=self.goodput.goodput,
            restarts=self.restarts,
            hangs=self.hangs,
            node_check=self.node_check,
            servers=self.servers,
            connected=self.connected,
        )

    @property
    def newest_time(self) -> float:
        """The newest time that a previous master stored, in Unix seconds; 0 for a new job."""
        nodes = [time for node in self.nodes for time in (node.since, node.joined, node.released_at)]
        phase = self.plan.steps[-1].start if self.plan is not None else 0.0
        return max(*nodes, self.goodput.goodput.at, phase, 0.0)

    def shift_times(self, seconds: float) -> None:
        """Moves all times by a jump of the clock, or by a pause of the master, which is no silence of the
        nodes.
        """
        self.last_seen = {node: seen + seconds for node, seen in self.last_seen.items()}
        self.pending_since = {node: since + seconds for node, since in self.pending_since.items()}
        self.statistics.forget_samples()
        self.goodput.shift_times(seconds)
        self.moved = None
        number, since = self.prepared_since
        self.prepared_since = (number, since + seconds)
        self.exits_since = {node: since + seconds for node, since in self.exits_since.items()}
        if self.missing_since is not None:
            self.missing_since += seconds
        if self.done_since is not None:
            self.done_since += seconds
        self.listening_since = None
        if self.newcomers_wait_until:
            self.newcomers_wait_until += seconds
        self.node_check = self.node_check.shift_times(seconds)
        if self.pod_plans.not_before:
            self.pod_plans = replace(self.pod_plans, not_before=self.pod_plans.not_before + seconds)
        if self.plan is not None and not self.plan.phase.final:
            self.plan = self.plan.shift_times(seconds)
        for node in self.nodes:
            times = {"since": node.since, "joined": node.joined, "released_at": node.released_at}
            moved = {name: max(EARLIEST, at + seconds) for name, at in times.items() if at}
            self.nodes.change(node, **moved)

    def restarted(self, subject: str, cause: str, message: str, now: float) -> None:
        """Records that a node ended without success, or that all training processes restart."""
        self.restarts = record_restart(self.restarts, JobRestart(now, subject, cause, message))

    @property
    def checked(self) -> bool:
        """Whether the first version may be formed: the nodes passed their check, or the job wants none."""
        wanted = self.settings.fault_tolerance.node_check and self.versions.active is None
        return not wanted or self.node_check.done

    @property
    def self_formed(self) -> ClusterVersion | None:
        """The training group of a program that does not use the library.

        Its processes form the group from their environment and report nothing, so the version for which they
        were started never becomes active. The number is 0 while too few workers are left for the next group.
        """
        change = self.versions.change
        if not self.settings.collective or self.connected or self.versions.active or change is None:
            return None
        return ClusterVersion(change.number, change.target)

    @property
    def world(self) -> ClusterVersion | None:
        """The training group of a collective job that trains, or trained last."""
        return self.versions.active or self.self_formed

    @property
    def chief(self) -> JobNode | None:
        """The node with the chief's rank; in a collective job rank 0 of the training group, once there is
        one.
        """
        if self.settings.collective:
            world = self.world
            return self.nodes.find(names.WORKER_TYPE, world.members[0]) if world else None
        return self.nodes.at_rank(self.settings.chief_type, 0)

    @property
    def trainers(self) -> list[JobNode]:
        """Nodes whose training process takes requests: registered workers and the chief; in a collective job,
        members of the training group.
        """
        if self.settings.collective:
            ids = self.versions.active.members if self.versions.active else ()
            world = [self.nodes.find(names.WORKER_TYPE, node_id) for node_id in ids]
            return [n for n in world if n is not None and n.live and n.registered and not n.waiting]
        both = (*self.nodes.live(names.CHIEF_TYPE), *self.nodes.live(names.WORKER_TYPE))
        return [node for node in both if node.registered and not node.waiting]

    @property
    def members_by_id(self) -> Mapping[int, JobNode]:
        """The nodes of the role whose nodes are members of a version."""
        return {node.id: node for node in self.nodes.of(self.settings.member_type)}

    @property
    def joined(self) -> Mapping[int, float]:
        """When the workers of a collective job joined that can be in its world."""
        return {node.id: node.joined for node in self.nodes.live(names.WORKER_TYPE) if node.registered}

    @property
    def rendezvous(self) -> RendezvousLimits:
        """What a world may look like."""
        return replace(self.settings.rendezvous, max_nodes=self.max_workers)

    @property
    def starts_from_damaged(self) -> bool:
        """Whether the active version, which has made no step yet, can't start because its checkpoint is
        damaged.
        """
        active = self.versions.active
        if active is None or self.versions.trained >= active.number:
            return False
        return self.checkpoints.is_damaged(active.restore)

    @property
    def goes_back(self) -> bool:
        """Whether the version that trained last can't continue, because it lost a member or the model."""
        active, change, formed = self.versions.active, self.versions.change, self.self_formed
        if formed is not None:
            return not formed.number or bool(self.lost_members(formed.members))
        return active is not None and change is not None and not change.cause.orderly

    def lost_members(self, members: tuple[int, ...]) -> list[int]:
        """The `members` that no longer take part. A worker that trained to the end is not lost."""
        nodes = {node_id: self.nodes.find(self.settings.member_type, node_id) for node_id in members}
        return [node_id for node_id, node in nodes.items() if node is None or self._lost(node)]

    def _lost(self, node: JobNode) -> bool:
        if self.settings.collective and node.status is NodeStatus.SUCCEEDED:
            return node.released or node.replaced_by >= 0
        return node.status.final


@cache
def _adapter() -> TypeAdapter[JobDocument]:
    return TypeAdapter(JobDocument)
