"""The rules of data sharding, one by one."""

import pytest

from edl_workflows.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.master.shards import ShardManager, ShardsSnapshot
from edl_workflows.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    FailedShard,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    PartitionOffsets,
    ReleasedShard,
    Shard,
    Splitter,
    StreamUpdate,
    TaskType,
)
from edl_workflows.protocol.nodes import NodeRef

NOW = 1000.0
A = NodeRef(type="worker", id=0)
B = NodeRef(type="worker", id=1)


def table(size: int = 10, shard_size: int = 3, **params: object) -> DatasetParams:
    return DatasetParams.model_validate({"name": "train", "size": size, "shard_size": shard_size, **params})


def stream(closed: bool, **ends: int) -> DatasetParams:
    partitions = {name: PartitionOffsets(start=100, end=end) for name, end in ends.items()}
    return DatasetParams(
        name="train", splitter=Splitter.STREAMING, partitions=partitions, shard_size=10, closed=closed
    )


def manager_of(*datasets: DatasetParams) -> ShardManager:
    manager = ShardManager()
    for params in datasets:
        manager.register(params)
    return manager


def restarted(manager: ShardManager) -> ShardManager:
    return ShardManager(ShardsSnapshot.model_validate_json(manager.snapshot().to_json()))


def lease(
    manager: ShardManager,
    node: NodeRef = A,
    count: int = 1,
    now: float = NOW,
    holding: list[int] | None = None,
) -> LeaseReply:
    return manager.lease("train", LeaseRequest(node=node, max_shards=count, holding=holding), now)


def done(manager: ShardManager, *shards: Shard, node: NodeRef = A, now: float = NOW) -> AckReply:
    return manager.acknowledge("train", AckRequest(node=node, done=list(shards)), now)


def fail(manager: ShardManager, shard: Shard, node: NodeRef = A) -> AckReply:
    failed = FailedShard.model_validate(shard.model_dump() | {"message": "disk full"})
    return manager.acknowledge("train", AckRequest(node=node, failed=[failed]), NOW)


def release(manager: ShardManager, shard: Shard, records_done: int, node: NodeRef = A) -> AckReply:
    released = ReleasedShard.model_validate(shard.model_dump() | {"records_done": records_done})
    return manager.acknowledge("train", AckRequest(node=node, released=[released]), NOW)


def ranges(reply: LeaseReply) -> list[tuple[int, int]]:
    return [(shard.start, shard.end) for shard in reply.shards]


class TestSplitters:
    def test_table_ends_with_a_short_shard(self) -> None:
        """Table shards are half-open ranges in order, the last as short as it must be."""
        assert ranges(lease(manager_of(table(10, 3)), count=9)) == [(0, 3), (3, 6), (6, 9), (9, 10)]

    def test_shuffled_table_hands_out_the_same_shards_in_another_order(self) -> None:
        """Shuffling a table changes the order of its shards, not the shards; the seed alone decides the
        order.
        """
        plain, one, same, other = (
            ranges(lease(manager_of(table(1000, 3, **params)), count=1000))
            for params in ({}, {"shuffle": True}, {"shuffle": True}, {"shuffle": True, "seed": 1})
        )

        assert one == same
        assert one != plain
        assert one != other
        assert sorted(one) == sorted(other) == plain

    def test_each_epoch_is_shuffled_anew(self) -> None:
        """Two epochs of a shuffled data set have different orders."""
        shards = lease(manager_of(table(100, 1, shuffle=True, num_epochs=2)), count=200).shards

        assert [shard.start for shard in shards[:100]] != [shard.start for shard in shards[100:]]

    def test_shuffled_text_lists_its_records(self) -> None:
        """Shuffled text mixes records over shards; each record is in one shard."""
        shards = lease(manager_of(table(100, 7, splitter="text", shuffle=True)), count=100).shards
        listed = [shard.indices or [] for shard in shards]

        assert sorted(record for indices in listed for record in indices) == list(range(100))
        assert [len(indices) for indices in listed] == [7] * 14 + [2]
        assert listed[0] != sorted(listed[0])

    def test_plain_text_needs_no_list(self) -> None:
        """Without shuffling, a shard's range of indices says which records it has."""
        assert lease(manager_of(table(splitter="text"))).shards[0].indices is None

    def test_listed_records_of_one_answer_are_bounded(self) -> None:
        """However many shards a worker asks for, an answer lists at most a million records."""
        reply = lease(manager_of(table(3_000_000, 100_000, splitter="text", shuffle=True)), count=10_000)

        assert sum(len(shard.indices or []) for shard in reply.shards) == 1_000_000

    def test_partitions_take_turns(self) -> None:
        """Streaming shards come from the partitions in turn, tails included once the stream is closed."""
        shards = lease(manager_of(stream(True, a=125, b=110)), count=9).shards

        assert [(shard.partition, shard.start, shard.end) for shard in shards] == [
            ("a", 100, 110),
            ("b", 100, 110),
            ("a", 110, 120),
            ("a", 120, 125),
        ]

    def test_turns_go_on_between_leases(self) -> None:
        """One shard at a time, the partitions still take turns."""
        manager = manager_of(stream(True, a=140, b=140))

        assert [lease(manager).shards[0].partition for _ in range(4)] == ["a", "b", "a", "b"]

    def test_open_stream_keeps_its_tail_and_grows(self) -> None:
        """A tail waits until the partition grows or is closed; only then the data set ends."""
        manager = manager_of(stream(False, a=115))
        first = lease(manager, count=9)
        done(manager, *first.shards)
        assert ranges(first) == [(100, 110)]
        assert lease(manager).state is LeaseState.WAIT

        manager.update("train", StreamUpdate(ends={"a": 121}))
        second = lease(manager, count=9)
        assert ranges(second) == [(110, 120)]
        assert done(manager, *second.shards).state is LeaseState.OK

        manager.update("train", StreamUpdate(closed=True))
        third = lease(manager, count=9)
        assert ranges(third) == [(120, 121)]
        assert done(manager, *third.shards).state is LeaseState.END

    def test_ends_never_move_back(self) -> None:
        """An update that arrives late changes nothing."""
        manager = manager_of(stream(False, a=150))
        before = manager.snapshot()

        manager.update("train", StreamUpdate(ends={"a": 120}))

        assert manager.snapshot() == before


class TestEpochs:
    def test_next_epoch_opens_while_the_last_shard_is_out(self) -> None:
        """A straggler does not stop the others at the end of an epoch, but the epoch after the next waits for
        it.
        """
        manager = manager_of(table(2, 1, num_epochs=3))
        straggling, second = lease(manager, count=2).shards
        done(manager, second)
        assert [shard.epoch for shard in lease(manager, B, count=9).shards] == [2, 2]
        assert lease(manager, B).state is LeaseState.WAIT

        done(manager, straggling)

        assert lease(manager, B).shards[0].epoch == 3

    def test_older_epoch_goes_first(self) -> None:
        """A shard that comes back is handed out before those of the next epoch."""
        manager = manager_of(table(2, 1, num_epochs=2))
        shards = lease(manager, count=3).shards
        fail(manager, shards[0])

        assert [shard.epoch for shard in lease(manager, B, count=2).shards] == [1, 2]

    @pytest.mark.parametrize("num_epochs", [0, -1])
    def test_endless(self, num_epochs: int) -> None:
        """No or negative epochs: it never ends, and its total is unknown."""
        manager = manager_of(table(1, 1, num_epochs=num_epochs))
        for epoch in range(1, 20):
            reply = lease(manager)
            assert reply.shards[0].epoch == epoch
            done(manager, *reply.shards)

        assert not manager.finished
        assert manager.progress("train").records_total is None


class TestAnswers:
    def test_finished_when_all_are_done(self) -> None:
        """The data set ends with the last acknowledgement, not with the last lease."""
        manager = manager_of(table(10, 3))
        shards = lease(manager, count=9).shards
        assert done(manager, *shards[:3]).state is LeaseState.OK
        assert lease(manager, B).state is LeaseState.WAIT
        assert not manager.finished

        assert done(manager, shards[3]) == AckReply(accepted=1, state=LeaseState.END)
        assert lease(manager, B).state is LeaseState.END
        assert manager.finished

    def test_no_data_set_is_not_finished(self) -> None:
        """A job that has registered no data yet is not through with it."""
        assert not ShardManager().finished

    def test_repeated_answers_change_nothing(self) -> None:
        """The same acknowledgement twice is a duplicate."""
        manager = manager_of(table())
        shards = lease(manager, count=2).shards
        done(manager, *shards)
        before = manager.snapshot()

        assert done(manager, *shards) == AckReply(duplicates=2, state=LeaseState.OK)
        assert manager.snapshot() == before

    def test_late_done_counts_once(self) -> None:
        """Done by a former holder ends the shard; the present holder's answer is the duplicate."""
        manager = manager_of(table(3, 3))
        late = lease(manager, A).shards[0]
        manager.release_node(A)
        again = lease(manager, B).shards[0]

        assert done(manager, late, node=A).accepted == 1
        assert done(manager, again, node=B) == AckReply(duplicates=1, state=LeaseState.END)

    @pytest.mark.parametrize("answer", [fail, lambda manager, shard: release(manager, shard, 1)])
    def test_late_failure_or_release_is_stale(self, answer: object) -> None:
        """A former holder can't take a shard from the present one."""
        manager = manager_of(table(3, 3))
        late = lease(manager, A).shards[0]
        manager.release_node(A)
        lease(manager, B)
        before = manager.snapshot()

        assert callable(answer)
        assert answer(manager, late).stale == 1
        assert manager.snapshot() == before

    @pytest.mark.parametrize(
        "name", [{"epoch": 9}, {"ordinal": 99}, {"partition": "p"}], ids=["epoch", "ordinal", "partition"]
    )
    def test_unknown_shard_is_stale(self, name: dict[str, object]) -> None:
        """An answer about a shard that can't exist is counted as stale."""
        manager = manager_of(table())
        shard = lease(manager).shards[0].model_copy(update=name)

        assert done(manager, shard).stale == 1

    def test_failure_returns_the_shard(self) -> None:
        """A failed shard goes to the end of its epoch and comes again."""
        manager = manager_of(table(6, 3))
        fail(manager, lease(manager).shards[0])

        assert ranges(lease(manager, B, count=9)) == [(3, 6), (0, 3)]

    def test_one_failure_too_many_fails_the_data_set(self) -> None:
        """No shard is dropped: the fourth failure fails the data set, with a reason that names shard, worker
        and cause.
        """
        manager = manager_of(table(6, 6), table(6, 3).model_copy(update={"name": "other"}))
        for _ in range(3):
            assert fail(manager, lease(manager).shards[0]).state is LeaseState.OK

        reply = fail(manager, lease(manager).shards[0])

        assert reply.state is LeaseState.FAILED
        assert reply.reason == manager.failure == manager.progress("train").reason == lease(manager).reason
        assert reply.reason == (
            "shard 0 of epoch 1 (records 0 to 5) of data set 'train' came back 4 times, "
            "more than max_retries=3; the last time, worker-0 says: disk full"
        )
        assert restarted(manager).failure == reply.reason
        assert not manager.finished

    def test_release_hands_on_the_rest(self) -> None:
        """What a draining worker has finished of a shard is not repeated."""
        manager = manager_of(table(6, 6, batch_size=2))
        release(manager, lease(manager, A).shards[0], 2)
        second = lease(manager, B).shards[0]
        release(manager, second, 1, B)
        manager = restarted(manager)
        third = lease(manager, A).shards[0]

        assert [(shard.start, shard.end) for shard in (second, third)] == [(2, 6), (3, 6)]
        done(manager, third)
        assert manager.progress("train").records_done == 6
        assert manager.finished

    def test_release_of_listed_records(self) -> None:
        """The rest of a shuffled text shard is the rest of its list."""
        manager = manager_of(table(20, 20, splitter="text", shuffle=True))
        shard = lease(manager, A).shards[0]
        release(manager, shard, 5)

        assert lease(manager, B).shards[0].indices == (shard.indices or [])[5:]

    @pytest.mark.parametrize("records", [6, 100])
    def test_release_of_a_whole_shard_is_done(self, records: int) -> None:
        """Giving back a shard of which nothing is left is acknowledging it."""
        manager = manager_of(table(6, 6))

        assert release(manager, lease(manager).shards[0], records).state is LeaseState.END
        assert manager.progress("train").records_done == 6


class TestLostWorkers:
    def test_release_node(self) -> None:
        """The shards of a lost worker go to others and count as no retry; other workers keep theirs."""
        manager = manager_of(table(9, 3, max_retries=0))
        lease(manager, A, count=2)
        kept = lease(manager, B).shards[0]

        assert manager.release_node(A) == 2
        assert manager.release_node(A) == 0
        assert ranges(lease(manager, B, count=9)) == [(0, 3), (3, 6)]
        assert done(manager, kept, node=B).accepted == 1

    @pytest.mark.parametrize("task_type", list(TaskType))
    def test_time_out(self, task_type: TaskType) -> None:
        """Shards of every task type time out, each as a retry."""
        manager = manager_of(table(6, 3, task_type=task_type, timeout_s=60))
        lease(manager, A, count=2)
        assert manager.expire(NOW + 59) == []

        (expired,) = manager.expire(NOW + 60)

        assert (expired.dataset, expired.node) == ("train", "worker-0")
        assert len(lease(manager, B, count=9).shards) == 2
        assert manager.progress("train").timeouts == 2

    def test_time_outs_fail_the_data_set_too(self) -> None:
        """A shard on which every worker hangs fails the data set."""
        manager = manager_of(table(3, 3, timeout_s=60, max_retries=0))
        lease(manager)
        manager.expire(NOW + 60)

        assert "no answer came in 60 s" in manager.failure

    def test_progress_puts_the_time_out_off(self) -> None:
        """A batch whose shards are acknowledged one after the other does not time out as a whole."""
        manager = manager_of(table(9, 3, timeout_s=60))
        shards = lease(manager, count=3).shards
        done(manager, shards[0], now=NOW + 50)

        assert manager.expire(NOW + 70) == []
        assert len(manager.expire(NOW + 110)) == 1
        assert manager.progress("train").timeouts == 2

    def test_lost_answer_is_noticed(self) -> None:
        """A worker that says what it holds gets shards of a lost answer again at once."""
        manager = manager_of(table(9, 3))
        kept = lease(manager, A, holding=[])
        lease(manager, A, holding=[kept.shards[0].lease])  # this answer is lost

        assert ranges(lease(manager, A, count=9, holding=[kept.shards[0].lease])) == [(6, 9), (3, 6)]


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
        """Ten million records, eight workers in the middle of it: below 2 KB."""
        manager = manager_of(table(10_000_000, 100, num_epochs=3, shuffle=True))
        for turn in range(400):
            node = NodeRef(type="worker", id=turn % 8)
            shards = lease(manager, node, count=100).shards
            done(manager, *shards[: 100 if turn < 392 else turn % 8 + 30], node=node)

        assert len(manager.snapshot().to_json()) < 2000

    def test_snapshot_stays_small_when_shards_come_back(self) -> None:
        """With every other shard failing, the stored state stays far below a ConfigMap's 1 MiB."""
        manager = manager_of(table(1_000_000, 1, max_retries=1000))
        for _ in range(5000):
            good, bad = lease(manager, count=2).shards
            done(manager, good)
            fail(manager, bad)

        assert len(manager.snapshot().to_json()) < 50_000


class TestRollback:
    def test_goes_back_with_the_model(self) -> None:
        """What was acknowledged after the checkpoint began is handed out again; what was before is not."""
        manager = manager_of(table(9, 3))
        shards = lease(manager, count=3).shards
        done(manager, shards[0])
        position = manager.position()
        done(manager, shards[1])

        manager.rollback(position)

        assert manager.progress("train").records_done == 3
        assert ranges(lease(manager, B, count=9)) == [(3, 6), (6, 9)]

    def test_answers_to_void_leases_are_stale(self) -> None:
        """Work that went into the lost model does not count."""
        manager = manager_of(table(9, 3))
        shards = lease(manager, count=3).shards
        manager.rollback(manager.position())
        manager = restarted(manager)

        assert done(manager, *shards).stale == 3
        assert fail(manager, shards[0]).stale == 1

    def test_leases_that_a_restarted_master_forgot_are_void_too(self) -> None:
        """A rollback voids also what was leased after the snapshot from which the master came back."""
        manager = manager_of(table(9, 3))
        older = restarted(manager)
        forgotten = [lease(manager).shards[0] for _ in range(3)]
        older.rollback(older.position())

        assert done(older, *forgotten).stale == 3

    def test_revives_a_finished_or_failed_data_set(self) -> None:
        """An older checkpoint means older data, even if all was done."""
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
        """Results of an evaluation stand; training data younger than the checkpoint starts again."""
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
        """Progress tells records, steps as upstream counts them, and what is out and back."""
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
        """Each worker registers the data set; the first one makes it."""
        manager = manager_of(table())
        done(manager, *lease(manager).shards)

        assert manager.register(table()).records_done == 3

    def test_other_parameters_conflict(self) -> None:
        """Two workers that disagree are told so, with the parameters in question."""
        manager = manager_of(table(10, 3))

        with pytest.raises(ConflictError, match="another seed, shard_size"):
            manager.register(table(10, 4, seed=1))

    def test_stream_registers_again_with_newer_offsets(self) -> None:
        """A worker that starts later sees a longer stream; that is an update."""
        manager = manager_of(stream(False, a=110))
        manager.register(stream(False, a=130))

        assert len(lease(manager, count=9).shards) == 3
        with pytest.raises(ConflictError, match="partitions"):
            manager.register(stream(False, b=130))

    def test_unknown_data_set(self) -> None:
        """The error of a lease for a data set that was not registered says what to do."""
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
        """An update that can't be is refused and changes nothing."""
        manager = manager_of(params)
        before = manager.snapshot()

        with pytest.raises(error, match=message):
            manager.update("train", update)
        assert manager.snapshot() == before

    def test_number_of_data_sets_is_bounded(self) -> None:
        """A worker that registers a new name each step is stopped."""
        manager = manager_of(*(table().model_copy(update={"name": f"d{number}"}) for number in range(1000)))

        with pytest.raises(InvalidError, match="1000 data sets"):
            manager.register(table())
