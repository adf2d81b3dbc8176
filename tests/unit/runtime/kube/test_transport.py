"""Which requests are sent again, and which never."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster, RequestRecord
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, PODS, Scope
from tests.unit.runtime.kube.support import Answer, ScriptedApi

OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "ns"}}

Call = Callable[[Cluster], Any]


def _get(cluster: Cluster) -> Any:
    return client.get(cluster, CONFIG_MAPS, "a")


def _patch(cluster: Cluster) -> Any:
    return client.patch(cluster, CONFIG_MAPS, "a", {"data": {"x": "1"}})


def _delete(cluster: Cluster) -> Any:
    return client.delete(cluster, CONFIG_MAPS, "a")


def _create(cluster: Cluster) -> Any:
    return client.create(cluster, OBJECT)


@pytest.mark.parametrize(
    ("call", "trouble", "requests"),
    [
        pytest.param(_get, Answer(503), 2, id="get after 503"),
        pytest.param(_get, Answer(cut=True), 2, id="get after a broken connection"),
        pytest.param(_patch, Answer(500), 2, id="patch after 500"),
        pytest.param(_delete, Answer(cut=True), 2, id="delete after a broken connection"),
        pytest.param(_create, Answer(429, headers={"Retry-After": "1"}), 2, id="create after 429"),
    ],
)
def test_repeated(scripted: ScriptedApi, call: Call, trouble: Answer, requests: int) -> None:
    """A request that may be repeated is sent again, and the caller notices nothing."""
    scripted.answers = [trouble, Answer(body=OBJECT)]

    call(scripted.cluster())

    assert requests == len(scripted.requests)


@pytest.mark.parametrize(
    "trouble", [pytest.param(Answer(500), id="500"), pytest.param(Answer(cut=True), id="broken connection")]
)
def test_create_is_not_repeated(scripted: ScriptedApi, trouble: Answer) -> None:
    """A create that may have been carried out is not repeated, since its name may have been generated."""
    scripted.answers = [trouble, Answer(body=OBJECT)]

    with pytest.raises(UnavailableError):
        _create(scripted.cluster())

    assert len(scripted.requests) == 1


def test_a_connection_that_breaks_during_its_tls_handshake_is_made_again(tmp_path: Path) -> None:
    """A load balancer ends connections so while an API server restarts. The server's certificate is not the
    reason, and is not blamed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[int] = []

        def end_connections() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    connections.append(len(connection.recv(2**16)))
                    connection.close()

        threading.Thread(target=end_connections, daemon=True).start()
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": f"https://127.0.0.1:{listener.getsockname()[1]}"}}
            ],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        cluster = Cluster.from_kubeconfig(tmp_path / "config").with_policy(CallPolicy(attempts=3))
        with pytest.raises(UnavailableError) as raised:
            _get(cluster)
        listener.shutdown(socket.SHUT_RDWR)

    assert len(connections) == 3
    assert "certificate" not in str(raised.value)


def test_refusals_are_not_repeated(scripted: ScriptedApi) -> None:
    """A request that the server refuses is sent once: the server would refuse it again."""
    scripted.answers = [Answer(400, {"kind": "Status", "message": "bad"})]

    with pytest.raises(InvalidError):
        _get(scripted.cluster())

    assert len(scripted.requests) == 1


def test_gives_up(scripted: ScriptedApi) -> None:
    """After its last attempt, a call raises the last error."""
    scripted.answers = [Answer(503, {"kind": "Status", "message": "etcd is down"})]

    with pytest.raises(UnavailableError, match="etcd is down"):
        _get(scripted.cluster())

    assert len(scripted.requests) == 3


def test_no_json(scripted: ScriptedApi) -> None:
    """A response that is not JSON, such as a proxy's page, is an error that says so."""
    scripted.answers = [Answer(body=b"<html>login</html>")]

    with pytest.raises(UnavailableError, match="proxy"):
        _get(scripted.cluster())


def test_observer_sees_every_attempt(scripted: ScriptedApi) -> None:
    """Metrics count each request with its verb, resource and code."""
    scripted.answers = [Answer(503), Answer(cut=True), Answer(body={"items": []})]
    seen: list[RequestRecord] = []

    client.list_objects(scripted.cluster().observed_by(seen.append), Scope(PODS, "ns"))

    assert [(r.verb, r.plural, r.code) for r in seen] == [
        ("list", "pods", 503),
        ("list", "pods", 0),
        ("list", "pods", 200),
    ]


def test_expired_page_lists_anew(scripted: ScriptedApi) -> None:
    """A list whose continue token expires is read again in one piece."""
    page = {"metadata": {"resourceVersion": "5", "continue": "next"}, "items": [OBJECT]}
    whole = {"metadata": {"resourceVersion": "9"}, "items": [OBJECT, OBJECT]}
    scripted.answers = [Answer(body=page), Answer(410, {"kind": "Status", "code": 410}), Answer(body=whole)]

    listed = client.list_objects(scripted.cluster(), Scope(CONFIG_MAPS, "ns"))

    assert (listed.resource_version, len(listed.items)) == ("9", 2)
    assert "limit" not in scripted.requests[-1][1]
