"""All data sets of a job: the door of this package. The HTTP routes, the clock and the storing are the app's."""

from edl_workflows.exceptions import InvalidError, NotFoundError
from edl_workflows.master.shards.dataset import Dataset
from edl_workflows.master.shards.leases import ExpiredLease, LeasedShard, Outcome
from edl_workflows.master.shards.snapshot import DatasetPosition, JobPosition, ShardsSnapshot
from edl_workflows.protocol.datasets import (
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
from edl_workflows.protocol.nodes import NodeRef

MAX_DATASETS = 1000


class ShardManager:
    """The data sets of one job.

    Store a snapshot before answering `register`, `update`, `acknowledge` and `rollback`; a lease needs no waiting: if it
    is lost, its shards are handed out again and the answers to both count once.

    Args:
        snapshot: what a former master stored; none for a new job. Leases stay with their workers.
    """

    def __init__(self, snapshot: ShardsSnapshot | None = None) -> None:
        stored = snapshot.datasets if snapshot else []
        self._datasets = {dataset.params.name: Dataset(dataset) for dataset in stored}

    def register(self, params: DatasetParams) -> DatasetProgress:
        """Makes a data set known. Repeatable.

        Raises:
            ConflictError: the name is registered with other parameters.
            InvalidError: too many data sets.
        """
        known = self._datasets.get(params.name)
        if known is not None:
            known.register_again(params)
        elif len(self._datasets) >= MAX_DATASETS:
            raise InvalidError(
                f"data set {params.name!r}: the job has {MAX_DATASETS} data sets, the most there can be"
            )
        else:
            self._datasets[params.name] = Dataset.new(params)
        return self._datasets[params.name].progress()

    def update(self, name: str, update: StreamUpdate) -> DatasetProgress:
        """Takes further offsets of a stream. Repeatable.

        Raises:
            NotFoundError: no such data set.
            InvalidError: not a stream, or no such partition.
            ConflictError: the stream is closed.
        """
        dataset = self._get(name)
        dataset.grow(update)
        return dataset.progress()

    def lease(self, name: str, request: LeaseRequest, now: float) -> LeaseReply:
        """Hands out shards.

        Raises:
            NotFoundError: no such data set.
        """
        dataset = self._get(name)
        leased = dataset.lease(str(request.node), request.max_shards, now, request.holding)
        if not leased:
            state = LeaseState.WAIT if dataset.state is LeaseState.OK else dataset.state
            return LeaseReply(state=state, reason=dataset.reason)
        shards = [dict(zip(LeasedShard._fields, shard, strict=True)) for shard in leased]
        return LeaseReply.model_validate({"state": LeaseState.OK, "shards": shards})

    def acknowledge(self, name: str, request: AckRequest, now: float) -> AckReply:
        """Takes answers to leases. Repeatable.

        Raises:
            NotFoundError: no such data set.
        """
        dataset = self._get(name)
        node = str(request.node)
        outcomes = dataset.done(request.done, now)
        outcomes += dataset.failed(node, request.failed)
        outcomes += dataset.released(node, request.released, now)
        return AckReply(
            accepted=outcomes.count(Outcome.ACCEPTED),
            duplicates=outcomes.count(Outcome.DUPLICATE),
            stale=outcomes.count(Outcome.STALE),
            state=dataset.state,
            reason=dataset.reason,
        )

    def release_node(self, node: NodeRef) -> int:
        """The node died, was released, or restarted: what it held goes back. Returns how many shards."""
        return sum(dataset.release_node(str(node)) for dataset in self._datasets.values())

    def expire(self, now: float) -> list[ExpiredLease]:
        """Takes back what timed out; call it every few seconds. Nothing else looks at deadlines."""
        return [lease for dataset in self._datasets.values() for lease in dataset.expire(now)]

    def progress(self, name: str) -> DatasetProgress:
        """How far a data set is.

        Raises:
            NotFoundError: no such data set.
        """
        return self._get(name).progress()

    def all_progress(self) -> list[DatasetProgress]:
        """How far each data set is, in the order of registration."""
        return [dataset.progress() for dataset in self._datasets.values()]

    @property
    def finished(self) -> bool:
        """There is at least one data set, and all are consumed."""
        states = [dataset.state for dataset in self._datasets.values()]
        return bool(states) and all(state is LeaseState.END for state in states)

    @property
    def failure(self) -> str:
        """Why the first failed data set failed; empty when none did."""
        return next((dataset.reason for dataset in self._datasets.values() if dataset.reason), "")

    def position(self) -> JobPosition:
        """Which training records are done now: take it when a model checkpoint begins, and store it with it.

        Data sets for evaluation and prediction have none: their results don't go back with the model.
        """
        return JobPosition(datasets={name: dataset.position() for name, dataset in self._training().items()})

    def rollback(self, position: JobPosition) -> None:
        """Goes back to where the model is that was restored. Training data sets that are younger than that checkpoint
        start again from their beginning. Present leases become void; answers to them are stale."""
        for name, dataset in self._training().items():
            dataset.rollback(position.datasets.get(name, DatasetPosition()))

    def snapshot(self) -> ShardsSnapshot:
        """All there is to store."""
        return ShardsSnapshot(datasets=[dataset.snapshot() for dataset in self._datasets.values()])

    def _training(self) -> dict[str, Dataset]:
        return {
            name: dataset
            for name, dataset in self._datasets.items()
            if dataset.params.task_type is TaskType.TRAINING
        }

    def _get(self, name: str) -> Dataset:
        try:
            return self._datasets[name]
        except KeyError:
            raise NotFoundError(f"data set {name!r} is not registered: register it before leasing") from None
