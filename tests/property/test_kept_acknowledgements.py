"""Acknowledgements that the master answers before it stores them: laws of data under deaths at every point.

The bookkeeping of the processes and the rules of the master are those of the product. Messages get lost, and
a master can die before or after each of its writes.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from functools import cache
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edl_workflows.core.protocol.datasets import (
    DatasetParams,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    PartitionOffsets,
    Shard,
    ShardKey,
    Splitter,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.data_calls import DataCalls
from edl_workflows.services.master.master import WriteUrgency
from edl_workflows.services.master.shards.keepers import REPORT_SECONDS
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StoredState
from edl_workflows.training.data.held_shards import HeldShards
from tests.property.shard_records import Record, all_records
from tests.unit.services.master.state.whole_jobs import make_job

WORKERS = tuple(NodeRef(type="worker", id=number) for number in range(3))
DATA = "data"
Answer = TypeVar("Answer")

finite = st.builds(
    DatasetParams,
    name=st.just(DATA),
    splitter=st.sampled_from([Splitter.TABLE, Splitter.TEXT]),
    size=st.integers(1, 30),
    shard_size=st.integers(1, 4),
    num_epochs=st.integers(1, 4),
    shuffle=st.booleans(),
)
streams = st.builds(
    lambda ends, size: DatasetParams(
        name=DATA,
        splitter=Splitter.STREAMING,
        partitions={f"p{n}": PartitionOffsets(end=end) for n, end in enumerate(ends)},
        shard_size=size,
    ),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
    st.integers(1, 4),
)


class MasterDiedError(Exception):
    """The master died before it answered."""


class StoredMaster:
    """A master that stores when it must, and dies at its next write if it is doomed. An older one ignores
    what a request for shards acknowledges."""

    def __init__(self, document: bytes, job: JobSettings, *, older: bool = False) -> None:
        self.older = older
        self.state = JobState(job, StoredState.from_json(document), watches_pods=True)
        self.state.volatile.master = f"{id(self)}"
        self.document = document
        self.newest_change = self.durable_change = 0
        self.doomed = ""
        self.calls = DataCalls(self)  # type: ignore[arg-type]

    def now(self) -> float:
        return 1000.0

    def touched(self, urgency: WriteUrgency) -> int:
        del urgency
        self.newest_change += 1
        return self.newest_change

    async def lease(self, request: LeaseRequest) -> LeaseReply:
        if self.older:
            request = request.model_copy(update={"done": []})
        return await self.calls.lease(DATA, request)

    async def durable(self, change: int) -> None:
        if change > self.durable_change:
            if self.doomed == "before":
                raise MasterDiedError
            self.store()
            if self.doomed == "after":
                raise MasterDiedError

    def store(self) -> None:
        self.document = self.state.to_json()
        self.durable_change = self.newest_change


@cache
def _trained_job() -> tuple[bytes, JobSettings, int]:
    job = make_job("ps=1,worker=3")
    assert job.state.versions.active is not None
    return job.state.to_json(), job.state.settings, job.state.versions.active.number


class Process:
    """The process of a worker: it trains what it leases."""

    def __init__(self, node: NodeRef, version: int) -> None:
        self.held = HeldShards()
        self.leasing = False
        self.ask = LeaseRequest(node=node, version=version, max_shards=3)

    @property
    def may_lease(self) -> bool:
        return not self.leasing and self.held.may_lease and len(self.held.ahead) < self.ask.max_shards

    def trained_and_not_stored(self) -> int:
        """Records that the process trained, while the master may not know it for good."""
        held = self.held
        sending = [*held.sending.done, *held.sending.released] if held.sending is not None else []
        keys: Iterable[ShardKey] = [*held.done, *held.kept, *held.released, *held.carried, *sending]
        return sum(self.sizes[place] for place in {_place(key) for key in keys}) + held.records_done

    sizes: dict[tuple[int, str, int], int]


def _place(key: ShardKey) -> tuple[int, str, int]:
    return key.epoch, key.partition, key.ordinal


class KeptAcknowledgements(RuleBasedStateMachine):
    """Processes, a network that loses answers, and masters that die."""

    @initialize(params=finite | streams, older=st.booleans())
    def start(self, params: DatasetParams, older: bool) -> None:
        document, self.job, self.version = _trained_job()
        self.master = StoredMaster(document, self.job, older=older)
        self.master.state.shards.register(params)
        self.master.store()
        self.params = params
        self.sizes: dict[tuple[int, str, int], int] = {}
        self.processes = {node: self._new_process(node) for node in WORKERS}
        self.trained: Counter[Record] = Counter()
        self.bound = 0

    def _new_process(self, node: NodeRef) -> Process:
        process = Process(node, self.version)
        process.sizes = self.sizes
        return process

    def call(
        self, send: Callable[[DataCalls], Coroutine[Any, Any, Answer]], lost: str, doomed: str
    ) -> Answer | None:
        """The answer of the master, unless a message is lost or the master dies."""
        if lost == "request":
            return None
        self.master.doomed = doomed
        try:
            send(self.master.calls).send(None)
        except StopIteration as answered:
            answer: Answer = answered.value
        except MasterDiedError:
            self.kill_master()
            return None
        self.master.doomed = ""
        return None if lost == "answer" else answer

    @rule(
        node=st.sampled_from(WORKERS),
        lost=st.sampled_from(["", "", "", "request", "answer"]),
        doomed=st.sampled_from(["", "", "", "before", "after"]),
    )
    def lease(self, node: NodeRef, lost: str = "", doomed: str = "") -> None:
        process = self.processes[node]
        if not process.may_lease:
            return
        request = process.held.lease_request(process.ask)
        master = self.master
        reply = self.call(lambda _calls: master.lease(request), lost, doomed)
        if reply is None:
            process.held.note_no_lease()
        else:
            process.held.note_lease(reply)
            self.sizes.update({_place(shard): shard.end - shard.start for shard in reply.shards})

    @rule(node=st.sampled_from(WORKERS), lost=st.sampled_from(["request", "answer"]))
    def lease_in_vain(self, node: NodeRef, lost: str) -> None:
        """A request for shards hangs until `notice_silence`."""
        process = self.processes[node]
        if process.may_lease:
            request, master = process.held.lease_request(process.ask), self.master
            self.call(lambda _calls: master.lease(request), lost, "")
            process.leasing = True

    @rule(node=st.sampled_from(WORKERS))
    def notice_silence(self, node: NodeRef) -> None:
        process = self.processes[node]
        if process.leasing:
            process.held.note_no_lease()
            process.leasing = False

    @rule(node=st.sampled_from(WORKERS), records=st.integers(1, 6))
    def train(self, node: NodeRef, records: int) -> None:
        held = self.processes[node].held
        for _ in range(records):
            if held.current is None:
                if not held.ahead:
                    return
                held.begin()
            assert held.current is not None
            self._train_one(held, held.current)

    def _train_one(self, held: HeldShards, shard: Shard) -> None:
        place = shard.start + held.records_done if shard.indices is None else shard.indices[held.records_done]
        self.trained[shard.epoch, shard.partition, place] += 1
        held.records_done += 1
        if held.records_done == shard.end - shard.start:
            held.finish(shard)
            held.records_done = 0

    @rule(
        node=st.sampled_from(WORKERS),
        lost=st.sampled_from(["", "", "", "request", "answer"]),
        doomed=st.sampled_from(["", "", "", "before", "after"]),
    )
    def lease_and_train(self, node: NodeRef, lost: str, doomed: str) -> None:
        """What processes do most: each request for shards acknowledges those before."""
        self.lease(node=node)
        self.train(node=node, records=6)
        self.lease(node=node, lost=lost, doomed=doomed)

    @rule(
        node=st.sampled_from(WORKERS),
        stored=st.booleans(),
        lost=st.sampled_from(["", "", "", "request", "answer"]),
        doomed=st.sampled_from(["", "", "", "before", "after"]),
    )
    def acknowledge(self, node: NodeRef, stored: bool = False, lost: str = "", doomed: str = "") -> None:
        """Send the next message about results, or repeat the one that was not answered."""
        process = self.processes[node]
        request = process.held.sending or process.held.acknowledgement(process.ask, stored=stored)
        reply = self.call(lambda calls: calls.acknowledge(DATA, request), lost, doomed)
        if reply is not None:
            process.held.note_acknowledged(reply)

    @rule(node=st.sampled_from(WORKERS))
    def give_back(self, node: NodeRef) -> None:
        held = self.processes[node].held
        self.notice_silence(node=node)
        held.give_back()
        held.records_done = 0

    @rule()
    def store(self) -> None:
        self.master.store()

    @rule(older=st.booleans())
    def kill_master(self, older: bool = False) -> None:
        self.master = StoredMaster(self.master.document, self.job, older=older)

    @rule()
    def wait_no_longer(self) -> None:
        """The master waits no longer for the reports of processes that can't reach it."""
        for process in self.processes.values():
            held = process.held
            if held.master != self.master.state.volatile.master or not held.may_lease:
                shards = [*held.ahead, *([held.current] if held.current else [])]
                self.bound += process.trained_and_not_stored() + sum(self.sizes[_place(s)] for s in shards)
        self.master.state.shards.expire(self.master.now(), self.master.now() - REPORT_SECONDS)

    @rule(node=st.sampled_from(WORKERS), noticed=st.booleans())
    def kill_process(self, node: NodeRef, noticed: bool) -> None:
        self.bound += self.processes[node].trained_and_not_stored()
        self.processes[node] = self._new_process(node)
        if noticed:
            self.master.state.shards.release_node(node)

    @invariant()
    def no_more_is_repeated_than_documented(self) -> None:
        if hasattr(self, "bound"):
            assert sum(count - 1 for count in self.trained.values()) <= self.bound

    def everything(self) -> set[Record]:
        return all_records(self.params)

    def teardown(self) -> None:
        """Whatever happened, the processes finish the data, and each record was trained."""
        if not hasattr(self, "bound"):
            return
        for _ in range(200):
            if self.master.state.shards.progress(DATA).state is LeaseState.END:
                break
            for node in WORKERS:
                self.notice_silence(node=node)
                self.acknowledge(node=node)
                self.lease(node=node)
                self.train(node=node, records=100)
                self.acknowledge(node=node)
        assert self.master.state.shards.progress(DATA).state is LeaseState.END
        assert set(self.trained) == self.everything()
        assert self.master.state.shards.progress(DATA).records_done == len(self.everything())
        self.no_more_is_repeated_than_documented()


@pytest.mark.slow
class TestKeptAcknowledgements(KeptAcknowledgements.TestCase):  # type: ignore[misc, valid-type]
    """Every record is trained. None is trained twice while the processes live, whatever masters do; a process
    that dies causes at most the repetition of what it had trained and the master had not stored."""

    settings = settings(
        max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
