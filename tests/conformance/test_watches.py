"""Watches: order, versions, selectors, bookmarks, expiry."""

import json
import threading
from collections.abc import Callable

from tests.conformance.support import Api, Object, config_map, refusal

MakeWidget = Callable[..., Object]


def _version(api: Api, path: str) -> str:
    return str(api.get(path)["metadata"]["resourceVersion"])


def test_from_a_version(api: Api, core: str) -> None:
    """A watch from a version shows each later change once, in order, with its type."""
    path = f"{core}/secrets"
    since = _version(api, path)
    api.post(path, {"metadata": {"name": "a"}})
    api.merge(f"{path}/a", {"metadata": {"labels": {"k": "v"}}})
    api.post(path, {"metadata": {"name": "b"}})
    api.delete(f"{path}/a")

    assert api.first(path, 4, resourceVersion=since) == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("ADDED", "b"),
        ("DELETED", "a"),
    ]


def test_versions_grow(api: Api, core: str) -> None:
    """Each event, including a deletion, has the version at which it happened."""
    path = f"{core}/secrets"
    since = _version(api, path)
    api.post(path, {"metadata": {"name": "a"}})
    api.delete(f"{path}/a")
    versions = []
    for event in api.watch(path, resourceVersion=since):
        versions.append(int(event["object"]["metadata"]["resourceVersion"]))
        if event["type"] == "DELETED":
            break

    assert int(since) < versions[0] < versions[1]


def test_resume(api: Api, core: str) -> None:
    """A watch that was interrupted continues from the last version, without losing or repeating an event."""
    path = f"{core}/secrets"
    since = _version(api, path)
    made = [api.post(path, {"metadata": {"name": name}}) for name in ("a", "b", "c")]

    assert api.first(path, 2, resourceVersion=made[0]["metadata"]["resourceVersion"]) == [
        ("ADDED", "b"),
        ("ADDED", "c"),
    ]
    assert len(api.first(path, 3, resourceVersion=since)) == 3


def test_without_a_version(api: Api, core: str) -> None:
    """A watch without a version starts with the existing objects."""
    path = f"{core}/secrets"
    api.post(path, {"metadata": {"name": "a"}})
    api.post(path, {"metadata": {"name": "b"}})

    assert sorted(api.first(path, 2)) == [("ADDED", "a"), ("ADDED", "b")]


def test_live(api: Api, core: str) -> None:
    """An open watch sees a change that comes later."""
    path = f"{core}/secrets"
    since = _version(api, path)
    later = threading.Timer(0.3, lambda: api.post(path, {"metadata": {"name": "late"}}))
    later.start()
    seen = api.first(path, 1, resourceVersion=since)
    later.join()

    assert seen == [("ADDED", "late")]


def test_entering_and_leaving_a_selection(api: Api, core: str) -> None:
    """An object that begins to match is ADDED, one that ceases to match is DELETED."""
    path = f"{core}/configmaps"
    since = _version(api, path)
    api.post(path, config_map("a"))
    api.merge(f"{path}/a", {"metadata": {"labels": {"in": "yes"}}})
    api.merge(f"{path}/a", {"data": {"k": "v"}})
    api.merge(f"{path}/a", {"metadata": {"labels": {"in": None}}})

    assert api.first(path, 3, resourceVersion=since, labelSelector="in=yes") == [
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
    ]


def test_selected_namespaces(api: Api, namespace: str) -> None:
    """Namespaces have labels. A watch with a selector shows when one gets the label, and when it loses it,
    also of the metadata alone."""
    path, key = "/api/v1/namespaces", f"team-{namespace}"
    since, selector = _version(api, path), f"{key} in (vision,speech)"
    assert api.get(path, labelSelector=key)["items"] == []
    for team in ("vision", "speech", "other", "vision", None):
        api.merge(f"{path}/{namespace}", {"metadata": {"labels": {key: team}}})

    assert api.first(path, 5, resourceVersion=since, labelSelector=selector) == [
        ("ADDED", namespace),
        ("MODIFIED", namespace),
        ("DELETED", namespace),
        ("ADDED", namespace),
        ("DELETED", namespace),
    ]
    by_name = f"kubernetes.io/metadata.name={namespace}"
    assert [found["metadata"]["name"] for found in api.get(path, labelSelector=by_name)["items"]] == [
        namespace
    ]


def test_one_object(api: Api, core: str) -> None:
    """A field selector narrows a watch to one object."""
    path = f"{core}/configmaps"
    since = _version(api, path)
    api.post(path, config_map("a"))
    api.post(path, config_map("b"))

    assert api.first(path, 1, resourceVersion=since, fieldSelector="metadata.name=b") == [("ADDED", "b")]


def test_namespaces_apart(api: Api, core: str) -> None:
    """A watch of one namespace gets no events of others."""
    path = f"{core}/secrets"
    since = _version(api, path)
    other = api.post("/api/v1/namespaces/default/secrets", {"metadata": {"generateName": "other-"}})
    api.post(path, {"metadata": {"name": "mine"}})
    api.delete(f"/api/v1/namespaces/default/secrets/{other['metadata']['name']}")

    assert api.first(path, 1, resourceVersion=since) == [("ADDED", "mine")]


def test_bookmarks(api: Api, core: str) -> None:
    """A watch that allows bookmarks gets one before it ends, at a version that can be resumed from."""
    path = f"{core}/secrets"
    since = _version(api, path)
    api.post(f"{core}/configmaps", config_map("elsewhere"))
    events = list(api.watch(path, seconds=5, resourceVersion=since, allowWatchBookmarks="true"))
    bookmark = events[-1]

    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["kind"] == "Secret"
    assert int(bookmark["object"]["metadata"]["resourceVersion"]) >= int(since)


def test_streamed_list(api: Api, core: str) -> None:
    """With sendInitialEvents a watch starts with the existing objects and marks their end with a bookmark."""
    path = f"{core}/secrets"
    api.post(path, {"metadata": {"name": "a"}})
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    events = api.watch(path, seconds=3, **query)
    first, mark = next(events), next(events)
    events.close()

    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_ends_in_time(api: Api, core: str) -> None:
    """A watch ends after timeoutSeconds."""
    path = f"{core}/secrets"

    assert list(api.watch(path, seconds=1, resourceVersion=_version(api, path))) == []


def test_custom_resources(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Custom resources are watched like built-in ones, and a write of the status is a MODIFIED event."""
    since = _version(api, wpath)
    api.post(wpath, widget())
    api.merge(f"{wpath}/w/status", {"status": {"phase": "Running"}})

    assert api.first(wpath, 2, resourceVersion=since) == [("ADDED", "w"), ("MODIFIED", "w")]


def test_bad_version(api: Api, core: str) -> None:
    """A version that is not a number is rejected."""
    error = refusal(lambda: list(api.watch(f"{core}/secrets", resourceVersion="nonsense")))

    assert error.code in (400, 500)


def test_table_events(api: Api, wpath: str, widget: MakeWidget) -> None:
    """The events of a watch in table form are rows, as kubectl get -w reads them."""
    api.post(wpath, widget())
    accept = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    parameters = {"watch": "true", "timeoutSeconds": "1"}
    line = api.http.get(wpath, params=parameters, headers=accept).text.splitlines()[0]

    assert '"kind":"Table"' in line
    assert '"ADDED"' in line


def test_metadata_events(api: Api, core: str) -> None:
    """The events of a watch of metadata have nothing of the objects' content."""
    path = f"{core}/secrets"
    since = _version(api, path)
    api.post(path, {"metadata": {"name": "a", "labels": {"k": "v"}}, "data": {"x": "eA=="}})
    api.delete(f"{path}/a")
    accept = {"accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    parameters = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": since}
    lines = api.http.get(path, params=parameters, headers=accept).text.splitlines()
    events = [json.loads(line) for line in lines]

    assert [event["type"] for event in events] == ["ADDED", "DELETED"]
    for event in events:
        assert event["object"].keys() == {"apiVersion", "kind", "metadata"}
        assert event["object"]["kind"] == "PartialObjectMetadata"
    assert events[0]["object"]["metadata"]["labels"] == {"k": "v"}
