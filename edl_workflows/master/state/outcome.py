"""When a job is over. Pure: from nodes and data to a verdict, or none yet."""

from collections.abc import Mapping
from dataclasses import dataclass

from edl_workflows.jobs import names
from edl_workflows.master.state.nodes import Node, NodeRegistry, NodeStatus
from edl_workflows.master.state.rendezvous import Parameters
from edl_workflows.master.state.settings import JobSettings


@dataclass(frozen=True)
class Outcome:
    """How the job ended."""

    succeeded: bool
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Data:
    """What data sets and checkpoints say.

    Attributes:
        unfinished: names of the finite data sets that are not consumed.
        failure: why a data set failed.
        lost_checkpoint: why neither model nor data position can be had back.
    """

    unfinished: tuple[str, ...] = ()
    failure: str = ""
    lost_checkpoint: str = ""


@dataclass(frozen=True)
class World:
    """The world of a collective job.

    Attributes:
        members: node ids by rank of the one that trains; empty until there is one.
        joined: how many workers are there to make one of.
        missing: for how many seconds they have been too few.
        allowed: what a world may look like.
    """

    members: tuple[int, ...]
    joined: int
    missing: float
    allowed: Parameters


def outcome(
    registry: NodeRegistry,
    settings: JobSettings,
    data: Data,
    pending: Mapping[str, float],
    world: World | None = None,
) -> Outcome | None:
    """The job's end, or None while it can go on.

    It fails when a data set fails, when no checkpoint is left to go back to, when a critical node can't be replaced or stays pending for too long, and when no
    worker is left to go on; a collective job when too few are left, or have joined for too long. It succeeds when all workers have ended, those that were not given up with success, and all
    finite data sets are consumed. An endless data set ends with its workers. A collective job succeeds when its world has
    ended and rank 0 of it with success: the model is complete.

    Args:
        registry: all nodes.
        settings: of the job.
        data: what data sets and checkpoints say.
        pending: for how many seconds each node without a running pod has been so.
        world: of a collective job; None for any other.
    """
    if data.failure:
        return Outcome(False, "DataSetFailed", data.failure)
    if data.lost_checkpoint:
        return Outcome(False, "CorruptCheckpoint", data.lost_checkpoint)
    for node in registry:
        if not settings.critical(node.type, node.rank) or node.released:
            continue
        if node.given_up:
            return Outcome(False, "CriticalNodeFailed", node.given_up)
        if 0 < settings.timeouts.pending < pending.get(str(node), 0.0):
            message = (
                f"{node} was pending for {settings.timeouts.pending:g} s, and the job can't go on without it"
            )
            return Outcome(False, "PendingTimeout", message)
    if world is not None and (ended := _world_ended(registry, world)) is not None:
        return ended
    return _ended(registry, data)


def _world_ended(registry: NodeRegistry, world: World) -> Outcome | None:
    members = [registry.find(names.WORKER_TYPE, node_id) for node_id in world.members]
    if members and members[0] is not None and _succeeded(members[0]):
        over = all(node is None or node.status.final for node in members)
        return Outcome(True, "Completed", "the world trained to the end") if over else None
    least = world.allowed.min_nodes
    workers = [node for node in registry.of(names.WORKER_TYPE) if node.replaced_by < 0 and not node.released]
    left = [node for node in workers if _succeeded(node) or not (node.lost and node.given_up)]
    if len(left) < least:
        why = "; ".join(node.given_up for node in workers if node.given_up) or "no more are wanted"
        message = f"{len(left)} workers are left, and {least} are needed (spec.rendezvous.minNodes): {why}"
        return Outcome(False, "TooFewWorkers", message[:2048])
    if world.missing > world.allowed.join_timeout:
        message = (
            f"{world.joined} of at least {least} workers had joined after {world.allowed.join_timeout:g} s "
            "(spec.rendezvous.joinTimeoutSeconds)"
        )
        return Outcome(False, "JoinTimeout", message)
    return None


def _succeeded(node: Node) -> bool:
    return node.status is NodeStatus.SUCCEEDED and node.replaced_by < 0


def _ended(registry: NodeRegistry, data: Data) -> Outcome | None:
    workers = [
        node
        for node in (*registry.of(names.CHIEF_TYPE), *registry.of(names.WORKER_TYPE))
        if not node.released and node.replaced_by < 0
    ]
    if not workers or any(not node.status.final or (node.lost and not node.given_up) for node in workers):
        return None
    if not any(node.status is NodeStatus.SUCCEEDED for node in workers):
        return Outcome(False, "AllWorkersFailed", "; ".join(node.given_up for node in workers)[:2048])
    if data.unfinished:
        message = f"all workers ended with success, but these data sets are not consumed: {', '.join(data.unfinished)}"
        return Outcome(False, "DataNotConsumed", message)
    return Outcome(True, "Completed", "all data is consumed and all workers ended")
