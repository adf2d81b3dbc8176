"""All data sets of a job: the entry point of this package. The master provides HTTP routes, clock and
storage.
"""

from collections.abc import Collection, Mapping
from typing import TypeVar

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    StreamUpdate,
    TaskType,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import ConsumedShards
from edl_workflows.services.master.shards.dataset import ShardedDataset
from edl_workflows.services.master.shards.leases import ExpiredLease
from edl_workflows.services.master.shards.snapshot import (
    DatasetPosition,
    JobPosition,
    ResumedData,
    ShardsSnapshot,
)

T = TypeVar("T")
MAX_DATASETS = 1000


class ShardManager:
    """The data sets of one job.

    A snapshot must be stored before `register`, `update` and `rollback` are answered, before a lease is
    answered if `stage` has changed since the last snapshot, and before the end of a data set is. Other leases
    and acknowledgements may be lost: workers report them again, and the first answer to any lease of a shard
    counts.

    Args:
        snapshot: the snapshot that the previous master stored; None for a new job. Workers keep their leases.
    """

    def __init__(self, snapshot: ShardsSnapshot | None = None) -> None:
        stored = snapshot.datasets if snapshot else []
        self._resumed = snapshot.resumed if snapshot else ResumedData()
        self._datasets = {dataset.params.name: ShardedDataset(dataset) for dataset in stored}
        self._answered: dict[str, float] = {}
        """When each node last answered for shards of any data set."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardManager) or self._datasets.keys() != other._datasets.keys():
            return False
        return self.snapshot() == other.snapshot()

    __hash__ = None  # type: ignore[assignment]

    def register(self, params: DatasetParams) -> DatasetProgress:
        """Register a data set. Repeatable.

        Raises:
            ConflictError: the name is registered with other parameters.
            InvalidError: there are too many data sets.
        """
        registered = self._datasets.get(params.name)
        if registered is not None:
            registered.register_again(params)
        elif len(self._datasets) >= MAX_DATASETS:
            raise InvalidError(
                f"data set {params.name!r}: the job has {MAX_DATASETS} data sets, the most there can be"
            )
        else:
            self._datasets[params.name] = ShardedDataset.new(params)
            if params.task_type is TaskType.TRAINING:
                self._resume(params.name, self._resumed.later.get(params.name, DatasetPosition()))
        return self._datasets[params.name].progress()

    def update(self, name: str, update: StreamUpdate) -> DatasetProgress:
        """Record new ends of a stream's partitions. Repeatable.

        Raises:
            NotFoundError: there is no such data set.
            InvalidError: the data set is not a stream, or there is no such partition.
            ConflictError: the stream is closed.
        """
        dataset = self._get(name)
        dataset.grow(update)
        return dataset.progress()

    def lease(self, name: str, request: LeaseRequest, now: float) -> LeaseReply:
        """Grant shards.

        Raises:
            NotFoundError: there is no such data set.
        """
        dataset, node = self._get(name), str(request.node)
        dataset.keepers.note_report(node, keeps=request.keeps)
        if not dataset.keepers.all_reported and dataset.state is LeaseState.OK:
            return LeaseReply(state=LeaseState.WAIT, reason="other workers have not reported what they hold")
        leased = dataset.lease(node, request.max_shards, now, request.holding)
        if not leased:
            state = LeaseState.WAIT if dataset.state is LeaseState.OK else dataset.state
            return LeaseReply(state=state, reason=dataset.reason)
        return LeaseReply.model_validate({"state": LeaseState.OK, "shards": leased}, from_attributes=True)

    def acknowledge(self, name: str, request: AckRequest, now: float) -> AckReply:
        """Record answers for leased shards. Repeatable.

        Raises:
            NotFoundError: there is no such data set.
        """
        dataset = self._get(name)
        node, answered = str(request.node), dataset.records_answered
        if request.done or request.failed or request.released:
            self._answered[node] = now
        answers = [*request.done, *request.failed, *request.released]
        outcomes = dataset.acknowledge(node, answers, now)
        if request.held is not None:
            dataset.continue_leases(node, request.held, now)
            dataset.records_answered = answered  # the previous master has counted them
        return AckReply(
            accepted=outcomes.count("accepted"),
            duplicates=outcomes.count("duplicate"),
            stale=outcomes.count("stale"),
            state=dataset.state,
            reason=dataset.reason,
        )

    def stage(self, name: str) -> tuple[int, int]:
        """What must be stored of a data set before its leases are answered: its epoch, and how many nodes
        keep acknowledgements. Both grow by leases only.

        Raises:
            NotFoundError: there is no such data set.
        """
        dataset = self._get(name)
        return dataset.epoch, len(dataset.keepers)

    def release_node(self, node: NodeRef) -> int:
        """Re-queue the shards that a dead, released or restarted node held. Return their number."""
        self._answered.pop(str(node), None)
        return sum(dataset.release_node(str(node)) for dataset in self._datasets.values())

    def expire(self, now: float, listening_since: float = 0.0) -> list[ExpiredLease]:
        """Re-queue the shards of expired leases. Must be called every few seconds, since nothing else checks
        deadlines.

        Args:
            now: Unix seconds.
            listening_since: since when this master can receive acknowledgements.
        """
        return [
            lease
            for dataset in self._datasets.values()
            for lease in dataset.expire(now, listening_since, self._answered)
        ]

    def progress(self, name: str) -> DatasetProgress:
        """The progress of a data set.

        Raises:
            NotFoundError: there is no such data set.
        """
        return self._get(name).progress()

    def all_progress(self) -> list[DatasetProgress]:
        """The progress of each data set, in order of registration."""
        return [dataset.progress() for dataset in self._datasets.values()]

    @property
    def records_answered(self) -> int:
        """Records that were trained since the master started, also those that a rollback made untrained."""
        return sum(dataset.records_answered for dataset in self._datasets.values())

    @property
    def finished(self) -> bool:
        """Whether there is a data set, and all are consumed."""
        states = [dataset.state for dataset in self._datasets.values()]
        return bool(states) and all(state is LeaseState.END for state in states)

    @property
    def failure(self) -> str:
        """Why the first failed data set failed; "" if none did."""
        return next((dataset.reason for dataset in self._datasets.values() if dataset.reason), "")

    def position(self) -> JobPosition:
        """Which training records are done now. It is taken when a save of the model begins, and is stored
        with the checkpoint.

        Data sets for evaluation and prediction have no position: restoring the model does not undo their
        results.
        """
        return self._position("", {})

    def position_for(self, node: NodeRef, consumed: Mapping[str, ConsumedShards], now: float) -> JobPosition:
        """The position for a checkpoint that this node begins to save. Everything that the node reports as
        trained counts as done.
        """
        for name, shards in consumed.items():
            if name in self._datasets:
                self._datasets[name].acknowledge(str(node), shards.done, now)
        return self._position(str(node), consumed)

    def rollback(self, position: JobPosition) -> None:
        """Return to the position of a restored model. All present leases become void, and answers to them
        stale.

        Training data sets that were registered after the checkpoint start again from their beginning.
        """
        training = self._training()
        for name, dataset in training.items():
            _move_to(dataset, position.datasets.get(name, DatasetPosition()))
        self._resumed = self._resumed.model_copy(update={"later": _without(position.datasets, training)})

    def resume(self, uri: str, position: JobPosition | None) -> None:
        """Move to the position of a checkpoint that an earlier job, or an earlier version of this job,
        saved.

        A data set that differs from the one in the checkpoint starts from its beginning, and `notes` says so.
        All present leases become void.

        Args:
            uri: URI of the checkpoint.
            position: the position in the checkpoint's manifest. If it is None, all data is trained.
        """
        self._resumed = ResumedData(
            uri=uri, silent=position is None, later=position.datasets if position else {}
        )
        for name in self._training():
            self._resume(name, self._resumed.later.get(name, DatasetPosition()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for people about the data of the checkpoint that the job started from."""
        return tuple(self._resumed.notes.values())

    def snapshot(self) -> ShardsSnapshot:
        stored = [dataset.snapshot() for dataset in self._datasets.values()]
        return ShardsSnapshot(datasets=stored, resumed=self._resumed)

    def _position(self, node: str, consumed: Mapping[str, ConsumedShards]) -> JobPosition:
        begun = {name: shards.begun for name, shards in consumed.items()}
        positions = {
            name: dataset.position(node, begun.get(name)) for name, dataset in self._training().items()
        }
        return JobPosition(datasets={**self._resumed.later, **positions})

    def _resume(self, name: str, position: DatasetPosition) -> None:
        dataset, resumed = self._datasets[name], self._resumed
        if not resumed.uri:
            return
        note, where = "", f"{resumed.uri}, from which the model was restored"
        if resumed.silent:
            note = f"data set {name!r}: the manifest of {where}, has no data position: all of it is trained"
        elif different := _move_to(dataset, position):
            note = f"data set {name!r} differs from the one in {where}: {different}: all of it is trained"
        elif dataset.state is LeaseState.END:
            note = (
                f"data set {name!r} was consumed in {where}: nothing of it is left to train; to train on, "
                "request more epochs, or use another name for the data or another folder for checkpoints"
            )
        notes = {**resumed.notes, name: note} if note else resumed.notes
        self._resumed = resumed.model_copy(update={"later": _without(resumed.later, [name]), "notes": notes})

    def _training(self) -> dict[str, ShardedDataset]:
        return {
            name: dataset
            for name, dataset in self._datasets.items()
            if dataset.params.task_type is TaskType.TRAINING
        }

    def _get(self, name: str) -> ShardedDataset:
        try:
            return self._datasets[name]
        except KeyError:
            raise NotFoundError(f"data set {name!r} is not registered: register it before leasing") from None


def _move_to(dataset: ShardedDataset, position: DatasetPosition) -> str:
    """Move a data set to a position. If the position belongs to another data set, move to the beginning and
    return the reason; else return "".
    """
    try:
        dataset.rollback(position)
    except ValueError as error:
        dataset.rollback(DatasetPosition())
        return str(error)
    return ""


def _without(by_name: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in by_name.items() if name not in names}
