"""LIST+WATCH into a cache: through restarts, expired versions and refusals."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import EdlError, NotFoundError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource, RequestRecord
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, ObjectKey, Scope
from edl_workflows.runtime.kube.watch import WatchStream
from edl_workflows.testing import ApiServerProcess
from tests.unit.runtime.kube.support import Answer, ScriptedApi, eventually
from tests.unit.runtime.kube.test_client import config_map

pytestmark = pytest.mark.slow

Start = Callable[..., Informer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts informers of a namespace's ConfigMaps, and stops them at the end."""
    started: list[Informer] = []

    def begin(cluster: Cluster, listener: Callable[[ObjectChange], None] | None = None) -> Informer:
        informer = Informer(ClusterSource.of(cluster), Scope(CONFIG_MAPS, cluster.namespace))
        if listener is not None:
            informer.on_change(listener)
        informer.start()
        started.append(informer)
        assert informer.wait_synced(240)
        return informer

    yield begin
    for informer in started:
        informer.stop()


def test_follows_the_server(cluster: Cluster, start: Start) -> None:
    """Each change is reported once and in order, and the cache has it by then."""
    told: list[tuple[str, str]] = []
    client.create(cluster, config_map("before"))
    informer = start(cluster, lambda change: told.append((change.type, change.key.name)))
    client.create(cluster, config_map("a"))
    client.patch(cluster, CONFIG_MAPS, "a", {"data": {"x": "1"}})
    client.delete(cluster, CONFIG_MAPS, "a")

    eventually(lambda: len(told) >= 4)
    assert told == [("ADDED", "before"), ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert [o["metadata"]["name"] for o in informer.cache.items()] == ["before"]


def test_own_write_is_seen_at_once(cluster: Cluster, start: Start) -> None:
    """An object that was written through the informer is in its cache at once, and listeners learn of it at
    most once."""
    told: list[ObjectChange] = []
    informer = start(cluster, told.append)
    informer.put(client.create(cluster, config_map("a")))

    assert informer.cache.get(ObjectKey(cluster.namespace, "a")) is not None
    client.create(cluster, config_map("b"))
    eventually(lambda: "b" in [change.key.name for change in told])
    assert [change.key.name for change in told] in (["b"], ["a", "b"])


def test_a_refresh_does_not_need_the_watch(cluster: Cluster) -> None:
    """A refresh brings the cache up to date and reports the changes, although the watch delivers nothing."""
    told: list[tuple[str, str]] = []
    informer = Informer(ClusterSource.of(cluster), Scope(CONFIG_MAPS, cluster.namespace))
    informer.on_change(lambda change: told.append((change.type, change.key.name)))
    client.create(cluster, config_map("a"))
    informer.refresh(cluster)
    client.delete(cluster, CONFIG_MAPS, "a")
    client.create(cluster, config_map("b"))
    informer.refresh(cluster)

    assert told == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    assert [o["metadata"]["name"] for o in informer.cache.items()] == ["b"]


def test_stop_is_prompt(cluster: Cluster, start: Start) -> None:
    """Stopping ends a watch at once, even if nothing happens on it."""
    informer = start(cluster)
    began = time.monotonic()
    informer.stop()

    assert time.monotonic() - began < 1


@pytest.mark.slow
def test_survives_a_restart_of_the_server(tmp_path: Path, start: Start) -> None:
    """After the server comes back the cache catches up, by resuming and not by a second list."""
    server = ApiServerProcess(tmp_path)
    server.start()
    try:
        requests: list[RequestRecord] = []
        cluster = server.cluster()
        informer = start(cluster.observed_by(requests.append))
        server.kill()
        eventually(lambda: informer.last_error is not None)
        server.start()
        client.create(cluster, config_map("a"))

        eventually(lambda: informer.cache.get(ObjectKey("default", "a")) is not None)
        assert len([r for r in requests if r.verb == "list"]) == 1
    finally:
        server.kill()


@pytest.mark.slow
def test_expired_version_lists_anew(tmp_path: Path, start: Start) -> None:
    """If the server has forgotten the version of a watch, the informer lists again and reports the
    differences."""
    server = ApiServerProcess(tmp_path, history=3)
    server.start()
    try:
        cluster = server.cluster()
        told: list[ObjectChange] = []
        informer = start(cluster, told.append)
        server.kill()
        other = ApiServerProcess(tmp_path, history=3)  # another port: the informer can't see it yet
        other.start()
        for index in range(12):
            client.create(other.cluster(), config_map(f"a-{index}"))
        other.kill()
        server.start()

        eventually(lambda: len(informer.cache) == 12)
        assert len([change for change in told if change.type == "ADDED"]) == 12
    finally:
        server.kill()


def test_a_version_that_expires_at_once_is_no_reason_to_hammer(scripted: ScriptedApi) -> None:
    """If a server lists but rejects every watch, the informer pauses between its requests."""
    gone = Answer(code=410, body={"kind": "Status", "code": 410, "message": "too old", "reason": "Expired"})
    listed = Answer(body={"metadata": {"resourceVersion": "1"}, "items": []})
    scripted.answers = [listed, gone] * 1000
    informer = Informer(ClusterSource.of(scripted.cluster()), Scope(CONFIG_MAPS, "ns"))
    began = time.monotonic()
    informer.start()
    try:
        eventually(lambda: len(scripted.requests) >= 6)
    finally:
        informer.stop()

    assert time.monotonic() - began > 0.3


def test_missing_kind_is_reported(cluster: Cluster) -> None:
    """If the server lacks the kind, each attempt is reported, and the informer tries again."""
    errors: list[tuple[EdlError, int]] = []
    informer = Informer(ClusterSource.of(cluster), Scope(ELASTIC_JOBS, cluster.namespace))
    informer.on_error(lambda error, failures: errors.append((error, failures)))
    informer.start()
    try:
        eventually(lambda: len(errors) >= 2)
    finally:
        informer.stop()

    assert [failures for _, failures in errors[:2]] == [1, 2]
    assert isinstance(errors[0][0], NotFoundError)
    assert not informer.synced


def test_survives_a_defect_of_a_listener(cluster: Cluster, start: Start) -> None:
    """If a listener raises, the informer lists again and continues to call it."""
    calls = 0

    def listener(change: ObjectChange) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError("oops")

    informer = start(cluster, listener)
    client.create(cluster, config_map("a"))
    eventually(lambda: informer.last_error is not None or calls > 0)
    client.create(cluster, config_map("b"))

    eventually(lambda: calls >= 2 and informer.cache.get(ObjectKey(cluster.namespace, "b")) is not None)
    eventually(lambda: informer.last_error is None)


@pytest.mark.parametrize(
    "line",
    [b"<html>", b"{}", b'{"type": "NEWS", "object": {"metadata": {"resourceVersion": "1"}}}', b"[1]"],
)
def test_garbage_is_an_error(scripted: ScriptedApi, line: bytes) -> None:
    """A line that is not a watch event raises an UnavailableError that says so."""
    scripted.answers = [Answer(body=line + b"\n")]

    with pytest.raises(UnavailableError, match="no event"):
        list(WatchStream(scripted.cluster(), Scope(CONFIG_MAPS, "ns"), "1"))
