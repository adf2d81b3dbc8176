"""Data sets of a shard manager: registration, progress, restarts and rollbacks."""

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetParams,
    LeaseRequest,
    LeaseState,
    StreamUpdate,
    TaskType,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.shards import ShardManager
from tests.unit.services.master.shards.managers import (
    NOW,
    A,
    B,
    done,
    fail,
    lease,
    manager_of,
    ranges,
    restarted,
    stream,
    table,
)


class TestRestart:
    def test_leases_stay(self) -> None:
        """A restarted master leaves leased shards with their workers and hands out the others."""
        manager = manager_of(table(9, 3))
        held = lease(manager, A, count=2).shards
        manager = restarted(manager)

        assert ranges(lease(manager, B, count=9)) == [(6, 9)]
        assert done(manager, *held).accepted == 2
        assert manager.release_node(A) == 0

    def test_older_snapshot_accepts_forgotten_leases(self) -> None:
        """Work on leases that the restarted master never heard of counts, and is not handed out again."""
        manager = manager_of(table(9, 3, num_epochs=2))
        older = restarted(manager)
        shards = lease(manager, A, count=6).shards

        assert done(older, shards[1], shards[4]).accepted == 2
        assert [(shard.epoch, shard.ordinal) for shard in lease(older, B, count=9).shards] == [
            (1, 0),
            (1, 2),
            (2, 0),
            (2, 2),
        ]

    def test_snapshot_is_small(self) -> None:
        """The stored state of ten million records with eight active workers takes less than 2 KB."""
        manager = manager_of(table(10_000_000, 100, num_epochs=3, shuffle=True))
        for turn in range(400):
            node = NodeRef(type="worker", id=turn % 8)
            shards = lease(manager, node, count=100).shards
            done(manager, *shards[: 100 if turn < 392 else turn % 8 + 30], node=node)

        assert len(manager.snapshot().to_json()) < 2000

    def test_snapshot_stays_small_when_shards_come_back(self) -> None:
        """The stored state stays far below a ConfigMap's limit of 1 MiB even if every other shard fails."""
        manager = manager_of(table(1_000_000, 1, max_retries=1000))
        for _ in range(5000):
            good, bad = lease(manager, count=2).shards
            done(manager, good)
            fail(manager, bad)

        assert len(manager.snapshot().to_json()) < 50_000


class TestRollback:
    def test_goes_back_with_the_model(self) -> None:
        """After a rollback to a checkpoint, shards acknowledged since then are leased again; shards
        acknowledged before are not."""
        manager = manager_of(table(9, 3))
        shards = lease(manager, count=3).shards
        done(manager, shards[0])
        position = manager.position()
        done(manager, shards[1])

        manager.rollback(position)

        assert manager.progress("train").records_done == 3
        assert ranges(lease(manager, B, count=9)) == [(3, 6), (6, 9)]

    def test_answers_to_void_leases_are_stale(self) -> None:
        """Acknowledgements of leases from before a rollback do not count, since that work went into the lost
        model."""
        manager = manager_of(table(9, 3))
        shards = lease(manager, count=3).shards
        manager.rollback(manager.position())
        manager = restarted(manager)

        assert done(manager, *shards).stale == 3
        assert fail(manager, shards[0]).stale == 1

    def test_leases_that_a_restarted_master_forgot_are_void_too(self) -> None:
        """A rollback also makes leases void that were given after the snapshot from which the master
        restarted."""
        manager = manager_of(table(9, 3))
        older = restarted(manager)
        forgotten = [lease(manager).shards[0] for _ in range(3)]
        older.rollback(older.position())

        assert done(older, *forgotten).stale == 3

    def test_revives_a_finished_or_failed_data_set(self) -> None:
        """After a rollback to an older checkpoint, a finished or failed data set can be leased again."""
        manager = manager_of(table(3, 3, max_retries=0))
        position = manager.position()
        fail(manager, lease(manager).shards[0])
        assert manager.failure

        manager.rollback(position)
        done(manager, *lease(manager).shards)
        assert manager.finished

        manager.rollback(position)
        assert lease(manager).state is LeaseState.OK

    def test_only_training_data_goes_back(self) -> None:
        """A rollback keeps the results of an evaluation. A training data set that was registered after the
        checkpoint starts from its beginning."""
        manager = manager_of(table(task_type=TaskType.EVALUATION))
        position = manager.position()
        manager.register(table().model_copy(update={"name": "late"}))
        done(manager, *lease(manager).shards)
        late = manager.lease("late", LeaseRequest(node=A), NOW).shards
        manager.acknowledge("late", AckRequest(node=A, done=late), NOW)

        manager.rollback(position)

        assert [progress.records_done for progress in manager.all_progress()] == [3, 0]


class TestProgress:
    def test_counts(self) -> None:
        """Progress reports the epoch, the records, the completed steps, and the numbers of leased, returned
        and failed shards."""
        manager = manager_of(table(10, 4, batch_size=3, num_epochs=2))
        shards = lease(manager, count=3).shards
        done(manager, shards[0], shards[2])
        fail(manager, shards[1])
        progress = manager.progress("train")

        assert (progress.epoch, progress.records_done, progress.records_total) == (1, 6, 20)
        assert progress.completed_steps == 3
        assert (progress.shards_leased, progress.shards_returned, progress.failures) == (0, 1, 1)
        assert progress.state is LeaseState.OK

    def test_no_steps_without_a_batch_size(self) -> None:
        """Without a batch size, the number of completed steps is unknown."""
        assert manager_of(table()).progress("train").completed_steps is None


class TestRegister:
    def test_repeatable(self) -> None:
        """Every worker registers the data set. The first registration creates it; later ones return its
        progress."""
        manager = manager_of(table())
        done(manager, *lease(manager).shards)

        assert manager.register(table()).records_done == 3

    def test_other_parameters_conflict(self) -> None:
        """Registering a data set with other parameters raises ConflictError, which names the parameters that
        differ."""
        manager = manager_of(table(10, 3))

        with pytest.raises(ConflictError, match="another seed, shard_size"):
            manager.register(table(10, 4, seed=1))

    def test_stream_registers_again_with_newer_offsets(self) -> None:
        """A worker that starts later and registers a longer stream updates it."""
        manager = manager_of(stream(False, a=110))
        manager.register(stream(False, a=130))

        assert len(lease(manager, count=9).shards) == 3
        with pytest.raises(ConflictError, match="partitions"):
            manager.register(stream(False, b=130))

    def test_unknown_data_set(self) -> None:
        """Leasing from a data set that is not registered raises NotFoundError, which says to register it."""
        with pytest.raises(NotFoundError, match="'train' is not registered: register it"):
            lease(ShardManager())

    @pytest.mark.parametrize(
        ("params", "update", "error", "message"),
        [
            (table(), StreamUpdate(closed=True), InvalidError, "only streams have offsets"),
            (stream(False, a=1000), StreamUpdate(ends={"b": 5}), InvalidError, "no partition 'b'"),
            (stream(True, a=1000), StreamUpdate(ends={"a": 1001}), ConflictError, "is closed"),
        ],
        ids=["table", "partition", "closed"],
    )
    def test_bad_updates(
        self, params: DatasetParams, update: StreamUpdate, error: type[Exception], message: str
    ) -> None:
        """An impossible update is rejected and changes nothing."""
        manager = manager_of(params)
        before = manager.snapshot()

        with pytest.raises(error, match=message):
            manager.update("train", update)
        assert manager.snapshot() == before

    def test_number_of_data_sets_is_bounded(self) -> None:
        """The number of data sets is limited, so that a worker that registers a new name each step gets an
        error."""
        manager = manager_of(*(table().model_copy(update={"name": f"d{number}"}) for number in range(1000)))

        with pytest.raises(InvalidError, match="1000 data sets"):
            manager.register(table())
