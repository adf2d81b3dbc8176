"""When a job is over. Pure: from nodes and data to a verdict, or none yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.policies import PendingFailStrategy
from edl_workflows.master.state.nodes.registry import JobNode, NodeRegistry, NodeStatus
from edl_workflows.master.state.settings import JobSettings, RendezvousLimits

REASONS = {
    "DataSetFailed": "a shard failed or timed out more often than `max_retries`",
    "CorruptCheckpoint": "of the checkpoints to start from none is whole, or none fits the model",
    "Hang": "training stood still: `hangAction: fail`, or the restarts of all training processes (`maxRestarts`) are used up",
    "CheckpointFailed": "as many checkpoints in a row as `maxFailedSaves` allows could not be saved",
    "CriticalNodeFailed": "a parameter server, the chief or a critical worker was not replaced",
    "PendingTimeout": "a node found no place in time (`pendingTimeoutSeconds`, `pendingFailStrategy`)",
    "TooFewWorkers": "of a collective job fewer workers than `minNodes` are left",
    "JoinTimeout": "of a collective job fewer workers than `minNodes` joined in time (`joinTimeoutSeconds`)",
    "AllWorkersFailed": "no worker is left to go on",
    "DataNotConsumed": "all workers ended with 0 before the data did",
}
"""Why a master gives its job up, first come first served. `docs/reference/relaunch.md` is made from it."""


@dataclass(frozen=True)
class JobResult:
    """How the job ended.

    Attributes:
        pod: of the node whose failure ended it; "" where none did.
        last_lines: the end of that pod's output.
    """

    succeeded: bool
    reason: str
    message: str = ""
    pod: str = ""
    last_lines: str = ""


@dataclass(frozen=True)
class DataState:
    """What data sets and checkpoints say.

    Attributes:
        unfinished: names of the finite data sets that are not consumed.
        failure: why a data set failed.
        lost_checkpoint: why neither model nor data position can be had back.
        hang: why training that stands still is given up.
        unsaved: why training whose checkpoints can't be saved is given up.
        over: the data and all critical nodes, or the model of a world, have been done for so long that nobody else is waited
            for (`Timeouts.finish`).
    """

    unfinished: tuple[str, ...] = ()
    failure: str = ""
    lost_checkpoint: str = ""
    hang: str = ""
    unsaved: str = ""
    over: bool = False


@dataclass(frozen=True)
class GroupState:
    """The world of a collective job.

    Attributes:
        members: node ids by rank of the one that trains; empty until there is one.
        joined: how many workers are there to make one of.
        missing: for how many seconds they have been too few.
        allowed: what a world may look like.
        broken: it has lost a member, and is not gone back to.
    """

    members: tuple[int, ...]
    joined: int
    missing: float
    allowed: RendezvousLimits
    broken: bool = False


def decide_result(
    registry: NodeRegistry,
    settings: JobSettings,
    data: DataState,
    pending: Mapping[str, float],
    world: GroupState | None = None,
) -> JobResult | None:
    """The job's end, or None while it can go on.

    It fails for one of `REASONS`. It succeeds when all workers have ended, those that were not given up with success, and all
    finite data sets are consumed. An endless data set ends with its workers. Once all data is consumed and all critical nodes
    have ended, the others are not waited for longer than `Timeouts.finish`. A collective job succeeds when its world has
    ended, or was broken, and rank 0 of it has ended with success: the model is complete.

    Args:
        registry: all nodes.
        settings: of the job.
        data: what data sets and checkpoints say.
        pending: for how many seconds each node without a running pod has been so.
        world: of a collective job; None for any other.
    """
    if data.failure:
        return JobResult(False, "DataSetFailed", data.failure)
    if data.lost_checkpoint:
        return JobResult(False, "CorruptCheckpoint", data.lost_checkpoint)
    if data.hang:
        return JobResult(False, "Hang", data.hang)
    if data.unsaved:
        return JobResult(False, "CheckpointFailed", data.unsaved)
    for node in registry:
        if node.given_up and not node.released and settings.critical(node.type, node.rank):
            return _failed("CriticalNodeFailed", node.given_up, node, settings)
    if late := _pending_too_long(registry, settings, pending, world):
        return late
    if world is not None and (ended := _world_ended(registry, settings, data, world)) is not None:
        return ended
    return _ended(registry, settings, data)


def _failed(reason: str, message: str, node: JobNode, settings: JobSettings) -> JobResult:
    pod = names.node_name(settings.name, node.type, node.id)
    return JobResult(False, reason, message, pod, node.message)


def _pending_too_long(
    registry: NodeRegistry, settings: JobSettings, pending: Mapping[str, float], world: GroupState | None
) -> JobResult | None:
    limit, strategy = settings.timeouts.pending, settings.fault_tolerance.pending_fail_strategy
    if not limit or strategy is PendingFailStrategy.SKIP:
        return None
    for node in registry:
        critical, waited = settings.critical(node.type, node.rank), pending.get(str(node), 0.0)
        if world is not None and node.type == names.WORKER_TYPE and not critical:
            waited = min(waited, world.missing)  # nobody waits for a worker beyond those that a world needs
        if (critical or strategy is PendingFailStrategy.ALL) and not node.released and waited > limit:
            else_ = "and the job can't go on without it"
            why = else_ if strategy is PendingFailStrategy.NECESSARY else "and pendingFailStrategy is all"
            return JobResult(False, "PendingTimeout", f"{node} was pending for {limit:g} s, {why}")
    return None


def _world_ended(
    registry: NodeRegistry, settings: JobSettings, data: DataState, world: GroupState
) -> JobResult | None:
    members = [registry.find(names.WORKER_TYPE, node_id) for node_id in world.members]
    if members and members[0] is not None and _succeeded(members[0]):
        # Of a broken world, those that have not ended are kept from it by the loss, not by their work.
        late = [node for node in members if node is not None and not node.status.final]
        over = world.broken or data.over or not late
        stopped = "" if world.broken else _not_waited_for(late, settings)
        message = f"the world trained to the end{stopped}"
        return JobResult(True, "Completed", message) if over else None
    if members and members[0] is not None and members[0].given_up and not registry.live(names.WORKER_TYPE):
        return _failed("CriticalNodeFailed", members[0].given_up, members[0], settings)
    least = world.allowed.min_nodes
    workers = [node for node in registry.of(names.WORKER_TYPE) if node.replaced_by < 0 and not node.released]
    left = [node for node in workers if _succeeded(node) or not (node.lost and node.given_up)]
    if len(left) < least:
        given_up = [node for node in workers if node.given_up]
        why = "; ".join(node.given_up for node in given_up) or "no more are wanted"
        message = f"{len(left)} workers are left, and {least} are needed (spec.rendezvous.minNodes): {why}"
        if not given_up:
            return JobResult(False, "TooFewWorkers", message)
        return _failed("TooFewWorkers", message[:2048], given_up[0], settings)
    if world.missing > world.allowed.join_timeout:
        message = (
            f"{world.joined} of at least {least} workers had joined after {world.allowed.join_timeout:g} s "
            "(spec.rendezvous.joinTimeoutSeconds)"
        )
        return JobResult(False, "JoinTimeout", message)
    return None


def _succeeded(node: JobNode) -> bool:
    return node.status is NodeStatus.SUCCEEDED and node.replaced_by < 0


def _ended(registry: NodeRegistry, settings: JobSettings, data: DataState) -> JobResult | None:
    workers = [
        node
        for node in (*registry.of(names.CHIEF_TYPE), *registry.of(names.WORKER_TYPE))
        if not node.released and node.replaced_by < 0
    ]
    late = [node for node in workers if not node.status.final or (node.lost and not node.given_up)]
    if not workers or (late and not data.over):
        return None
    if not any(node.status is NodeStatus.SUCCEEDED for node in workers):
        message = "; ".join(node.given_up for node in workers)[:2048]
        return _failed("AllWorkersFailed", message, workers[0], settings)
    if data.unfinished:
        message = f"all workers ended with success, but these data sets are not consumed: {', '.join(data.unfinished)}"
        return JobResult(False, "DataNotConsumed", message)
    if late:
        message = f"all data is consumed and all critical nodes ended{_not_waited_for(late, settings)}"
        return JobResult(True, "Completed", message)
    return JobResult(True, "Completed", "all data is consumed and all workers ended")


def _not_waited_for(late: Sequence[JobNode], settings: JobSettings) -> str:
    if not late:
        return ""
    listed = ", ".join(str(node) for node in late[:10])
    return f"; stopped, since they had not ended {settings.timeouts.finish:g} s later: {listed}"
