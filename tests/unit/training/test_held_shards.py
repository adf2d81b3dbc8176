"""What a process keeps until the master has stored it, and what it tells another master."""

import threading
from collections.abc import Iterator
from typing import cast

import pytest

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    HeldShard,
    LeaseReply,
    LeaseRequest,
    LeaseState,
    Shard,
    ShardKey,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training.client import MasterClient
from edl_workflows.training.data import held_shards
from edl_workflows.training.data.held_shards import HeldShards
from edl_workflows.training.data.shards import ShardReader

ASK = LeaseRequest(node=NodeRef(type="worker", id=0), max_shards=4)


def _shard(ordinal: int) -> Shard:
    return Shard(epoch=1, ordinal=ordinal, lease=ordinal + 1, start=10 * ordinal, end=10 * ordinal + 10)


def _key(ordinal: int) -> ShardKey:
    return ShardKey(epoch=1, ordinal=ordinal, lease=ordinal + 1)


def _held(*ordinals: int, master: str = "first") -> HeldShards:
    held = HeldShards()
    shards = [_shard(ordinal) for ordinal in ordinals]
    held.note_lease(LeaseReply(state=LeaseState.OK, shards=shards, master=master))
    return held


def _may_lease(held: HeldShards) -> bool:
    return held.may_lease


def _train(held: HeldShards, shards: int = 1) -> None:
    for _ in range(shards):
        held.finish(held.begin())


def _acknowledge(held: HeldShards, **receipt: object) -> AckRequest:
    request = held.acknowledgement(ASK, stored=False)
    held.note_acknowledged(AckReply.model_validate({"state": "ok", **receipt}))
    return request


def test_an_acknowledgement_is_kept_until_it_is_stored() -> None:
    """What the master has answered but not stored stays in the position of a checkpoint, and is dropped with
    the first answer that covers it, whichever answer that is."""
    held = _held(0, 1)
    _train(held)
    assert _acknowledge(held, master="first", change=5, durable=4).keeps
    assert (held.kept, held.settled, held.unsent) == ([_key(0)], False, False)
    assert held.consumed().done == [_key(0)]

    held.note_lease(LeaseReply(state=LeaseState.WAIT, master="first", change=6, durable=5))

    assert (held.kept, held.settled) == ([], True)
    assert not held.consumed().done


def test_an_answer_that_comes_late_is_kept_no_more() -> None:
    """If the answer to a lease has already shown that an acknowledgement is stored, it is not kept."""
    held = _held(0)
    _train(held)
    held.acknowledgement(ASK, stored=False)
    held.note_lease(LeaseReply(state=LeaseState.END, master="first", change=7, durable=7))

    held.note_acknowledged(AckReply(state=LeaseState.END, master="first", change=5, durable=4))

    assert held.settled


def test_nothing_is_kept_for_a_master_of_an_earlier_version() -> None:
    """A master that says nothing of itself stores each acknowledgement before it answers."""
    held = _held(0, 1, master="")
    _train(held)
    request = _acknowledge(held)

    assert request.held is None
    assert held.settled
    assert held.may_lease


@pytest.mark.parametrize("master", ["next", ""], ids=["this version", "an earlier version"])
def test_another_master_is_sent_what_the_one_before_had_not_stored(master: str) -> None:
    """The process sends again what it has kept, and reports what it holds, before it leases. A report whose
    answer is lost is repeated."""
    held = _held(0, 1, 2)
    _train(held, 2)
    _acknowledge(held, master="first", change=5, durable=4)
    held.begin()

    held.note_lease(LeaseReply(state=LeaseState.WAIT, master=master))
    assert not _may_lease(held)
    report = held.acknowledgement(ASK, stored=False)

    assert report.done == [_key(0), _key(1)]
    assert report.held == [HeldShard(epoch=1, ordinal=2, lease=3, start=20)]
    assert held.sending is report
    assert not _may_lease(held)
    held.note_acknowledged(AckReply(state=LeaseState.OK, master=master, change=int(bool(master))))
    assert _may_lease(held)
    assert held.lease_request(ASK).master == master
    assert held.kept == ([_key(0), _key(1)] if master else [])


def test_the_numbers_of_two_masters_are_not_compared() -> None:
    """A late answer of a dead master does not make the process drop what the present one has not stored."""
    held = _held(0, 1)
    _train(held)
    _acknowledge(held, master="next", change=2, durable=1)

    held.note_lease(LeaseReply(state=LeaseState.WAIT, master="first", change=90, durable=90))
    held.note_lease(LeaseReply(state=LeaseState.WAIT, master="next", change=2, durable=1))

    assert held.acknowledgement(ASK, stored=False).done == [_key(0)]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has kept too many shards asks for the next acknowledgement to be stored."""
    monkeypatch.setattr(held_shards, "MAX_KEPT", 2)
    held = _held(0, 1, 2)
    _train(held, 2)
    assert _acknowledge(held, master="first", change=1).keeps
    _train(held)
    assert not _acknowledge(held, master="first", change=2).keeps


class RejectingMaster:
    """Leases one shard, stores nothing, and knows the data set no more from the second acknowledgement on."""

    def __init__(self) -> None:
        self.leased = False
        self.acknowledgements = 0
        self.answered = threading.Event()

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        del dataset, request
        shards = [] if self.leased else [_shard(0)]
        self.leased = True
        state = LeaseState.OK if shards else LeaseState.WAIT
        return LeaseReply(state=state, shards=shards, master="first", change=1)

    def acknowledge(self, dataset: str, request: AckRequest) -> AckReply:
        del request
        self.acknowledgements += 1
        if self.acknowledgements > 1:
            raise NotFoundError(f"data set {dataset!r} is not registered")
        self.answered.set()
        return AckReply(state=LeaseState.OK, accepted=1, master="first", change=2)


def _expect_rejection(shards: Iterator[Shard]) -> None:
    with pytest.raises(NotFoundError):
        next(shards)


def test_a_rejected_acknowledgement_is_not_repeated() -> None:
    """A process that must settle and whose acknowledgement is rejected, as by a master that began the job
    anew, sends none any more, although it keeps some."""
    master = RejectingMaster()
    params = DatasetParams(name="rejected", size=20, shard_size=10)
    reader = ShardReader(cast("MasterClient", master), ASK, params, lambda: True, lambda: None)
    (sender,) = (thread for thread in threading.enumerate() if thread.name == "acknowledge-rejected")

    shards = reader.shards()
    next(shards)
    training = threading.Thread(target=_expect_rejection, args=[shards], daemon=True)
    training.start()
    assert master.answered.wait(60)
    reader.settle(60)
    sender.join(60)

    assert not sender.is_alive()
    assert master.acknowledgements == 2
    training.join(60)
    reader.close(0)
