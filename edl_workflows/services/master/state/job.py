"""The whole state of a job's master: what is stored, and what is measured or reported again after a crash.

`messages` and `observations` enter what nodes report and what the cluster shows, `transitions.settle_job`
derives the consequences, and `views` reads what is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state.goodput import Moments
from edl_workflows.services.master.state.nodes.absence import MemberSign
from edl_workflows.services.master.state.nodes.hang import LastMove
from edl_workflows.services.master.state.nodes.hang_report import HangReport
from edl_workflows.services.master.state.nodes.leaving import Departure
from edl_workflows.services.master.state.nodes.loss_batch import GROUP_SECONDS, POD_SECONDS, LossBatch
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeStatus
from edl_workflows.services.master.state.nodes.relaunch import JobRestart, record_restart
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits
from edl_workflows.services.master.state.statistics import Statistics
from edl_workflows.services.master.state.stored_state import StoredState
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersion

EARLIEST = 1e-3
"""Unix seconds for a time that was shifted before 0, since 0 means "never"."""


@dataclass(frozen=True)
class RolloutRequest:
    """A manual ScalePlan in the cluster; `generation` is that of its spec."""

    uid: str
    name: str
    spec: ScalePlanSpec
    phase: ScalePlanPhase | None = None
    generation: int = 0

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.phase is not None and self.phase.final

    @classmethod
    def of(cls, plan: ScalePlan) -> "RolloutRequest":
        metadata = plan.metadata
        return cls(metadata.uid, metadata.name, plan.spec, plan.status.phase, metadata.generation)


@dataclass(frozen=True)
class MachineLoss:
    """What a pod shows of the loss of its machine (`edl_workflows.core.kubernetes.lost_pods`).

    Attributes:
        gone_at: when the pod, which is being deleted, counts as gone, in Unix seconds; None if it is not.
        unreachable_since: since when its machine does not report; None if it does.
    """

    gone_at: float | None = None
    unreachable_since: float | None = None


@dataclass
class VolatileState:
    """The state that is not stored: a restarted master measures it again, or is told it again."""

    master: str = ""
    """Identifies this master to agents that keep acknowledgements until they are stored."""
    statistics: Statistics = field(default_factory=Statistics)
    moments: Moments | None = None
    """Steps with the useful time until then; None until this master has counted time (`goodput`)."""
    last_seen: dict[str, float] = field(default_factory=dict)
    """When each node was last heard from, in Unix seconds like all times here."""
    pending_since: dict[str, float] = field(default_factory=dict)
    """Since when each node waits for its pod to run; starts again after a suspension."""
    taken_by_suspension: set[str] = field(default_factory=set)
    """Nodes from before a suspension that have not reported since."""
    uncut: set[str] = field(default_factory=set)
    """Long-pending nodes that have already been considered for a smaller size."""
    prepared_since: tuple[int, float] = (0, 0.0)
    """Number of the next version, and since when it has been in preparation."""
    exits_since: dict[str, float] = field(default_factory=dict)
    """When each node first reported the end of its process."""
    lost_members: LossBatch = field(default_factory=LossBatch)
    """The lost members of the training group that trained last, until the next one is formed."""
    lost_nodes: LossBatch = field(default_factory=LossBatch)
    """The lost nodes whose replacements have no pod yet."""
    missing_since: float | None = None
    """Since when too few workers have joined for a training group."""
    listening_since: float | None = None
    """Since when the master receives acknowledgements."""
    done_since: float | None = None
    """Since when the data and all critical nodes are done."""
    signs: dict[str, MemberSign] = field(default_factory=dict)
    """The newest sign of life of each member's process."""
    drained_since: float = 0.0
    """Since when drained members wait for the others; 0 while none does."""
    newcomers_wait_until: float = 0.0
    """Until when no newcomers are admitted, because the last attempt failed."""
    losses: dict[str, MachineLoss] = field(default_factory=dict)
    """The nodes whose machines are, or seem to be, lost."""
    moved: LastMove | None = None
    """When training last progressed."""
    hang_report: HangReport | None = None
    """Where the processes stood in the newest hang."""
    plans_seen: tuple[RolloutRequest, ...] | None = None
    """The manual ScalePlans in the cluster; None until they are listed."""
    recorded_serial: int = 0
    """The newest `Rollout.serial` that the status of the present plan shows."""
    departure: Departure = field(default_factory=Departure)
    """The nodes that were told to end; they repeat that until they may."""
    asking_agents: set[str] = field(default_factory=set)
    """The nodes whose agents wait for the last checkpoint before they end (`Heartbeat.asks_to_leave`)."""
    records_total: int = 0
    """Records of all epochs of a collective job, as its members count them; 0 if unknown."""
    saves: bool = False
    """Whether a training process has reported that it answers requests for checkpoints."""
    refused: dict[str, str] = field(default_factory=dict)
    """Requests that the API server refuses, with the reason."""

    def shift_times(self, seconds: float) -> None:
        """See `JobState.shift_times`."""
        for times in (self.last_seen, self.pending_since, self.exits_since):
            times.update({node: at + seconds for node, at in times.items()})
        self.statistics.shift_times(seconds)
        number, since = self.prepared_since
        self.prepared_since = (number, since + seconds)
        if self.missing_since is not None:
            self.missing_since += seconds
        if self.done_since is not None:
            self.done_since += seconds
        if self.drained_since:
            self.drained_since += seconds
        if self.newcomers_wait_until:
            self.newcomers_wait_until += seconds
        self.departure = self.departure.shift_times(seconds)
        self.listening_since = self.moved = None
        self.lost_members = self.lost_nodes = LossBatch()
        self.signs.clear()


class JobState(StoredState):
    """The state, for one thread: the master's loop.

    It consists of the stored state, the `volatile` state, which is not stored, and the job's settings.

    Args:
        settings: the job's settings; the attribute is replaced when the job's spec changes.
        stored: the state that the previous master stored; None for a new job.
        watches_pods: whether pods are observed (in a cluster); otherwise only agents report.
    """

    def __init__(
        self, settings: JobSettings, stored: StoredState | None = None, *, watches_pods: bool = False
    ) -> None:
        initial = stored or StoredState({role: spec.replicas for role, spec in settings.roles.items()})
        super().__init__(**{field.name: getattr(initial, field.name) for field in fields(StoredState)})
        self.max_workers = self.max_workers or (settings.rendezvous.max_nodes if settings.collective else 0)
        self.volatile = VolatileState()
        self.settings = settings
        self.watches_pods = watches_pods

    @property
    def newest_time(self) -> float:
        """The newest time that a previous master stored, in Unix seconds; 0 for a new job."""
        nodes = [time for node in self.nodes for time in (node.since, node.joined, node.released_at)]
        phase = self.plan.steps[-1].start if self.plan is not None else 0.0
        return max(*nodes, self.goodput.at, self.goodput.since, phase, 0.0)

    @property
    def size(self) -> int:
        """How many nodes the job wants."""
        return sum(self.counts.values())

    def losses_due(self, now: float) -> float | None:
        """When losses that wait for further ones are to be answered, in Unix seconds; None if none wait."""
        group = self.volatile.lost_members.due(self.size, GROUP_SECONDS)
        pods = self.volatile.lost_nodes.due(self.size, POD_SECONDS)
        return min((due for due in (group, pods) if due > now), default=None)

    def shift_times(self, seconds: float) -> None:
        """Move all times after the clock jumped or the master was paused, so that nodes don't seem to have
        been silent.
        """
        self.volatile.shift_times(seconds)
        self.goodput = self.goodput.shift_times(seconds)
        self.node_check = self.node_check.shift_times(seconds)
        if self.pod_plans.not_before:
            self.pod_plans = replace(self.pod_plans, not_before=self.pod_plans.not_before + seconds)
        if self.plan is not None and not self.plan.phase.final:
            self.plan = self.plan.shift_times(seconds)
        for node in self.nodes:
            times = {"since": node.since, "joined": node.joined, "released_at": node.released_at}
            times["not_before"] = node.not_before
            moved = {name: max(EARLIEST, at + seconds) for name, at in times.items() if at}
            self.nodes.change(node, **moved)

    def restarted(self, subject: str, cause: str, message: str, now: float, *, replaced: bool = True) -> None:
        """Record that a node ended without success, whether it is replaced or not, or that all training
        processes restart.
        """
        restart = JobRestart(now, subject, cause, message, replaced)
        self.restarts = record_restart(self.restarts, restart)

    def measure_records(self, now: float) -> None:
        """Take a sample of the records that were trained here: not of the data position, which a restored
        model moves."""
        trained = self.steps.records + self.shards.records_answered
        over = self.shards.finished or self.outcome is not None
        self.volatile.statistics.sample_records(trained, now, over=over)

    @property
    def checked(self) -> bool:
        """Whether the first version may be formed: the nodes passed their check, or the job wants none."""
        check_requested = self.settings.fault_tolerance.node_check and self.versions.active is None
        return not check_requested or self.node_check.done

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
        """For each worker that can be a member of a collective job's training group, when it joined."""
        return {node.id: node.joined for node in self.nodes.live(names.WORKER_TYPE) if node.registered}

    @property
    def rendezvous(self) -> RendezvousLimits:
        """Limits of the training group. If several members hold the model together, the group consists of
        whole replica groups."""
        limits = replace(self.settings.rendezvous, max_nodes=self.max_workers)
        size = self.replica_size
        if size == 1:
            return limits
        return replace(limits, min_nodes=-(-limits.min_nodes // size) * size, node_unit=size)

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
        return active is not None and change is not None and not (change.cause.orderly or change.in_place)

    @property
    def survivors(self) -> tuple[int, ...]:
        """Members of the active version, by rank, whose running processes can continue in place. The members
        of a replica group that has lost one of them can't."""
        active = self.versions.active
        if active is None or not self.in_place:
            return ()
        lost = (set(active.members) - self.joined.keys()).union(active.ended)
        return active.without(lost)

    @property
    def holders(self) -> tuple[int, ...]:
        """The `survivors` that hold the model."""
        holders = frozenset(self.versions.holders)
        return tuple(node for node in self.survivors if node in holders)

    @property
    def gone_members(self) -> list[int]:
        """Members of the active version that no longer take part."""
        active = self.versions.active
        return [] if active is None else [*self.lost_members(active.members), *active.ended]

    def lost_members(self, members: tuple[int, ...]) -> list[int]:
        """The `members` that no longer take part. A worker that trained to the end is not lost."""
        nodes = {node_id: self.nodes.find(self.settings.member_type, node_id) for node_id in members}
        return [node_id for node_id, node in nodes.items() if node is None or self._lost(node)]

    def _lost(self, node: JobNode) -> bool:
        if self.settings.collective and node.status is NodeStatus.SUCCEEDED:
            return node.released or node.replaced_by >= 0
        return node.status.final
