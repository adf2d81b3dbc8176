"""The agent in Argo's own agent pods: what its HTTP API answers, and what is installed."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent.run import ArgoAgent, ArgoAgentOptions
from edl_workflows.pipelines.argo.executor_plugin import (
    MAX_BODY,
    PluginOptions,
    create_app,
    plugin_manifests,
    serve_plugin,
)
from edl_workflows.pipelines.cli import main
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import free_port
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.support import Argo, body

TOKEN = {"Authorization": "Bearer secret"}


def asked(plugin: Any) -> dict[str, Any]:
    """A request as Argo's agent sends it."""
    metadata = {"name": "w", "namespace": "ns", "uid": "u"}
    return {"workflow": {"metadata": metadata}, "template": {"name": "t", "inputs": {}, "plugin": plugin}}


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    """Argo's agent."""
    port = free_port()
    with (
        serve_plugin(create_app(lambda: "secret"), port),
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


def test_our_tasks_are_taken_and_others_left(http: httpx.Client) -> None:
    """The answer has no phase, since the result is written into the task set. A repeated request gets the
    same answer."""
    for plugin, answer in (({"edl": {}}, {"node": {}}), ({"other": {}}, {}), ({"edl": 3}, {"node": {}})):
        for _again in range(2):
            reply = http.post("/api/v1/template.execute", json=asked(plugin), headers=TOKEN)
            assert (reply.status_code, reply.json()) == (200, answer)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
def test_a_request_without_the_token_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    """Other processes in the pod's network that do not have the token get 401."""
    assert http.post("/api/v1/template.execute", json=asked({"edl": {}}), headers=headers).status_code == 401


def test_a_request_that_is_none_is_refused(http: httpx.Client) -> None:
    """A malformed request gets an error that Argo shows. A 404 would switch the plugin off."""
    assert http.post("/api/v1/template.execute", json=[], headers=TOKEN).status_code == 422


def test_a_taken_port_is_said(http: httpx.Client) -> None:
    """If its port is in use, the sidecar exits with an error, since Argo's agent could not reach it."""
    port = http.base_url.port or 0
    with (
        pytest.raises(UnavailableError, match=f"can't listen on 0.0.0.0:{port}"),
        serve_plugin(create_app(lambda: "secret"), port),
    ):
        pass


def test_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    """The plugin is a ConfigMap with what Argo requires of a sidecar, and an account with the name that Argo
    looks for."""
    assert main(["argo", "executor-plugin", "--image", "edl:1", "-n", "ns"]) == 0
    found = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    assert list(found.values()) == list(plugin_manifests(PluginOptions("edl:1", "ns")))
    assert {one["metadata"]["namespace"] for one in found.values()} == {"ns"}
    sidecar = yaml.safe_load(found["ConfigMap"]["data"]["sidecar.container"])
    assert {"ports", "resources", "securityContext"} <= set(sidecar)
    assert {"requests", "limits"} == set(sidecar["resources"])
    assert found["Secret"]["metadata"]["name"] == "edl-executor-plugin.service-account-token"


def test_a_pod_that_ends_with_its_workflow_cancels_first(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """SIGTERM arrives before the agent sees the end of the workflow: it continues until it has cancelled the
    job. It serves its workflow whatever instance of Argo's controller runs it."""
    argo.start("w", instance="blue")
    argo.add("w", "n1", body("submit", manifest=elastic_job()))
    options = ArgoAgentOptions(
        namespaces=NamespaceSelection.of(cluster.namespace), workflow="w", drain_seconds=30
    )
    stop = threading.Event()
    thread = threading.Thread(target=ArgoAgent(cluster, options).run, args=(stop,), daemon=True)
    thread.start()
    eventually(lambda: "mnist" in jobs(cluster), "the job")
    stop.set()
    thread.join(0.5)
    assert thread.is_alive()
    argo.complete("w")
    thread.join(240)
    assert not thread.is_alive()
    assert jobs(cluster) == {}


def raw(http: httpx.Client, head: str) -> bytes:
    """What is answered to a head whose body never comes."""
    where = (http.base_url.host, http.base_url.port or 0)
    with socket.create_connection(where, timeout=30) as connection:
        lines = "POST /api/v1/template.execute HTTP/1.1\r\nHost: plugin\r\n"
        lines += f"Content-Type: application/json\r\n{head}"
        connection.sendall(f"{lines}\r\n\r\n".encode())
        return connection.recv(65536)


def test_a_stranger_is_refused_before_its_body_is_read(http: httpx.Client) -> None:
    """Without the token, the body of a request is not read."""
    assert raw(http, "Content-Length: 1000000000").startswith(b"HTTP/1.1 401")


def test_a_body_that_is_too_large_is_refused_unread(http: httpx.Client) -> None:
    """A request whose Content-Length is too large is rejected before its body is read, even with the right
    token."""
    head = f"Authorization: Bearer secret\r\nContent-Length: {MAX_BODY + 1}"
    assert raw(http, head).startswith(b"HTTP/1.1 413")


def test_a_server_without_its_token_says_so() -> None:
    """Until Argo's agent has written the token, no request is accepted, and the answer is not a 500."""

    def missing() -> str:
        raise UnavailableError("no token yet")

    port = free_port()
    with serve_plugin(create_app(missing), port):
        answer = httpx.post(f"http://127.0.0.1:{port}/api/v1/template.execute", json={}, headers=TOKEN)
    assert (answer.status_code, answer.json()) == (503, {"error": "no token yet"})
