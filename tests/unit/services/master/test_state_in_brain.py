"""The master's state in a Brain: what holds there beyond what every store promises."""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.protocol.brain import MAX_HEAD, MAX_STATE_BYTES
from edl_workflows.services.brain.store import database, states
from edl_workflows.services.brain.store.tables import SNAPSHOT
from edl_workflows.services.master import master as master_module
from edl_workflows.services.master import server
from edl_workflows.services.master.brain import BrainAccess, BrainConnection
from edl_workflows.services.master.server import load_state
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.stores import brain
from edl_workflows.services.master.stores.brain import BrainStateStore
from edl_workflows.services.master.stores.port import StateStore
from edl_workflows.services.master.stores.volume import VolumeStore
from tests.unit.services.brain import support
from tests.unit.services.brain.support import OTHER, Api
from tests.unit.services.master import store_places
from tests.unit.services.master.served_master import GatedStore, Served, with_master
from tests.unit.services.master.store_places import LAST, NEW, OLD, BrainStores, state_key

shared, brain_stores = support.shared, store_places.brain_stores
SETTINGS = JobSettings("job", "default", parse_nodes("worker=1"))


def test_the_state_moves_to_brain_and_stays_there(
    shared: Api, brain_stores: BrainStores, tmp_path: Path
) -> None:
    """A job whose masters get a Brain continues from the ConfigMap's state. From then on a master without
    that Brain is refused, and does not begin the job anew; so is one with a volume, or with a Brain that
    does not have the state, as after the loss of its database."""
    job, config_map = state_key("moves"), GatedStore()
    config_map.save(OLD)
    store = brain_stores.open(shared, job, config_map)
    assert store.load() == OLD
    store.save(NEW)

    assert brain_stores.open(shared, job, config_map).load() == NEW
    with pytest.raises(InvalidError, match="format: it is that of Brain http"):
        load_state(SETTINGS, config_map, watches_pods=True)
    with pytest.raises(InvalidError, match=r"in Brain .*, and the masters' template names .*state"):
        VolumeStore(tmp_path / "state", config_map).load()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""]
    with support.running(tmp_path) as empty, pytest.raises(InvalidError, match="name the Brain that has it"):
        brain_stores.open(empty, job, config_map).load()
    assert brain_stores.open(shared, job, config_map).load() == NEW


def test_the_state_on_a_volume_is_not_begun_anew_in_brain(
    shared: Api, brain_stores: BrainStores, tmp_path: Path
) -> None:
    """A job whose state is on a volume is refused by a master with a Brain."""
    config_map = GatedStore()
    store = VolumeStore(tmp_path / "state", config_map)
    store.load()
    store.save(OLD)

    with pytest.raises(InvalidError, match=r"in files .*state\.\*, and the masters' template names Brain"):
        brain_stores.open(shared, state_key("volume"), config_map).load()
    assert VolumeStore(tmp_path / "state", config_map).load() == OLD


def test_a_state_that_was_begun_anew_replaces_that_of_brain(shared: Api, brain_stores: BrainStores) -> None:
    """A job that was begun anew without its Brain, by emptying the ConfigMap, and that gets it back continues
    from the ConfigMap, not from the older state in Brain."""
    job, config_map = state_key("anew"), GatedStore()
    store = brain_stores.open(shared, job, config_map)
    store.load()
    store.save(OLD)
    config_map.save(NEW)

    following = brain_stores.open(shared, job, config_map)
    assert following.load() == NEW
    assert following._claimed == ()  # megabytes
    assert brain_stores.open(shared, job, config_map).load() == NEW


class StallingStore(GatedStore):
    """A default store whose reader stalls, while another master starts.

    Attributes:
        meanwhile: what happens.
    """

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def load(self) -> bytes | None:
        document, meanwhile = super().load(), self.meanwhile
        self.meanwhile = lambda: None
        meanwhile()
        return document


@pytest.mark.parametrize("kind", ["volume", "brain"])
def test_a_master_that_stalls_while_it_moves_a_state_does_no_harm(
    kind: str, shared: Api, brain_stores: BrainStores, tmp_path: Path
) -> None:
    """If another master moves the state and goes on, the first one, which has read the state before, does
    not put it back."""
    config_map, job = StallingStore(), state_key(f"stalls-{kind}")
    config_map.save(OLD)

    def make() -> StateStore:
        if kind == "volume":
            return VolumeStore(tmp_path / "state", config_map)
        return brain_stores.open(shared, job, config_map)

    def take_over() -> None:
        second = make()
        assert second.load() == OLD
        second.save(NEW)

    config_map.meanwhile = take_over
    with pytest.raises(ConflictError, match="taken"):
        make().load()
    assert make().load() == NEW


def test_a_job_of_the_same_name_later_begins_anew(shared: Api, brain_stores: BrainStores) -> None:
    """Another object with the name of a job that had a state has another uid, and its own state."""
    job = state_key("former")
    store = brain_stores.open(shared, job)
    store.load()
    store.save(OLD)

    later = job.model_copy(update={"uid": f"{job.uid}-later"})
    assert brain_stores.open(shared, later).load() is None


def test_a_write_that_arrives_late_changes_nothing(
    shared: Api, brain_stores: BrainStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer was not awaited any more, and which Brain gets after the next one, does not
    replace the newer state."""
    job, late = state_key("late"), []
    store = brain_stores.open(shared, job)
    (connection,) = brain_stores.connections
    store.load()
    post = connection.post

    def delay(call: str, body: Any, *more: Any) -> Any:
        late.append((call, body, *more))
        raise UnavailableError("no answer in time")

    with monkeypatch.context() as slow:
        slow.setattr(connection, "post", delay)
        with pytest.raises(UnavailableError):
            store.save(OLD)
    store.save(NEW)
    with pytest.raises(ConflictError, match="a newer state of job team/mnist is stored"):
        post(*late[0])
    store.save(LAST)
    assert brain_stores.open(shared, job).load() == LAST


def test_only_the_team_s_own_token_takes_a_state_over(shared: Api, brain_stores: BrainStores) -> None:
    """Another team's token, or none, neither reads a state nor fences its master off."""
    job = state_key("rights")
    store = brain_stores.open(shared, job)
    store.load()
    store.save(OLD)
    for token in (OTHER, "wrong", ""):
        stranger = brain_stores.open(shared.as_(token), job)
        with pytest.raises(ForbiddenError, match=r"Brain at http.* answered 40[13]"):
            stranger.load()
        with pytest.raises(ForbiddenError):
            stranger.save(NEW)
    store.save(NEW)
    assert brain_stores.open(shared, job).load() == NEW


def test_a_state_that_nobody_has_taken_over_is_not_there(shared: Api, brain_stores: BrainStores) -> None:
    """A write without a term, and one of a state that was deleted, is refused."""
    store = brain_stores.open(shared, state_key("nobody"))
    with pytest.raises(NotFoundError, match="there is no state of job team/mnist with the uid"):
        store.save(OLD)


def test_a_row_that_is_no_snapshot_counts_as_damaged(shared: Api, brain_stores: BrainStores) -> None:
    """If the newest snapshot has text that no master writes, the one before is used."""
    job = state_key("no snapshot")
    store = brain_stores.open(shared, job)
    store.load()
    store.save(OLD)
    store.save(NEW)
    with database.write_transaction(shared.server.store.engine) as connection:
        newest = (SNAPSHOT.c.uid == job.uid, SNAPSHOT.c.number == 2)
        connection.execute(update(SNAPSHOT).where(*newest).values(head="h" * (MAX_HEAD + 1)))

    assert brain_stores.open(shared, job).load() == OLD


def test_the_largest_states_are_read_again(shared: Api, brain_stores: BrainStores) -> None:
    """Two of the greatest size, of characters that have two bytes each in a message, fit in an answer."""
    job = state_key("large")
    store = brain_stores.open(shared, job)
    store.load()
    quotes = b'"' * MAX_STATE_BYTES
    store.save(b"\\" * MAX_STATE_BYTES)
    store.save(quotes)

    assert brain_stores.open(shared, job).load() == quotes


def test_brain_refuses_what_is_too_large_or_no_text(shared: Api, brain_stores: BrainStores) -> None:
    """Brain itself checks sizes, in bytes, and characters that a database can't store."""
    job = state_key("checks")
    key = job.model_dump()
    version = {"term": 1, "number": 1}
    assert shared.post("states/claim", {"job": key}).status_code == 200
    for head, document, problem in (
        ("{}", "ä" * (MAX_STATE_BYTES // 2 + 1), f"more than {MAX_STATE_BYTES} bytes"),
        ("{}", "a\x00", "snapshot.document"),
        ("h" * 5_000, "{}", "snapshot.head"),
    ):
        snapshot = {"version": version, "head": head, "document": document}
        body = json.dumps({"job": key, "snapshot": snapshot}, ensure_ascii=False).encode()
        answer = shared.post("states/write", body)
        assert answer.status_code == 422
        assert problem in answer.json()["error"]
    assert shared.post("states/write", b'"' * (9 * 2**20)).status_code == 413


def test_large_states_of_a_namespace_are_bounded(
    shared: Api, brain_stores: BrainStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a namespace's states have too many bytes, a large one is refused with what to do, and ordinary
    ones are stored all the same."""
    monkeypatch.setattr(states, "LARGE_BYTES", 1_000)
    monkeypatch.setattr(states, "NAMESPACE_BYTES", 5_000)
    first, second = (
        state_key(name).model_copy(update={"namespace": "third"}) for name in ("first", "second")
    )
    api = shared.as_(OTHER)
    stores = [brain_stores.open(api, job) for job in (first, second)]
    for store in stores:
        store.load()
    stores[0].save(b"x" * 4_000)
    with pytest.raises(UnavailableError, match="of at most 5000: delete jobs that have ended"):
        stores[1].save(b"y" * 2_000)
    stores[1].save(b"y" * 900)
    stores[0].save(b"x" * 900)
    assert brain_stores.open(api, first).load() == b"x" * 900
    assert brain_stores.open(api, second).load() == b"y" * 900


def answering(answer: Any) -> BrainStateStore:
    connection = BrainConnection(BrainAccess("brain:1"), httpx.MockTransport(answer))
    return BrainStateStore(connection, state_key("mock"), GatedStore())


def test_a_brain_without_states_is_named() -> None:
    """The error of a Brain of an earlier version says what is wrong with it. So does that of a proxy while
    Brain is updated. The master does not end, but tries again."""
    store = answering(lambda _: httpx.Response(404, json={"error": "Not Found"}))
    for attempt in (store.load, lambda: store.save(NEW)):
        with pytest.raises(UnavailableError, match="Brain at brain:1 keeps no states of jobs"):
            attempt()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(503, json={"error": "too slow"}), UnavailableError),
        (httpx.Response(200, text="<html>"), UnavailableError),
        (httpx.Response(200, content=b" " * (brain.MAX_ANSWER + 1)), UnavailableError),
        (httpx.Response(200, json={"term": 1, "snapshots": [{"head": "{}"}]}), UnavailableError),
        (httpx.Response(403, json={"error": "not yours"}), ForbiddenError),
    ],
)
def test_no_answer_of_brain_begins_a_job_anew(answer: httpx.Response, error: type[EdlError]) -> None:
    """Whatever a Brain answers other than that there is no state, is an error of ours."""
    with pytest.raises(error):
        answering(lambda _: answer).load()


def test_a_master_trains_on_without_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store can't be reached, the master serves, tries again, and the job's warnings say so; once
    it can, the newest state is stored and the warning goes."""
    monkeypatch.setattr(master_module, "UNSTORED_SECONDS", 0.0)

    def warnings(served: Served) -> list[str]:
        shown: list[str] = views.job_status(served.master.state, time.time())["warnings"]
        return shown

    async def test(served: Served) -> None:
        await served.train()
        assert warnings(served) == []
        served.store.open = False
        register = asyncio.create_task(served.post("/v1/datasets", name="train", size=10, shard_size=5))
        await served.master.wait_until(lambda: bool(warnings(served)), 60)
        assert warnings(served) == [
            "the master can't store the job's state, and will retry: the gate is shut"
        ]
        served.store.refusal = "the gate is locked"
        await served.master.wait_until(lambda: "the gate is shut" not in warnings(served)[0], 60)
        assert warnings(served) == [
            "the master can't store the job's state, and will retry: the gate is locked"
        ]
        assert (await served.step(2))["active"] is not None
        assert not register.done()
        served.store.open = True
        await register
        assert warnings(served) == []
        assert served.store.document is not None
        stored = json.loads(served.store.document)
        assert [dataset["params"]["name"] for dataset in stored["shards"]["datasets"]] == ["train"]

    with_master(test)


class UnreachableStore(GatedStore):
    """Can't be reached at first.

    Attributes:
        refusals: how often yet.
    """

    def __init__(self, document: bytes, refusals: int) -> None:
        super().__init__()
        self.document = document
        self.refusals = refusals

    def load(self) -> bytes | None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise UnavailableError(f"Brain does not answer, {self.refusals} more times")
        return super().load()


class Reports:
    """A backend that keeps what is reported.

    Args:
        refusals: how often it can't be reached at first.
    """

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.reports: list[dict[str, Any]] = []

    def report_job(self, status: dict[str, Any]) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise UnavailableError("the API server does not answer")
        self.reports.append(status)


def test_a_master_waits_for_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that starts while the store can't be reached does not begin the job anew, and does not end,
    which would use the job's restart budget: it waits, and the job's warnings say so once, as
    soon as the API server can be reached."""
    pauses: list[float] = []
    monkeypatch.setattr(server, "_pause", pauses.append)
    stored = JobSettings("job", "default", parse_nodes("worker=3"))
    first = GatedStore()
    first.save(load_state(stored, first, watches_pods=True).to_json())
    assert first.document is not None
    reports = Reports(refusals=1)

    state = server._load_when_reachable(SETTINGS, UnreachableStore(first.document, 3), reports)  # type: ignore[arg-type]  # the rest is not used

    assert state.counts == {"worker": 3}
    assert pauses == [1.0, 2.0, 4.0]
    assert reports.reports == [
        {
            "warnings": [
                "the master waits for the job's state, and will retry: Brain does not answer, 1 more times"
            ]
        }
    ]


def test_a_master_that_waits_for_its_state_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as the first process of a container, which ends by a signal only if it handles it; with the exit
    code of a master that is to be started again."""
    monkeypatch.setattr(server, "_pause", lambda _: signal.raise_signal(signal.SIGTERM))
    former = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, server._ending_on_signal():
        server._load_when_reachable(SETTINGS, UnreachableStore(b"", 1), Reports())  # type: ignore[arg-type]  # the rest is not used
    assert ended.value.code == server.INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) == former
