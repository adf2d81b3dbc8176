"""When a job is over, and how it ended. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_workflows.core.jobs.elastic_job.policies import PendingFailStrategy
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeRegistry, NodeStatus
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits

REASONS = {
    "DataSetFailed": "a shard failed or timed out more often than `max_retries`",
    "CorruptCheckpoint": "no checkpoint to start from is intact, or none fits the model",
    "Hang": "training hung: `hangAction: fail`, or the restarts of all processes (`maxRestarts`) are used up",
    "CheckpointFailed": "`maxFailedSaves` checkpoints in a row could not be saved",
    "CriticalNodeFailed": "a parameter server, the chief or a critical worker was not replaced",
    "PendingTimeout": "a node was not scheduled in time (`pendingTimeoutSeconds`, `pendingFailStrategy`)",
    "TooFewWorkers": "a collective job has fewer workers left than `minNodes`",
    "JoinTimeout": "fewer workers of a collective job than `minNodes` joined in time (`joinTimeoutSeconds`)",
    "AllWorkersFailed": "no worker is left to continue",
    "DataNotConsumed": "all workers ended with 0 before all data was consumed",
}
"""Why a master fails its job; the first that applies is reported. `docs/reference/relaunch.md` is generated
from it.
"""


@dataclass(frozen=True)
class TrainingResult:
    """How the job ended.

    Attributes:
        pod: of the node whose failure ended the job; else "".
        last_lines: the end of that pod's output.
    """

    succeeded: bool
    reason: str
    message: str = ""
    pod: str = ""
    last_lines: str = ""


@dataclass(frozen=True)
class DataState:
    """State of data sets, checkpoints and training that can end the job.

    Attributes:
        unfinished: names of the finite data sets that are not consumed.
        failure: why a data set failed.
        lost_checkpoint: why neither model nor data position can be restored.
        hang: why training that hangs is given up.
        unsaved: why training whose checkpoints can't be saved is given up.
        over: whether the data and all critical nodes, or the model of a training group, have been done for so
            long that the job no longer waits for other nodes (`Timeouts.finish`).
    """

    unfinished: tuple[str, ...] = ()
    failure: str = ""
    lost_checkpoint: str = ""
    hang: str = ""
    unsaved: str = ""
    over: bool = False


@dataclass(frozen=True)
class GroupState:
    """The training group of a collective job.

    Attributes:
        members: node ids by rank; empty until there is a group.
        joined: number of workers that could form one.
        missing: for how many seconds there have been too few of them.
        allowed: limits of a group.
        broken: whether it can't continue, because it lost a member or the model.
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
) -> TrainingResult | None:
    """The job's end; None while it continues.

    A job fails for one of `REASONS`. It succeeds when every worker has succeeded or was given up, and all
    finite data sets are consumed; an endless data set ends with its workers. Once all data is consumed and
    all critical nodes have ended, the job waits for the other nodes no longer than `Timeouts.finish`. A
    collective job succeeds when its rank 0 has succeeded (the model is complete) and its group has ended or
    was broken.

    Args:
        registry: all nodes.
        settings: of the job.
        data: state of data sets and checkpoints.
        pending: for each node without a running pod, how many seconds it has been pending.
        world: of a collective job; else None.
    """
    if data.failure:
        return TrainingResult(False, "DataSetFailed", data.failure)
    if data.lost_checkpoint:
        return TrainingResult(False, "CorruptCheckpoint", data.lost_checkpoint)
    if data.hang:
        return TrainingResult(False, "Hang", data.hang)
    if data.unsaved:
        return TrainingResult(False, "CheckpointFailed", data.unsaved)
    for node in registry:
        if node.given_up and not node.released and settings.critical(node.type, node.rank):
            return _failed_node_result("CriticalNodeFailed", node.given_up, node, settings)
    if late := _pending_too_long(registry, settings, pending, world):
        return late
    if world is not None and (ended := _group_result(registry, settings, data, world)) is not None:
        return ended
    return _workers_result(registry, settings, data)


def _failed_node_result(reason: str, message: str, node: JobNode, settings: JobSettings) -> TrainingResult:
    pod = settings.pod_name(node.type, node.id)
    return TrainingResult(False, reason, message, pod, node.message)


def _pending_too_long(
    registry: NodeRegistry, settings: JobSettings, pending: Mapping[str, float], world: GroupState | None
) -> TrainingResult | None:
    limit, strategy = settings.timeouts.pending, settings.fault_tolerance.pending_fail_strategy
    if not limit or strategy is PendingFailStrategy.SKIP:
        return None
    for node in registry:
        critical, waited = settings.critical(node.type, node.rank), pending.get(str(node), 0.0)
        if world is not None and node.type == names.WORKER_TYPE and not critical:
            waited = min(waited, world.missing)  # workers beyond the minimum are not waited for
        if (critical or strategy is PendingFailStrategy.ALL) and not node.released and waited > limit:
            else_ = "and the job can't go on without it"
            consequence = (
                else_ if strategy is PendingFailStrategy.NECESSARY else "and pendingFailStrategy is all"
            )
            return TrainingResult(
                False, "PendingTimeout", f"{node} was pending for {limit:g} s, {consequence}"
            )
    return None


def _group_result(
    registry: NodeRegistry, settings: JobSettings, data: DataState, world: GroupState
) -> TrainingResult | None:
    members = [registry.find(names.WORKER_TYPE, node_id) for node_id in world.members]
    if members and members[0] is not None and members[0].completed:
        # Members of a broken group that have not ended are stuck because of the loss; they don't work.
        late = [node for node in members if node is not None and not node.status.final]
        over = world.broken or data.over or not late
        stopped = "" if world.broken else _describe_stopped(late, settings)
        message = f"the training group completed the training{stopped}"
        return TrainingResult(True, "Completed", message) if over else None
    if members and members[0] is not None and members[0].given_up and not registry.live(names.WORKER_TYPE):
        return _failed_node_result("CriticalNodeFailed", members[0].given_up, members[0], settings)
    least = world.allowed.min_nodes
    workers = [node for node in registry.of(names.WORKER_TYPE) if node.replaced_by < 0 and not node.released]
    left = [node for node in workers if node.completed or not (node.lost and node.given_up)]
    if len(left) < least:
        given_up = [node for node in workers if node.given_up]
        reason = "; ".join(node.given_up for node in given_up) or "no more are wanted"
        message = f"{len(left)} workers are left, and {least} are needed (spec.rendezvous.minNodes): {reason}"
        if not given_up:
            return TrainingResult(False, "TooFewWorkers", message)
        return _failed_node_result("TooFewWorkers", message[:2048], given_up[0], settings)
    if world.missing > world.allowed.join_timeout:
        message = (
            f"{world.joined} of at least {least} workers had joined after {world.allowed.join_timeout:g} s "
            "(spec.rendezvous.joinTimeoutSeconds)"
        )
        return TrainingResult(False, "JoinTimeout", message)
    return None


def _workers_result(registry: NodeRegistry, settings: JobSettings, data: DataState) -> TrainingResult | None:
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
        return _failed_node_result("AllWorkersFailed", message, workers[0], settings)
    if data.unfinished:
        unfinished = ", ".join(data.unfinished)
        message = f"all workers succeeded, but these data sets are not consumed: {unfinished}"

        return TrainingResult(False, "DataNotConsumed", message)
    if late:
        message = f"all data is consumed and all critical nodes ended{_describe_stopped(late, settings)}"
        return TrainingResult(True, "Completed", message)
    return TrainingResult(True, "Completed", "all data is consumed and all workers ended")


def _describe_stopped(late: Sequence[JobNode], settings: JobSettings) -> str:
    if not late:
        return ""
    listed = ", ".join(str(node) for node in late[:10])
    return f"; stopped, since they had not ended {settings.timeouts.finish:g} s later: {listed}"
