"""Messages of training processes about steps, data and synchronization, entered into the state.

As in `messages`, any of them can arrive twice, late, or from a node that was removed.
"""

from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
    LeaseState,
)
from edl_workflows.core.protocol.nodes import ProcessReport
from edl_workflows.core.protocol.sync import BarrierState, SyncJoin, SyncState
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.state import goodput_steps, messages, sync, views
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import standstill

_COPIES = 6
"""How often a partition can occur in the state: in the data set's parameters, its position and a lease, and
once for each kept checkpoint.
"""


@dataclass(frozen=True)
class StoreUse:
    """How full the store of the state is.

    Attributes:
        size: bytes of the state when it was last stored.
        capacity: the most bytes that fit.
        place: the store, for error messages.
    """

    size: int
    capacity: int
    place: str


def record_step(state: JobState, message: StepReport, now: float) -> bool:
    """Record a step, and that the process is alive.

    Returns:
        Whether it is the first step of a version, which must be stored before it is answered.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: in a collective job, the node is not a member of that version.
    """
    before = state.versions
    messages.record_step_report(state, message)
    state.measure_records(now)
    standstill.note_sign(state, message, now)
    return state.versions is not before


def record_process(state: JobState, message: ProcessReport, now: float) -> None:
    """Record that a training process reached a state, and the time for which it has just saved.

    Raises:
        NotFoundError: the job never had such a node.
        ConflictError: in a collective job, the node is not a member of that version.
    """
    messages.record_process_report(state, message)
    goodput_steps.count_save(state, message, now)


def register_dataset(state: JobState, message: DatasetParams, store: StoreUse) -> DatasetProgress:
    """Register a data set. Repeatable.

    Raises:
        ConflictError: the name is registered with other parameters.
        InvalidError: there are too many data sets, or the state may not fit into the store with this one.
            Once the state is too large, no further change can be stored.
    """
    total_size = store.size + _COPIES * len(message.model_dump_json(exclude_defaults=True))
    if total_size > store.capacity:
        raise InvalidError(
            f"the job's state would have about {total_size} bytes with this data set, more than fit into "
            f"{store.place} ({store.capacity}): register fewer partitions, or partitions with shorter names"
        )
    return state.shards.register(message)


def lease_shards(state: JobState, name: str, message: LeaseRequest, now: float) -> LeaseReply:
    """Record what the process has done, and grant it shards if it may train now.

    Raises:
        NotFoundError: the job never had such a node, or there is no such data set.
    """
    node = messages.find_node(state, message.node)
    if message.done:
        done = AckRequest(node=message.node, done=message.done, keeps=True)
        acknowledge_shards(state, name, done, now)
    if node is None or not node.live or not views.may_lease(state, message.version):
        return LeaseReply(state=LeaseState.WAIT, reason="this process is not to train now")
    if message.master not in ("", state.volatile.master):
        return LeaseReply(state=LeaseState.WAIT, reason="this master does not know what the process holds")
    return state.shards.lease(name, message, now)


def acknowledge_shards(state: JobState, name: str, message: AckRequest, now: float) -> AckReply:
    """Record answers for leased shards, and continue the leases that a live node reports. Repeatable.

    Raises:
        NotFoundError: there is no such data set.
    """
    if message.held is not None:
        node = state.nodes.find(message.node.type, message.node.id)
        if node is None or not node.live:
            message = message.model_copy(update={"held": None})
    reply = state.shards.acknowledge(name, message, now)
    state.volatile.statistics.record_shards(str(message.node), reply.accepted, now)
    state.measure_records(now)
    return reply


def join_sync_group(state: JobState, name: str, message: SyncJoin) -> SyncState:
    """Record that a worker reached a synchronization point. Repeatable.

    Raises:
        NotFoundError: the job never had such a node.
        InvalidError: there are too many groups.
    """
    messages.find_node(state, message.node)
    state.sync = sync.join_group(state.sync, name, str(message.node), _running_nodes(state))
    return sync_group_state(state, name)


def sync_group_state(state: JobState, name: str) -> SyncState:
    """Whether all members of a sync group have joined; a worker that ended is no longer waited for."""
    return sync.group_state(state.sync, name, _running_nodes(state))


def open_barrier(state: JobState, name: str) -> BarrierState:
    """Open a barrier for good. Repeatable.

    Raises:
        InvalidError: there are too many barriers.
    """
    state.sync = sync.open_barrier(state.sync, name)
    return barrier_state(state, name)


def barrier_state(state: JobState, name: str) -> BarrierState:
    return BarrierState(open=name in state.sync.barriers)


def _running_nodes(state: JobState) -> list[str]:
    return [str(node) for node in state.trainers]
