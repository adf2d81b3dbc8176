"""Laws of data sharding: at least once in any case, and exactly once without failures."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl_workflows.core.protocol.datasets import (
    AckRequest,
    DatasetParams,
    FailedShard,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    PartitionOffsets,
    ReleasedShard,
    Shard,
    ShardKey,
    Splitter,
    StreamUpdate,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.permutation import Permutation
from edl_workflows.services.master.shards import JobPosition, ShardManager, ShardsSnapshot
from edl_workflows.services.master.shards.snapshot import numbers_of, to_intervals
from tests.property.shard_records import Record, all_records

TIMEOUT = 100.0
WORKERS = tuple(NodeRef(type="worker", id=number) for number in range(2))


sized = st.builds(
    DatasetParams,
    name=st.just("train"),
    splitter=st.sampled_from([Splitter.TABLE, Splitter.TEXT]),
    size=st.integers(1, 40),
    shard_size=st.integers(1, 5),
    batch_size=st.integers(0, 3),
    num_epochs=st.integers(1, 4),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
    max_retries=st.just(1000),
    timeout_s=st.just(TIMEOUT),
)
offsets = st.builds(
    lambda start, size: PartitionOffsets(start=start, end=start + size), st.integers(0, 9), st.integers(0, 20)
)
streams = st.builds(
    DatasetParams,
    name=st.just("train"),
    splitter=st.just(Splitter.STREAMING),
    partitions=st.dictionaries(st.sampled_from(["p0", "p1", "p2"]), offsets, min_size=1),
    shard_size=st.integers(1, 5),
    closed=st.booleans(),
    max_retries=st.just(1000),
    timeout_s=st.just(TIMEOUT),
)


def records_of(shard: Shard) -> list[Record]:
    """The records that a worker reads for a shard."""
    places = range(shard.start, shard.end) if shard.indices is None else shard.indices
    return [(shard.epoch, shard.partition, place) for place in places]


def key_of(shard: Shard) -> dict[str, int | str]:
    return ShardKey.model_validate(shard.model_dump()).model_dump()


class Sharding(RuleBasedStateMachine):
    """Workers, a network that loses, repeats and delays messages, and a master that dies. Each record must
    reach the model."""

    @initialize(params=sized | streams)
    def register(self, params: DatasetParams) -> None:
        self.manager = ShardManager()
        self.manager.register(params)
        self.params = params
        self.now = 1000.0
        self.held: dict[NodeRef, list[Shard]] = {worker: [] for worker in WORKERS}
        self.learned: set[Record] = set()
        """In the model: processed since it was last restored, or before the checkpoint from which it was."""
        self.messages: list[AckRequest] = []
        self.stored = self.manager.snapshot().to_json()
        self.checkpoint: tuple[JobPosition, set[Record]] | None = None

    @rule(worker=st.sampled_from(WORKERS), shards=st.integers(1, 4), tell=st.booleans(), lost=st.booleans())
    def lease(self, worker: NodeRef, shards: int, tell: bool, lost: bool) -> None:
        holding = sorted({shard.lease for shard in self.held[worker]}) if tell else None
        request = LeaseRequest(node=worker, max_shards=shards, holding=holding)
        reply = LeaseReply.model_validate_json(
            self.manager.lease("train", request, self.now).model_dump_json()
        )
        assert bool(reply.shards) == (reply.state is LeaseState.OK)
        if not lost:
            self.held[worker] += reply.shards

    def hold(self, worker: NodeRef) -> list[Shard]:
        """The shards that the worker holds. If there are none, it leases some first, so that every rule has
        something to do."""
        if not self.held[worker]:
            self.lease(worker=worker, shards=3, tell=False, lost=False)
        return self.held[worker]

    @rule(
        worker=st.sampled_from(WORKERS), first=st.integers(0, 3), count=st.integers(1, 4), lost=st.booleans()
    )
    def process(self, worker: NodeRef, first: int, count: int, lost: bool) -> None:
        held = self.hold(worker)
        shards = held[first % (len(held) or 1) :][:count]
        for shard in shards:
            self.learned.update(records_of(shard))
            held.remove(shard)
        self.send(AckRequest(node=worker, done=shards), lost)

    @rule(worker=st.sampled_from(WORKERS), lost=st.booleans())
    def fail(self, worker: NodeRef, lost: bool) -> None:
        failed = [FailedShard.model_validate(key_of(shard)) for shard in self.hold(worker)[:1]]
        del self.held[worker][:1]
        self.send(AckRequest(node=worker, failed=failed), lost)

    @rule(worker=st.sampled_from(WORKERS), done=st.integers(0, 6), lost=st.booleans())
    def drain(self, worker: NodeRef, done: int, lost: bool) -> None:
        released = []
        for shard in self.hold(worker):
            self.learned.update(records_of(shard)[:done])
            released.append(ReleasedShard.model_validate(key_of(shard) | {"records_done": done}))
            done = 0
        self.held[worker] = []
        self.send(AckRequest(node=worker, released=released), lost)

    def send(self, message: AckRequest, lost: bool) -> None:
        self.messages.append(message)
        if not lost:
            self.manager.acknowledge("train", message, self.now)

    @precondition(lambda self: self.messages)
    @rule(age=st.integers(0, 5))
    def deliver_late_or_again(self, age: int) -> None:
        message = self.messages[-1 - age % len(self.messages)]
        self.manager.acknowledge("train", message, self.now)
        before = self.manager.snapshot()
        reply = self.manager.acknowledge("train", message, self.now)
        assert reply.accepted == 0
        assert self.manager.snapshot() == before

    @rule(worker=st.sampled_from(WORKERS))
    def kill_worker(self, worker: NodeRef) -> None:
        self.held[worker] = []
        self.manager.release_node(worker)
        assert self.manager.release_node(worker) == 0

    @rule(seconds=st.floats(0, 2 * TIMEOUT))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.manager.expire(self.now)
        assert self.manager.expire(self.now) == []

    @rule()
    def store(self) -> None:
        self.stored = self.manager.snapshot().to_json()

    @rule()
    def kill_master(self) -> None:
        self.manager = ShardManager(ShardsSnapshot.model_validate_json(self.stored))
        assert self.manager.snapshot() == ShardsSnapshot.model_validate_json(self.stored)

    @rule()
    def begin_checkpoint(self) -> None:
        self.checkpoint = (self.manager.position(), set(self.learned))

    @precondition(lambda self: self.checkpoint)
    @rule()
    def restore_checkpoint(self) -> None:
        assert self.checkpoint is not None
        position, learned = self.checkpoint
        self.manager.rollback(position)
        assert self.manager.position() == position
        self.learned = set(learned)
        self.store()

    @precondition(lambda self: self.params.splitter is Splitter.STREAMING)
    @rule(partition=st.sampled_from(["p0", "p1", "p2"]), more=st.integers(0, 12), closed=st.booleans())
    def grow(self, partition: str, more: int, closed: bool) -> None:
        known = self.manager.snapshot().datasets[0].params
        if partition in known.partitions and not known.closed:
            end = known.partitions[partition].end + more
            self.manager.update("train", StreamUpdate(ends={partition: end}, closed=closed))
            self.store()

    @invariant()
    def finished_only_when_all_is_learned(self) -> None:
        progress = self.manager.progress("train")
        assert progress.records_total is None or progress.records_done <= progress.records_total
        if self.manager.finished:
            assert self.learned >= self.everything()
            assert progress.records_done == progress.records_total
            assert progress.shards_leased == progress.shards_returned == 0

    def everything(self) -> set[Record]:
        return all_records(self.manager.snapshot().datasets[0].params)

    def teardown(self) -> None:
        """Whatever happened, one worker can finish the job."""
        if not hasattr(self, "manager"):
            return
        self.now += TIMEOUT
        self.manager.expire(self.now)
        if self.params.splitter is Splitter.STREAMING:
            self.manager.update("train", StreamUpdate(closed=True))
        self.held = {worker: [] for worker in WORKERS}
        while (
            reply := self.manager.lease("train", LeaseRequest(node=WORKERS[0], max_shards=4), self.now)
        ).shards:
            for shard in reply.shards:
                self.learned.update(records_of(shard))
            assert self.manager.acknowledge(
                "train", AckRequest(node=WORKERS[0], done=reply.shards), self.now
            ).accepted == len(reply.shards)
        assert reply.state is LeaseState.END
        assert self.manager.finished
        self.finished_only_when_all_is_learned()


@pytest.mark.slow
class TestSharding(Sharding.TestCase):  # type: ignore[misc, valid-type]
    """Every record reaches the model at least once under any interleaving of leases, answers and deaths."""

    settings = settings(
        max_examples=300, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


@given(
    params=sized | streams,
    turns=st.lists(st.tuples(st.sampled_from(WORKERS), st.integers(1, 6), st.booleans())),
)
def test_exactly_once_without_failures(params: DatasetParams, turns: list[tuple[NodeRef, int, bool]]) -> None:
    """Without failures, each record of each epoch is leased once, however leases and acknowledgements
    interleave."""
    manager = ShardManager()
    manager.register(params)
    held: dict[NodeRef, list[Shard]] = {worker: [] for worker in WORKERS}
    seen: Counter[Record] = Counter()
    if not params.closed:
        manager.update("train", StreamUpdate(closed=True))
    for worker, shards, ack in [*turns, *((worker, 6, True) for worker in WORKERS * 60)]:
        reply = manager.lease("train", LeaseRequest(node=worker, max_shards=shards), 0.0)
        held[worker] += reply.shards
        seen.update(record for shard in reply.shards for record in records_of(shard))
        if ack:
            manager.acknowledge("train", AckRequest(node=worker, done=held[worker]), 0.0)
            held[worker] = []

    assert manager.finished
    assert set(seen.values()) <= {1}
    assert len(seen) == manager.progress("train").records_total


@given(size=st.integers(1, 3000), seed=st.text(max_size=5))
def test_permutation_is_one(size: int, seed: str) -> None:
    """The shuffle contains each item exactly once, for every size and seed."""
    order = Permutation(size, seed)

    assert sorted(order[place] for place in range(size)) == list(range(size))


@given(numbers=st.sets(st.integers(0, 200)))
def test_intervals_hold_their_numbers(numbers: set[int]) -> None:
    """Packing numbers into intervals loses none, and two intervals are never adjacent."""
    intervals = to_intervals(numbers)

    assert list(numbers_of(intervals)) == sorted(numbers)
    assert all(before[1] < after[0] for before, after in pairwise(intervals))
