"""The store: versions, history, watches, restarts."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.storage.revisions import Object, Revision, StoreKey
from edl_workflows.local.apiserver.storage.store import ObjectStore
from edl_workflows.local.apiserver.storage.watches import StoreEvent, StoreWatch

A = StoreKey("things", "ns", "a")


def _thing(name: str = "a", **fields: object) -> Object:
    labels = fields.pop("labels", {})
    return {"metadata": {"name": name, "namespace": "ns", "labels": labels}, **fields}


def _next(watch: StoreWatch) -> list[StoreEvent]:
    return asyncio.run(watch.batch(0.01))


def test_a_change_at_the_end_of_the_wait_is_handed_out(store: ObjectStore) -> None:
    """If a change comes at the same moment as the end of a reader's wait, the reader gets the change.
    Otherwise it would get a bookmark with the newest version, and would resume after a change that it has
    not seen."""

    async def wait_while_something_changes() -> list[StoreEvent]:
        with store.watch("things", since=store.revision) as watch:
            waiting = asyncio.create_task(watch.batch(0))
            await asyncio.sleep(0)  # it waits
            await asyncio.sleep(0)  # its time is over, which it has not noticed yet
            store.create(A, _thing())
            return await waiting

    assert [event.type for event in asyncio.run(wait_while_something_changes())] == ["ADDED"]


def test_returned_objects_are_copies(store: ObjectStore) -> None:
    """Changing a read object or the one that was written does not change the store."""
    given = _thing(spec={"n": 1})
    store.create(A, given)
    given["spec"]["n"] = 2
    store.require(A).decode()["spec"]["n"] = 3

    assert store.require(A).decode()["spec"] == {"n": 1}


def test_conflict_leaves_the_object(store: ObjectStore) -> None:
    """A write with an outdated version changes nothing."""
    first = store.create(A, _thing(n=1))
    store.update(A, _thing(n=2))
    with pytest.raises(ApiError) as refused:
        store.update(A, _thing(n=3), expect=first.rv)

    assert refused.value.reason == "Conflict"
    assert store.require(A).decode()["n"] == 2


def test_failed_commit_leaves_memory_alone(store: ObjectStore) -> None:
    """If the database rejects a row, readers and watchers have not seen the change."""
    watch = store.watch("things", since=store.revision)
    store._db.execute("PRAGMA query_only=ON")
    with pytest.raises(sqlite3.OperationalError):
        store.create(A, _thing())
    store._db.execute("PRAGMA query_only=OFF")

    assert store.get(A) is None
    assert _next(watch) == []


def test_history_survives_a_restart(tmp_path: Path) -> None:
    """A reopened store answers watches and lists of old versions as before, and its next version is a newer
    one."""
    first = ObjectStore(tmp_path / "s.db", history=100)
    start = first.revision
    first.create(A, _thing(n=1))
    middle = first.update(A, _thing(n=2)).rv
    first.delete(A)
    first.close()
    second = ObjectStore(tmp_path / "s.db", history=100)

    assert [event.type for event in _next(second.watch("things", since=start))] == [
        "ADDED",
        "MODIFIED",
        "DELETED",
    ]
    assert [one.decode()["n"] for one in second.list_objects("things", at=middle)] == [2]
    assert second.create(A, _thing()).rv > middle + 1
    second.close()


def test_compaction_bounds_disk_and_memory(tmp_path: Path) -> None:
    """However many changes there are, the history is bounded on disk and in memory, and the current objects
    are complete."""
    kept = ObjectStore(tmp_path / "s.db", history=8)
    for name in ("a", "b"):
        kept.create(StoreKey("things", "ns", name), _thing(name))
    for index in range(500):
        kept.update(A, _thing(n=index))
    for index in range(200):
        kept.create(StoreKey("things", "ns", f"t{index}"), _thing(f"t{index}"))
        kept.delete(StoreKey("things", "ns", f"t{index}"))
    rows = kept._db.execute("SELECT count(*) FROM log").fetchone()[0]
    kept.close()
    reopened = ObjectStore(tmp_path / "s.db", history=8)

    assert rows <= 8 * 2 + 2
    assert [one.key.name for one in reopened.list_objects("things")] == ["a", "b"]
    assert reopened.require(A).decode()["n"] == 499
    reopened.close()


def test_slow_watcher_is_told_to_list_again(store: ObjectStore) -> None:
    """A watcher that does not read its events gets Expired."""
    watch = store.watch("things", since=store.revision)
    store.create(A, _thing())
    for index in range(20):
        store.update(A, _thing(n=index))
    with pytest.raises(ApiError) as refused:
        _next(watch)

    assert refused.value.code == 410


def test_watcher_is_behind_by_bytes(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events held for a watcher that does not read are bounded in bytes. When they exceed the limit, none
    is held."""
    monkeypatch.setattr("edl_workflows.local.apiserver.storage.watches.MAX_PENDING_BYTES", 1000)
    watch = store.watch("things", since=store.revision)
    store.create(A, _thing(text="x" * 600))
    held = watch._pending_bytes
    store.update(A, _thing(text="y" * 600))
    store.update(A, _thing(text="z" * 600))
    with pytest.raises(ApiError) as refused:
        _next(watch)

    assert 600 < held < 1000
    assert (refused.value.code, watch._pending_bytes, len(watch._pending)) == (410, 0, 0)


def test_history_that_is_replayed_does_not_count(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch may start with the whole history, however large. Only later changes count against its limit."""
    start = store.revision
    store.create(A, _thing(text="x" * 600))
    for index in range(5):
        store.update(A, _thing(text="y" * 600, n=index))
    monkeypatch.setattr("edl_workflows.local.apiserver.storage.watches.MAX_PENDING_BYTES", 1000)
    watch = store.watch("things", since=start)
    store.update(A, _thing(text="z" * 600))

    assert len(_next(watch)) == 7


def test_events_come_in_portions(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets many large events in several portions, completely and in order."""
    monkeypatch.setattr("edl_workflows.local.apiserver.storage.watches.BATCH_BYTES", 1000)
    watch = store.watch("things", since=store.revision)
    store.create(A, _thing(text="x" * 600))
    for index in range(4):
        store.update(A, _thing(text="y" * 600, n=index))
    portions = [_next(watch) for _ in range(4)]

    assert [len(portion) for portion in portions] == [2, 2, 1, 0]
    versions = [event.rv for portion in portions for event in portion]
    assert versions == sorted(versions)


@pytest.mark.parametrize("restarted", [False, True])
def test_history_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """Changes of large objects are dropped earlier, first those of the resource with the largest history.
    Watches from kept changes work; others get 410."""
    most = 100_000
    if not restarted:
        monkeypatch.setattr("edl_workflows.local.apiserver.storage.store.MAX_HISTORY_BYTES", most)
    kept = ObjectStore(tmp_path / "s.db")
    start = kept.create(StoreKey("others", "ns", "o"), _thing("o")).rv
    kept.create(A, _thing())
    versions = [kept.update(A, _thing(text=f"{index:010000}")).rv for index in range(40)]
    monkeypatch.setattr("edl_workflows.local.apiserver.storage.store.MAX_HISTORY_BYTES", most)
    if restarted:
        kept.close()
        kept = ObjectStore(tmp_path / "s.db")
    rows = kept._db.execute("SELECT sum(length(body)) FROM log").fetchone()[0]
    with pytest.raises(ApiError) as refused:
        kept.watch("things", since=versions[0])

    assert refused.value.code == 410
    assert rows <= most + 20_000
    assert kept._change_bytes["things"] == sum(len(one.revision.body) for one in kept._changes["things"])
    assert _next(kept.watch("things", since=kept.revision - 1))
    assert _next(kept.watch("others", since=start)) == []
    kept.close()


def test_object_is_too_large(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object larger than etcd allows can be neither created nor set by a client. Updates of the server
    itself may be larger, for example by a deletion timestamp."""
    monkeypatch.setattr("edl_workflows.local.apiserver.storage.store.MAX_OBJECT_BYTES", 1000)
    with pytest.raises(ApiError, match="etcdserver: request is too large") as refused:
        store.create(A, _thing(text="x" * 1000))
    store.create(A, _thing(text="x" * 800))
    with pytest.raises(ApiError, match="of at most 1000"):
        store.update(A, _thing(text="x" * 1000), most=1000)

    assert refused.value.code == 413
    assert store.update(A, _thing(text="x" * 1000)).rv == store.revision


def test_closed_watch_is_forgotten(store: ObjectStore) -> None:
    """A closed watch is removed from the store."""
    with store.watch("things", since=store.revision):
        pass

    assert not store._watches["things"]


def test_last_matching_state_on_leaving(store: ObjectStore) -> None:
    """An object that leaves a selection is sent in its last matching state, with the version in which it
    left."""

    def match(revision: Revision) -> bool:
        return revision.labels.get("in") == "yes"

    watch = store.watch("things", since=store.revision, match=match)
    store.create(A, _thing(labels={"in": "yes"}, n=1))
    left = store.update(A, _thing(labels={}, n=2))
    gone = _next(watch)[-1]

    assert (gone.type, gone.rv) == ("DELETED", left.rv)
    assert gone.decode()["n"] == 1
    assert gone.decode()["metadata"]["resourceVersion"] == str(left.rv)


def test_setting_is_made_once(store: ObjectStore) -> None:
    """A setting keeps its first value."""
    assert [store.setting("key", value) for value in ("one", "two")] == ["one", "one"]
