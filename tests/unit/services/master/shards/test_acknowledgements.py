"""Shards that workers finish, fail or give back, and those of lost workers."""

import pytest

from edl_workflows.core.protocol.datasets import AckReply, LeaseState, TaskType
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
    release,
    restarted,
    table,
)


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
        """A job without a registered data set has not finished its data."""
        assert not ShardManager().finished

    def test_answers_of_two_epochs_count_in_any_order_after_a_restart(self) -> None:
        """A master that was restarted from a state before the leases counts answers about shards of two
        epochs in one message. Repeated answers change nothing."""
        params = table(4, 2, num_epochs=2)
        first = lease(before := manager_of(params), count=2).shards
        second = lease(before, B, count=1).shards
        manager = manager_of(params)

        assert done(manager, *second, first[1]) == AckReply(accepted=2, state=LeaseState.OK)
        after = manager.snapshot()
        assert done(manager, *second, first[1]) == AckReply(duplicates=2, state=LeaseState.OK)
        assert manager.snapshot() == after

    def test_repeated_answers_change_nothing(self) -> None:
        """Acknowledging the same shards twice counts as a duplicate and changes nothing."""
        manager = manager_of(table())
        shards = lease(manager, count=2).shards
        done(manager, *shards)
        before = manager.snapshot()

        assert done(manager, *shards) == AckReply(duplicates=2, state=LeaseState.OK)
        assert manager.snapshot() == before

    def test_late_done_counts_once(self) -> None:
        """If the former holder of a shard reports it as done, the shard is done, and the present holder's
        report is a duplicate."""
        manager = manager_of(table(3, 3))
        late = lease(manager, A).shards[0]
        manager.release_node(A)
        again = lease(manager, B).shards[0]

        assert done(manager, late, node=A).accepted == 1
        assert done(manager, again, node=B) == AckReply(duplicates=1, state=LeaseState.END)

    @pytest.mark.parametrize("answer", [fail, lambda manager, shard: release(manager, shard, 1)])
    def test_late_failure_or_release_is_stale(self, answer: object) -> None:
        """A failure or release by a former holder does not take a shard from the present one."""
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
        """A failed shard is appended to its epoch and leased again."""
        manager = manager_of(table(6, 3))
        fail(manager, lease(manager).shards[0])

        assert ranges(lease(manager, B, count=9)) == [(3, 6), (0, 3)]

    def test_one_failure_too_many_fails_the_data_set(self) -> None:
        """A shard that fails a fourth time is not dropped: the data set fails, with a reason that names the
        shard, the worker and the cause."""
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
        """Records of a shard that a draining worker has finished are not leased again."""
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
        """The rest of a shuffled text shard is the rest of its list of records."""
        manager = manager_of(table(20, 20, splitter="text", shuffle=True))
        shard = lease(manager, A).shards[0]
        release(manager, shard, 5)

        assert lease(manager, B).shards[0].indices == (shard.indices or [])[5:]

    @pytest.mark.parametrize("records", [6, 100])
    def test_release_of_a_whole_shard_is_done(self, records: int) -> None:
        """Releasing a shard of which nothing is left acknowledges it."""
        manager = manager_of(table(6, 6))

        assert release(manager, lease(manager).shards[0], records).state is LeaseState.END
        assert manager.progress("train").records_done == 6


class TestLostWorkers:
    def test_release_node(self) -> None:
        """The shards of a lost worker are leased to others without counting as retries. Other workers keep
        theirs."""
        manager = manager_of(table(9, 3, max_retries=0))
        lease(manager, A, count=2)
        kept = lease(manager, B).shards[0]

        assert manager.release_node(A) == 2
        assert manager.release_node(A) == 0
        assert ranges(lease(manager, B, count=9)) == [(0, 3), (3, 6)]
        assert done(manager, kept, node=B).accepted == 1

    @pytest.mark.parametrize("task_type", list(TaskType))
    def test_time_out(self, task_type: TaskType) -> None:
        """Shards of every task type time out, and each time-out counts as a retry."""
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
        """If one shard of a lease is acknowledged, the time-out of its other shards starts again."""
        manager = manager_of(table(9, 3, timeout_s=60))
        shards = lease(manager, count=3).shards
        done(manager, shards[0], now=NOW + 50)

        assert manager.expire(NOW + 70) == []
        assert len(manager.expire(NOW + 110)) == 1
        assert manager.progress("train").timeouts == 2

    def test_lost_answer_is_noticed(self) -> None:
        """A worker reports the leases that it holds. Shards of a reply that never reached it are leased to it
        again at once."""
        manager = manager_of(table(9, 3))
        kept = lease(manager, A, holding=[])
        lease(manager, A, holding=[kept.shards[0].lease])  # this answer is lost

        assert ranges(lease(manager, A, count=9, holding=[kept.shards[0].lease])) == [(6, 9), (3, 6)]
