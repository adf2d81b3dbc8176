"""Into which shards a data set is split, and in which order they are leased."""

import pytest

from edl_workflows.core.protocol.datasets import LeaseState, StreamUpdate
from tests.unit.services.master.shards.managers import (
    B,
    done,
    fail,
    lease,
    manager_of,
    ranges,
    stream,
    table,
)


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
        """Shuffled text mixes records across shards. Each record is in one shard."""
        shards = lease(manager_of(table(100, 7, splitter="text", shuffle=True)), count=100).shards
        listed = [shard.indices or [] for shard in shards]

        assert sorted(record for indices in listed for record in indices) == list(range(100))
        assert [len(indices) for indices in listed] == [7] * 14 + [2]
        assert listed[0] != sorted(listed[0])

    def test_plain_text_needs_no_list(self) -> None:
        """Without shuffling, a shard's range of indices says which records it has."""
        assert lease(manager_of(table(splitter="text"))).shards[0].indices is None

    def test_listed_records_of_one_answer_are_bounded(self) -> None:
        """A lease reply lists at most one million records, however many shards the worker asks for."""
        reply = lease(manager_of(table(3_000_000, 100_000, splitter="text", shuffle=True)), count=10_000)

        assert sum(len(shard.indices or []) for shard in reply.shards) == 1_000_000

    def test_partitions_take_turns(self) -> None:
        """Shards of a stream come from the partitions in turn, including the short last ones once the stream
        is closed."""
        shards = lease(manager_of(stream(True, a=125, b=110)), count=9).shards

        assert [(shard.partition, shard.start, shard.end) for shard in shards] == [
            ("a", 100, 110),
            ("b", 100, 110),
            ("a", 110, 120),
            ("a", 120, 125),
        ]

    def test_turns_go_on_between_leases(self) -> None:
        """Workers that lease one shard at a time get shards from the partitions in turn."""
        manager = manager_of(stream(True, a=140, b=140))

        assert [lease(manager).shards[0].partition for _ in range(4)] == ["a", "b", "a", "b"]

    def test_open_stream_keeps_its_tail_and_grows(self) -> None:
        """An incomplete last shard waits until the partition grows or is closed. Only then the data set
        ends."""
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
        """A late update with lower end offsets changes nothing."""
        manager = manager_of(stream(False, a=150))
        before = manager.snapshot()

        manager.update("train", StreamUpdate(ends={"a": 120}))

        assert manager.snapshot() == before


class TestEpochs:
    def test_next_epoch_opens_while_the_last_shard_is_out(self) -> None:
        """While the last shard of an epoch is leased, the other workers can start the next epoch, but not the
        one after."""
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
        """With zero or a negative number of epochs, a data set never ends and its total number of records is
        unknown."""
        manager = manager_of(table(1, 1, num_epochs=num_epochs))
        for epoch in range(1, 20):
            reply = lease(manager)
            assert reply.shards[0].epoch == epoch
            done(manager, *reply.shards)

        assert not manager.finished
        assert manager.progress("train").records_total is None
