"""A master's watches share one connection, where the server speaks HTTP/2; elsewhere they work as well."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.errors import ExpiredError
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    PODS,
    SCALE_PLANS,
    ObjectKey,
    Scope,
)
from edl_workflows.runtime.kube.watch import StreamedEvent, WatchStream
from edl_workflows.services.master.watch_connection import sharing_connection
from edl_workflows.testing import ApiServerProcess
from tests.unit.runtime.kube.support import ScriptedApi, eventually
from tests.unit.runtime.kube.test_client import config_map
from tests.unit.services.master.http2_api import Http2Api

SCOPES = tuple(Scope(kind, "ns") for kind in (PODS, SCALE_PLANS, ELASTIC_JOBS))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Http2Api]:
    server = Http2Api(tmp_path)
    yield server
    server.close()


@pytest.fixture
def sharing(api: Http2Api) -> Iterator[Cluster]:
    with sharing_connection(api.cluster()) as cluster:
        yield cluster


class Watching:
    """A watch that a thread reads, and what it has read."""

    def __init__(self, cluster: Cluster, scope: Scope) -> None:
        self.events: list[StreamedEvent] = []
        self.error: EdlError | None = None
        self.scope = scope
        self._stream = WatchStream(cluster, scope, "1")
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self._stream.close()
        self._thread.join()

    def _read(self) -> None:
        try:
            self.events.extend(self._stream)
        except EdlError as error:
            self.error = error


@pytest.fixture
def watches(api: Http2Api, sharing: Cluster) -> Iterator[list[Watching]]:
    """The three watches of a master, open."""
    begun = [Watching(sharing, scope) for scope in SCOPES]
    eventually(lambda: len(api.tokens) == len(SCOPES))
    yield begun
    for watch in begun:
        watch.close()


def _event(version: str) -> dict[str, Any]:
    return {"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": version}}}


def test_watches_are_streams_of_one_connection(api: Http2Api, watches: list[Watching]) -> None:
    """All watches have one connection and send the account's token, and the event of one is read while the
    others are silent."""
    assert len(api.connections) == 1
    assert api.tokens == ["Bearer secret"] * 3
    for number in range(20):
        watch = watches[number % 3]
        before = len(watch.events)
        api.send(watch.scope.path, _event(str(number)))
        eventually(lambda watch=watch, before=before: len(watch.events) == before + 1)  # type: ignore[misc]

    versions = [[event.resource_version for event in watch.events] for watch in watches]
    assert versions == [[str(number) for number in range(first, 20, 3)] for first in range(3)]


def test_a_closed_watch_leaves_the_others_open(api: Http2Api, watches: list[Watching]) -> None:
    """Closing a watch from another thread ends it at once, and the others go on."""
    watches[0].close()
    assert watches[0].error is None
    api.send(watches[1].scope.path, _event("2"))

    eventually(lambda: len(watches[1].events) == 1)
    assert not watches[2].ended


def test_a_server_that_sends_its_clients_away_is_asked_anew(
    api: Http2Api, sharing: Cluster, watches: list[Watching]
) -> None:
    """When the server ends the connection, every watch says that it is unavailable, as the informers need to
    continue, and the next watch has a new connection."""
    api.go_away()
    eventually(lambda: all(watch.ended for watch in watches))
    assert all(isinstance(watch.error, UnavailableError) for watch in watches)

    again = Watching(sharing, SCOPES[0])
    eventually(lambda: len(api.tokens) == 4)
    api.send(SCOPES[0].path, _event("3"))
    eventually(lambda: [event.resource_version for event in again.events] == ["3"])
    again.close()
    assert len(api.connections) == 2


@pytest.mark.parametrize(("code", "expected"), [(403, ForbiddenError), (410, ExpiredError)])
def test_a_refusal_is_an_error_of_the_watch(
    api: Http2Api, sharing: Cluster, code: int, expected: type[EdlError]
) -> None:
    """A watch that the server refuses raises the error of its status, so that a version that has expired is
    listed anew."""
    api.refusal = {"kind": "Status", "code": code, "message": "because"}

    with pytest.raises(expected, match="because"):
        list(WatchStream(sharing, SCOPES[0], "1"))


def test_an_unreachable_server_is_unavailable(api: Http2Api, sharing: Cluster) -> None:
    """A server that is gone is unavailable, and not a defect."""
    api.close()

    with pytest.raises(UnavailableError, match="check the connection to the API server"):
        list(WatchStream(sharing, SCOPES[0], "1"))


def test_other_requests_need_one_connection(api: Http2Api, sharing: Cluster) -> None:
    """Requests from several threads wait for each other."""
    kept = sharing.api_client.rest_client.pool_manager.connection_pool_kw

    assert (kept["maxsize"], kept["block"]) == (1, True)


def test_where_a_proxy_leads_to_the_server_nothing_changes() -> None:
    """Without TLS, or behind a proxy, each watch has a connection of its own as before."""
    plain = ScriptedApi()
    cluster = plain.cluster()
    with sharing_connection(cluster) as unchanged:
        assert unchanged is cluster
    plain.close()


@pytest.mark.slow
def test_a_server_without_http2_serves_the_watches_too(tmp_path: Path) -> None:
    """Informers follow the embedded API server, which speaks HTTP/1.1, also across its restart."""
    server = ApiServerProcess(tmp_path)
    server.start()
    try:
        with sharing_connection(server.cluster()) as cluster:
            informers = [
                Informer(ClusterSource.of(cluster), Scope(kind, "default")) for kind in (CONFIG_MAPS, PODS)
            ]
            for informer in informers:
                informer.start()
            try:
                assert all(informer.wait_synced(240) for informer in informers)
                client.create(cluster, config_map("a"), "default")
                eventually(lambda: informers[0].cache.get(ObjectKey("default", "a")) is not None)
                server.kill()
                server.start()
                client.create(cluster, config_map("b"), "default")
                eventually(lambda: informers[0].cache.get(ObjectKey("default", "b")) is not None)
            finally:
                for informer in informers:
                    informer.stop()
    finally:
        server.kill()
