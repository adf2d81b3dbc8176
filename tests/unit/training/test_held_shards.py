"""What a process keeps until the master has stored it, and what it tells another master."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import pytest

from edl_workflows.core.exceptions import ForbiddenError, NotFoundError, UnavailableError
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
from edl_workflows.training.data import held_shards, shards
from edl_workflows.training.data.held_shards import HeldShards
from edl_workflows.training.data.shards import ShardReader
from tests.unit.training.fake_master import eventually

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
    assert held.lease_request(ASK).done == []
    assert not _acknowledge(held, master="first", change=2).keeps


def test_results_travel_with_the_next_request_for_shards() -> None:
    """The request acknowledges what is done. Until its answer is noted, that is neither settled nor dropped;
    then it is kept until it is stored, as after a message of its own."""
    held = _held(0, 1)
    _train(held, 2)

    request = held.lease_request(ASK)

    assert (request.done, request.holding) == ([_key(0), _key(1)], [1, 2])
    assert (held.unsent, held.settled, held.consumed().done) == (False, False, request.done)
    reply = LeaseReply(state=LeaseState.WAIT, master="first", change=5, durable=4, recorded=True)
    held.note_lease(reply)
    assert (held.kept, held.settled) == (request.done, False)
    held.note_lease(reply.model_copy(update={"durable": 5, "recorded": False}))
    assert held.settled


def test_a_report_contains_what_an_unanswered_request_carries() -> None:
    """If a request for shards hangs while another master answers, that one learns of what is done by the
    report, before it grants shards to anybody. Then the request fails, and what it carried is sent again."""
    held = _held(0, 1, 2)
    _train(held)
    held.lease_request(ASK)
    _train(held)
    held.acknowledgement(ASK, stored=False)
    held.note_acknowledged(AckReply(state=LeaseState.OK, master="next", change=1))

    report = held.acknowledgement(ASK, stored=False)

    assert [shard.ordinal for shard in report.held or ()] == [2]
    assert (report.done, held.done, held.carried) == ([_key(0)], [], [_key(0)])
    held.note_no_lease()
    assert held.done == [_key(0)]


def test_what_was_not_recorded_is_acknowledged_again() -> None:
    """Results that an unanswered request carried travel with the next one. A master of an earlier version
    ignores them: then they are sent in a message of their own, as all later ones, until another master
    answers."""
    held = _held(0, 1, 2)
    _train(held)
    held.lease_request(ASK)
    _train(held)
    held.note_no_lease()
    assert held.lease_request(ASK).done == [_key(0), _key(1)]

    held.note_lease(LeaseReply(state=LeaseState.OK, master="first"))

    _train(held)
    assert held.lease_request(ASK).done == []
    assert _acknowledge(held, master="first", change=1).done == [_key(0), _key(1), _key(2)]
    held.note_lease(LeaseReply(state=LeaseState.WAIT, master="next"))
    _acknowledge(held, master="next", change=1)
    held.ahead.append(_shard(3))
    _train(held)
    assert held.lease_request(ASK).done == [_key(3)]


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


def _expect_rejection(consumed: Iterator[Shard]) -> None:
    with pytest.raises(NotFoundError):
        next(consumed)


def test_a_rejected_acknowledgement_is_not_repeated() -> None:
    """A process that must settle and whose acknowledgement is rejected, as by a master that began the job
    anew, sends none any more, although it keeps some."""
    master = RejectingMaster()
    params = DatasetParams(name="rejected", size=20, shard_size=10)
    reader = ShardReader(cast("MasterClient", master), ASK, params, lambda: True, lambda: None)
    (sender,) = (thread for thread in threading.enumerate() if thread.name == "acknowledge-rejected")

    consumed = reader.shards()
    next(consumed)
    training = threading.Thread(target=_expect_rejection, args=[consumed], daemon=True)
    training.start()
    assert master.answered.wait(60)
    reader.settle(60)
    sender.join(60)

    assert not sender.is_alive()
    assert master.acknowledgements == 2
    training.join(60)
    reader.close(0)


class CountingMaster:
    """Grants shards, except for the last ones, which are elsewhere. Notes what is done and how often it is
    called."""

    def __init__(self, shards: int, elsewhere: int = 0) -> None:
        self.shards = shards
        self.elsewhere = elsewhere
        self.granted = 0
        self.done: set[int] = set()
        self.leases = self.acknowledgements = 0

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        del dataset
        self.leases += 1
        self._note(request.done)
        end = min(self.shards - self.elsewhere, self.granted + request.max_shards)
        granted = range(self.granted, end)
        self.granted += len(granted)
        return LeaseReply(
            state=LeaseState.OK if granted else self._state,
            shards=[_shard(ordinal) for ordinal in granted],
            recorded=bool(request.done),
            **self._receipt,
        )

    def acknowledge(self, dataset: str, request: AckRequest) -> AckReply:
        del dataset
        self.acknowledgements += 1
        self._note(request.done)
        return AckReply(state=self._state, **self._receipt)

    def _note(self, done: list[ShardKey]) -> None:
        self.done |= {key.ordinal for key in done}

    @property
    def _state(self) -> LeaseState:
        return LeaseState.END if len(self.done) == self.shards else LeaseState.WAIT

    @property
    def _receipt(self) -> dict[str, Any]:
        change = self.leases + self.acknowledgements
        return {"master": "first", "change": change, "durable": change}


def _reader(master: CountingMaster, ahead: int, may_lease: Callable[[], bool] = lambda: True) -> ShardReader:
    params = DatasetParams(name="counted", size=10 * master.shards, shard_size=10)
    ask = ASK.model_copy(update={"max_shards": ahead})
    return ShardReader(cast("MasterClient", master), ask, params, may_lease, lambda: None)


def test_a_shard_costs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that requests one shard after the other acknowledges each with the next request. Only of the
    last one the result may go in a message of its own."""
    monkeypatch.setattr(shards, "ACK_SECONDS", 600.0)
    monkeypatch.setattr(shards, "REPORT_SECONDS", 600.0)
    master = CountingMaster(200)
    reader = _reader(master, ahead=1)

    assert [shard.ordinal for shard in reader.shards()] == list(range(200))

    assert len(master.done) == 200
    assert master.acknowledgements <= 1
    reader.close(0)


class RefusingMaster(CountingMaster):
    """Rejects the request for shards that carries a result."""

    def __init__(self) -> None:
        super().__init__(2)
        self.noted = threading.Event()

    def lease(self, dataset: str, request: LeaseRequest) -> LeaseReply:
        if request.done:
            time.sleep(2 * shards.ACK_SECONDS)  # until nothing waits for this request any more
            raise ForbiddenError("not yours")
        return super().lease(dataset, request)

    def _note(self, done: list[ShardKey]) -> None:
        super()._note(done)
        if done:
            self.noted.set()


def test_what_a_rejected_request_carried_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a shard is not lost, and does not wait, because the request for the next one fails."""
    monkeypatch.setattr(shards, "REPORT_SECONDS", 600.0)
    master = RefusingMaster()
    reader = _reader(master, ahead=1)

    with pytest.raises(ForbiddenError):
        list(reader.shards())

    assert master.noted.wait(60)
    assert master.done == {0}
    reader.close(0)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize("may_lease", [True, False], ids=["no shards", "not to lease"])
def test_the_last_result_is_not_held_back(
    monkeypatch: pytest.MonkeyPatch, ahead: int, may_lease: bool
) -> None:
    """If another worker holds the shards that are left, or the process is not to lease, no result waits for a
    request for shards."""
    monkeypatch.setattr(shards, "ACK_SECONDS", 600.0)
    master = CountingMaster(4, elsewhere=1)
    reader = _reader(master, ahead, lambda: may_lease or master.granted < 3)

    training = threading.Thread(target=_train_until_closed, args=[reader], daemon=True)
    training.start()

    eventually(lambda: master.done == {0, 1, 2}, 60)
    reader.close(60)
    training.join(60)


def _train_until_closed(reader: ShardReader) -> None:
    with suppress(UnavailableError):
        for _ in reader.shards():
            pass


def test_a_slow_loop_does_not_hold_results_back() -> None:
    """While shards are ahead and none are requested, results are sent within a fraction of a second."""
    master = CountingMaster(8)
    reader = _reader(master, ahead=8)

    consumed = reader.shards()
    next(consumed)
    next(consumed)  # the first is done; nothing is requested before the fourth

    eventually(lambda: master.done == {0}, 60)
    assert master.leases == 1
    reader.close(60)
