"""Which answers about data wait for the store, and what the next master asks of the workers."""

import asyncio
from typing import Any

import pytest

from edl_workflows.services.master import master
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.served_master import WORKER, Served, with_master

LEASE, ACK = "/v1/datasets/train/lease", "/v1/datasets/train/ack"


async def _start(it: Served, epochs: int = 1) -> list[dict[str, Any]]:
    """Train, register four shards, and lease the first."""
    await it.train()
    await it.post("/v1/datasets", name="train", size=40, shard_size=10, num_epochs=epochs)
    shards: list[dict[str, Any]] = (await it.post(LEASE, node=WORKER, keeps=True))["shards"]
    return shards


async def _waits(it: Served, path: str, **body: Any) -> dict[str, Any]:
    """The answer, which must wait for the store."""
    it.store.open = False
    call = asyncio.create_task(it.post(path, node=WORKER, **body))
    done, _ = await asyncio.wait([call], timeout=0.3)
    assert not done
    it.store.open = True
    return await call


def test_kept_acknowledgements_are_answered_at_once() -> None:
    """While the store is away, a worker that keeps its acknowledgements leases and acknowledges. The answers
    say that nothing of it is stored; a later one says that all is."""

    async def test(it: Served) -> None:
        (first,) = await _start(it)
        it.store.open = False
        blocked = asyncio.create_task(it.post("/v1/sync/all", node=WORKER))
        acknowledged = await it.post(ACK, node=WORKER, keeps=True, done=[first])
        leased = await it.post(LEASE, node=WORKER, keeps=True, master=acknowledged["master"])
        assert acknowledged["accepted"] == len(leased["shards"]) == 1
        assert acknowledged["durable"] < acknowledged["change"] <= leased["change"]
        it.store.open = True
        await blocked
        later = await it.post(ACK, node=WORKER, keeps=False)
        assert later["durable"] >= later["change"] >= acknowledged["change"]

    with_master(test)


def test_a_request_for_shards_records_what_is_done() -> None:
    """Shards that are done travel with the request for others: they are counted once, however often the
    request comes, also by a master that does not know yet what the worker holds. The answer to the request
    that ends the data waits for the store."""

    async def test(it: Served) -> None:
        (first,) = await _start(it)
        other = await it.post(LEASE, node=WORKER, keeps=True, master="earlier", done=[first])
        assert (other["state"], other["recorded"]) == ("wait", True)
        repeated = [
            await it.post(LEASE, node=WORKER, keeps=True, holding=[], max_shards=3, done=[first])
            for _ in range(2)
        ]
        assert [[shard["ordinal"] for shard in reply["shards"]] for reply in repeated] == [[1, 2, 3]] * 2
        assert it.master.state.shards.progress("train").records_done == 10
        ended = await _waits(it, LEASE, keeps=True, done=repeated[-1]["shards"])
        assert (ended["state"], ended["recorded"]) == ("end", True)
        assert ended["durable"] >= ended["change"]

    with_master(test)


@pytest.mark.parametrize(
    "answer", [{"keeps": False}, {"keeps": True, "state": "released"}, {"keeps": True, "state": "failed"}]
)
def test_what_workers_cannot_repeat_waits_for_the_store(answer: dict[str, Any]) -> None:
    """Acknowledgements of a worker that does not keep them are answered once stored. So is the next lease of
    a shard that was returned or failed."""

    async def test(it: Served) -> None:
        shards = await _start(it)
        kind = answer.get("state", "done")
        if not answer["keeps"]:
            assert (await _waits(it, ACK, **{kind: shards}))["accepted"] == 1
            return
        it.store.open = False
        acknowledgement = asyncio.create_task(it.post(ACK, node=WORKER, keeps=True, **{kind: shards}))
        await asyncio.sleep(0)
        assert len((await _waits(it, LEASE, keeps=True))["shards"]) == 1
        assert (await acknowledgement)["accepted"] == 1

    with_master(test)


def test_epochs_and_the_end_wait_for_the_store() -> None:
    """The first lease of a node or an epoch, and the answer that shows the end of the data, wait until they
    are stored."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=40, shard_size=10, num_epochs=2)
        first = (await _waits(it, LEASE, keeps=True, max_shards=4))["shards"]
        second = (await _waits(it, LEASE, keeps=True, max_shards=4))["shards"]
        assert [shard["epoch"] for shard in (*first, *second)] == [1] * 4 + [2] * 4
        assert (await it.post(ACK, node=WORKER, keeps=True, done=first))["state"] == "ok"
        assert (await _waits(it, ACK, keeps=True, done=second))["state"] == "end"

    with_master(test)


def test_the_next_master_asks_what_a_worker_holds() -> None:
    """A master that was started anew grants no shards to a worker that another master answered last, until
    it has reported what it holds. Then it continues its leases, and takes its acknowledgements once."""

    async def test(it: Served) -> None:
        (first,) = await _start(it)
        await it.master.durable(it.master.changed())
        stored = await it.post(LEASE, node=WORKER, keeps=True)
        (second,), before = stored["shards"], stored["master"]
        assert it.store.document is not None
        # What the previous master stored, in a master with another identity.
        earlier = JobState(it.master.state.settings, StoredState.from_json(it.store.document))
        it.master.state.shards = earlier.shards
        it.master.state.volatile.master = "next"
        refused = await it.post(LEASE, node=WORKER, keeps=True, master=before, holding=[])
        assert (refused["state"], refused["master"]) == ("wait", "next")
        report = {"keeps": True, "done": [first], "held": [second]}
        assert (await it.post(ACK, node=WORKER, **report))["accepted"] == 1
        assert (await it.post(ACK, node=WORKER, **report))["duplicates"] == 1
        holding = [second["lease"]]
        granted = await it.post(LEASE, node=WORKER, keeps=True, master="next", holding=holding, max_shards=9)
        assert sorted(shard["ordinal"] for shard in granted["shards"]) == [2, 3]
        assert min(shard["lease"] for shard in granted["shards"]) > second["lease"]

    with_master(test)


def test_a_worker_that_begins_to_keep_is_stored_before_its_next_lease() -> None:
    """A worker that leased from a master of an earlier version reports to the next one, which stores that it
    keeps acknowledgements: the master after that one must wait for its report."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=40, shard_size=10)
        (shard,) = (await it.post(LEASE, node=WORKER))["shards"]
        it.store.open = False
        reported = await it.post(ACK, node=WORKER, keeps=True, held=[shard])
        holding = [shard["lease"]]
        leased = await _waits(it, LEASE, keeps=True, master=reported["master"], holding=holding)
        assert len(leased["shards"]) == 1

    with_master(test)


def test_what_workers_report_to_a_new_master_is_stored_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have kept acknowledgements for as long as the previous master lived. The next master
    stores them when it gets them, not a minute later: else a worker that dies with the second of two masters
    would repeat the time of both."""
    monkeypatch.setattr(master, "KEPT", (3600.0, 3600.0))

    async def test(it: Served) -> None:
        (first,) = await _start(it)
        assert it.store.document is not None
        earlier = JobState(it.master.state.settings, StoredState.from_json(it.store.document))
        it.master.state.shards = earlier.shards
        it.master.state.volatile.master = "next"
        assert (await it.post(ACK, node=WORKER, keeps=True, done=[first], held=[]))["accepted"] == 1
        async with asyncio.timeout(60):
            while StoredState.from_json(it.store.document).shards.progress("train").records_done == 0:
                await it.master.committed(1.0)

    with_master(test)
