"""What an informer's cache holds after any order of lists, events and our own writes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.runtime.kube.cache import ObjectCache
from edl_workflows.runtime.kube.resources import ObjectKey, version_of
from edl_workflows.runtime.kube.watch import EventType

KEY = ObjectKey("ns", "a")


def obj(version: int, uid: str = "u1", label: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a", "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": {"l": label}}}


def by_label(value: dict[str, Any]) -> list[str]:
    label = value["metadata"]["labels"]["l"]
    return [label] if label else []


def test_newest_wins() -> None:
    """A late event does not replace a newer state."""
    cache = ObjectCache()
    cache.put(obj(5))

    assert cache.put(obj(4)) is None
    assert obj(5) == cache.get(KEY)


def test_own_deletion_is_not_undone() -> None:
    """An object that was deleted does not come back by a late event, but its successor is accepted."""
    cache = ObjectCache()
    cache.put(obj(5))
    cache.remove(obj(5))

    assert cache.put(obj(6)) is None
    assert cache.get(KEY) is None
    assert cache.put(obj(9, uid="u2")) is not None


def test_late_deletion_spares_the_successor() -> None:
    """The DELETED event of an object does not remove the next object of the same name."""
    cache = ObjectCache()
    cache.put(obj(5))
    cache.put(obj(8, uid="u2"))

    assert cache.remove(obj(7)) is None
    assert obj(8, uid="u2") == cache.get(KEY)


def test_list_older_than_our_write() -> None:
    """A list that is older than our own create does not remove the created object."""
    cache = ObjectCache()
    cache.put(obj(12))

    assert cache.replace([], "10") == []
    assert obj(12) == cache.get(KEY)


def test_list_tells_differences_only() -> None:
    """A list reports objects that are new, changed or deleted since the last one, and no others."""
    cache = ObjectCache()
    cache.replace([obj(5)], "5")

    assert cache.replace([obj(5)], "9") == []
    assert [c.type for c in cache.replace([obj(10)], "11")] == [EventType.MODIFIED]
    assert [c.type for c in cache.replace([], "12")] == [EventType.DELETED]


def test_index_follows_the_object() -> None:
    """An object is found under its present values only."""
    cache = ObjectCache({"l": by_label})
    cache.put(obj(1, label="x"))
    cache.put(obj(2, label="y"))

    assert cache.by_index("l", "x") == []
    assert [obj(2, label="y")] == cache.by_index("l", "y")
    cache.remove(obj(2, label="y"))
    assert cache.by_index("l", "y") == []


def test_managed_fields_are_dropped() -> None:
    """Managed fields, which are half of an object from a real API server, are not cached."""
    cache = ObjectCache()
    given_object = obj(1)
    given_object["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    cache.put(given_object)

    assert "managedFields" not in (cache.get(KEY) or {})["metadata"]


@given(st.data())
def test_ends_at_the_servers_state(data: st.DataObject) -> None:
    """However our writes and the watch's events interleave, the cache ends with what the server has."""
    history: list[tuple[str, dict[str, Any]]] = []
    uid, exists = 0, False
    for version, create in enumerate(data.draw(st.lists(st.booleans(), min_size=1, max_size=12)), 1):
        if not exists:
            uid, exists = uid + 1, True
            history.append(("put", obj(version, f"u{uid}")))
        elif create:
            history.append(("put", obj(version, f"u{uid}")))
        else:
            exists = False
            history.append(("remove", obj(version, f"u{uid}")))
    cache = ObjectCache()
    seen = 0
    for written in range(len(history)):
        # Every change is written through by us, and the watch lags behind by any number of events.
        kind, value = history[written]
        if data.draw(st.booleans()):
            cache.write_through(value) if kind == "put" else cache.remove(value)
        while seen <= written and data.draw(st.booleans()):
            _deliver(cache, history[seen])
            seen += 1
    for event in history[seen:]:
        _deliver(cache, event)

    assert (history[-1][1] if exists else None) == cache.get(KEY)


def _deliver(cache: ObjectCache, event: tuple[str, dict[str, Any]]) -> None:
    kind, value = event
    if kind == "put":
        cache.put(value)
    else:
        cache.remove(value)


def test_a_change_that_our_answer_contained_is_reported() -> None:
    """Another client changes an object just before we write it. The response has both changes, and listeners
    still learn of the other client's change."""
    cache = ObjectCache()
    cache.put(obj(1))
    cache.write_through(obj(3, label="theirs"))

    change = cache.put(obj(2, label="theirs"))

    assert change is not None
    assert (change.object, change.old) == (obj(2, label="theirs"), obj(1))
    assert cache.get(KEY) == obj(3, label="theirs")
    assert cache.put(obj(3, label="theirs")) is None
    assert cache.put(obj(4)) is not None


def test_a_change_that_a_list_contains_is_reported() -> None:
    """After a broken watch, a list with our own write may hide an earlier change by another client. That
    change is reported."""
    cache = ObjectCache()
    cache.put(obj(1))
    cache.write_through(obj(3, label="theirs"))

    (change,) = cache.replace([obj(3, label="theirs")], "3")

    assert (change.object, change.old) == (obj(3, label="theirs"), obj(1))


@given(st.data())
def test_every_change_by_others_is_reported(data: st.DataObject) -> None:
    """However far our writes are ahead of the watch, each change by other clients is reported once and in
    order, and none of our writes that the cache already has."""
    own = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    cache, seen, ahead = ObjectCache(), 0, set()
    reported: list[int] = []

    def deliver() -> None:
        nonlocal seen
        seen += 1
        if (change := cache.put(obj(seen))) is not None:
            reported.append(version_of(change.object))
            assert version_of(change.old) < seen if change.old else seen == 1 or 1 in ahead

    for version, mine in enumerate(own, 1):
        if mine and data.draw(st.booleans()):
            cache.write_through(obj(version))
            ahead.add(version)
        while seen < version and data.draw(st.booleans()):
            deliver()
    while seen < len(own):
        deliver()

    assert reported == [version for version in range(1, len(own) + 1) if version not in ahead]
    assert cache.get(KEY) == obj(len(own))


@pytest.mark.parametrize("version", ["", "abc"])
def test_opaque_versions(version: str) -> None:
    """If resource versions are not numbers, every event counts as newer."""
    cache = ObjectCache()
    odd = obj(1)
    odd["metadata"]["resourceVersion"] = version
    cache.put(odd)

    assert cache.put(odd) is not None


def test_an_answer_after_the_end_raises_nobody() -> None:
    """The response to a deletion may arrive after the watch has reported the end. The object stays
    deleted."""
    cache = ObjectCache()
    cache.put(obj(1))
    cache.remove(obj(3))

    assert cache.put(obj(2)) is None
    assert cache.put(obj(3)) is None
    assert cache.items() == []


def test_who_leaves_a_selector_may_come_back() -> None:
    """An object that lost the label of the watch's selector and got it back is in the cache again. Late
    events are ignored."""
    cache = ObjectCache()
    cache.put(obj(1))
    cache.remove(obj(3), 3)

    assert cache.put(obj(2)) is None
    assert cache.put(obj(4)) is not None
    assert obj(4) == cache.get(KEY)


def test_who_was_missing_in_a_list_may_come_back() -> None:
    """An object that a list lacks counts as deleted up to the version of the list; only a newer version of it
    is accepted."""
    cache = ObjectCache()
    cache.put(obj(1))
    cache.replace([], "7")

    assert cache.put(obj(6)) is None
    assert cache.put(obj(8)) is not None
