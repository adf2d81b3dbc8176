"""What only the embedded API server promises: its state survives SIGKILL, its history is bounded.

These cases start servers of their own.
"""

import contextlib
import threading
from collections.abc import Callable

import httpx
import pytest

from tests.conformance.conftest import CRDS, Embedded, crd, define
from tests.conformance.support import Api, Object, config_map, eventually, owner, refusal

pytestmark = pytest.mark.embedded_only("starts servers of its own")

Start = Callable[..., Embedded]
MAPS = "/api/v1/namespaces/default/configmaps"


def test_killed_server_keeps_what_it_acknowledged(embedded: Start) -> None:
    """After SIGKILL during writes, every acknowledged write is there, and versions continue to grow."""
    server = embedded()
    acknowledged: list[Object] = []

    def write(api: Api) -> None:
        # The connection breaks in one of many ways; a refusal would be a failure of the server.
        with contextlib.suppress(httpx.TransportError):
            while True:
                acknowledged.append(api.post(MAPS, config_map(f"m{len(acknowledged)}")))

    writer = threading.Thread(target=write, args=(server.api(),))
    writer.start()
    eventually(lambda: len(acknowledged) > 50, "some writes are acknowledged")
    server.kill_and_restart()
    writer.join()
    api = server.api()
    stored = {item["metadata"]["name"]: item for item in api.get(MAPS)["items"]}
    next_version = int(api.post(MAPS, config_map("later"))["metadata"]["resourceVersion"])

    assert all(stored[made["metadata"]["name"]]["metadata"] == made["metadata"] for made in acknowledged)
    assert len(stored) <= len(acknowledged) + 1
    assert next_version > max(int(item["metadata"]["resourceVersion"]) for item in stored.values())


def test_watch_goes_on_after_a_restart(embedded: Start) -> None:
    """A watch that resumes from a version before the restart gets all later events, from before and after the
    restart."""
    server = embedded()
    api = server.api()
    since = api.get(MAPS)["metadata"]["resourceVersion"]
    api.post(MAPS, config_map("a", metadata={"labels": {"k": "v"}}))
    api.merge(f"{MAPS}/a", {"metadata": {"labels": {"k": None}}})
    server.kill_and_restart()
    api = server.api()
    api.post(MAPS, config_map("b"))

    assert api.first(MAPS, 3, resourceVersion=since) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]
    assert api.first(MAPS, 2, resourceVersion=since, labelSelector="k=v") == [
        ("ADDED", "a"),
        ("DELETED", "a"),
    ]


def test_definitions_and_collection_survive(embedded: Start) -> None:
    """After a restart, definitions are served, tokens are valid, and a cascading deletion that had begun is
    finished."""
    server = embedded()
    api = server.api()
    define(api, crd("kept.example.com", selectableFields=[{"jsonPath": ".spec.size"}]))
    path = "/apis/kept.example.com/v1/namespaces/default/widgets"
    since = api.get(path)["metadata"]["resourceVersion"]
    manifest = {
        "apiVersion": "kept.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"image": "a"},
    }
    made = api.post(path, manifest)
    api.post(path, {**manifest, "metadata": {"name": "small"}, "spec": {"image": "a", "size": "S"}})
    for index in range(50):
        api.post(MAPS, config_map(f"child-{index}", metadata={"ownerReferences": [owner(made)]}))
    api.delete(f"{path}/w")
    server.kill_and_restart()
    api = server.api()

    assert api.get(f"{CRDS}/widgets.kept.example.com")["status"]["conditions"]
    assert api.post(path, manifest)["spec"]["replicas"] == 1
    small = api.get(path, fieldSelector="spec.size=S")["items"]
    assert [item["metadata"]["name"] for item in small] == ["small"]
    assert api.first(path, 1, resourceVersion=since, fieldSelector="spec.size=S") == [("ADDED", "small")]
    eventually(lambda: api.get(MAPS)["items"] == [], "the children are collected")


@pytest.mark.parametrize("restart", [False, True])
def test_history_is_bounded(embedded: Start, restart: bool) -> None:
    """A watch, page or exact list from before the kept history is 410 Expired, after a restart too."""
    server = embedded("--history", "20")
    api = server.api()
    for name in ("a", "b", "c"):
        api.post(MAPS, config_map(name))
    first = api.get(MAPS, limit=1)
    version = first["metadata"]["resourceVersion"]
    for index in range(60):
        api.merge(f"{MAPS}/a", {"data": {"n": str(index)}})
    if restart:
        server.kill_and_restart()
        api = server.api()
    event = next(iter(api.watch(MAPS, resourceVersion=version)))
    page = refusal(lambda: api.get(MAPS, limit=1, **{"continue": first["metadata"]["continue"]}))
    exact = refusal(lambda: api.get(MAPS, resourceVersion=version, resourceVersionMatch="Exact"))
    now = api.get(MAPS)

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert [(error.code, error.reason) for error in (page, exact)] == [(410, "Expired")] * 2
    assert [item["metadata"]["name"] for item in now["items"]] == ["a", "b", "c"]


def test_version_of_the_future(embedded: Start) -> None:
    """A watch from a version that this store never had (it was wiped) is 410, so that clients list again."""
    event = next(iter(embedded().api().watch(MAPS, resourceVersion="999999")))

    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_stop_ends_watches(embedded: Start) -> None:
    """When the server stops, an open watch ends without an error."""
    server = embedded()
    api = server.api()
    events = api.watch(MAPS, seconds=30, allowWatchBookmarks="true")
    api.post(MAPS, config_map("a"))
    first = next(events)
    server.process.terminate()
    rest = list(events)

    assert first["type"] == "ADDED"
    assert [event["type"] for event in rest] == ["BOOKMARK"]


def test_private_files(embedded: Start) -> None:
    """State, token, key and kubeconfig are the owner's alone."""
    folder = embedded().folder
    modes = {path.name: path.stat().st_mode & 0o077 for path in folder.rglob("*") if path.is_file()}

    for name in ("state.db", "state.db-wal", "admin-token", "kubeconfig", "server.key"):
        assert modes[name] == 0, name
