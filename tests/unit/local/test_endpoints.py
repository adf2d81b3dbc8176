"""Endpoints of Services, as values and in a running cluster."""

from typing import Any

import pytest

from edl_workflows.core.kubernetes.api import SERVICES, ApiResource
from edl_workflows.local.endpoints import endpoint_subsets
from edl_workflows.local.pods import Pod, Service
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import Object
from tests.unit.local.support import Pods, container, eventually

ENDPOINTS = ApiResource("", "v1", "endpoints", "Endpoints")


def pod(name: str, *, ready: bool = True, **status: Any) -> Pod:
    """A pod behind the service, with a port called http that is 8000 and more by its name."""
    port = {"name": "http", "containerPort": 8000 + len(name)}
    spec = {"containers": [{"name": "main", "ports": [port]}], "nodeName": "n"}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"phase": "Running", "podIP": f"127.64.0.{len(name)}", "conditions": conditions, **status}
    labels = {"app": "web"}
    return Pod.model_validate({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status})


def service(port: int | str = 8001, **spec: Any) -> Service:
    """A service with one port."""
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": port}], **spec}
    return Service.model_validate({"metadata": {"name": "web"}, "spec": spec})


def shown(found: list[Object]) -> list[tuple[list[str], list[str], int]]:
    """(ready pods, others, port) of each subset."""

    def names(subset: Object, field: str) -> list[str]:
        return [one["targetRef"]["name"] for one in subset.get(field, [])]

    return [
        (names(one, "addresses"), names(one, "notReadyAddresses"), one["ports"][0]["port"]) for one in found
    ]


@pytest.mark.parametrize(
    ("made", "pods", "expected"),
    [
        pytest.param(
            service(), [pod("a"), pod("b", ready=False)], [(["a"], ["b"], 8001)], id="ready and not"
        ),
        pytest.param(
            service("http"), [pod("aa"), pod("b")], [(["b"], [], 8001), (["aa"], [], 8002)], id="named port"
        ),
        pytest.param(
            service(publishNotReadyAddresses=True),
            [pod("a", ready=False)],
            [(["a"], [], 8001)],
            id="not ready, published",
        ),
        pytest.param(
            service(), [pod("a", phase="Succeeded"), pod("b", podIP="")], [], id="finished, without address"
        ),
        pytest.param(service(selector={"app": "other"}), [pod("a")], [], id="others"),
    ],
)
def test_subsets(made: Service, pods: list[Pod], expected: list[object]) -> None:
    """The addresses of a service are grouped into subsets by readiness and ports."""
    assert shown(endpoint_subsets(made, pods)) == expected


def test_endpoints_follow_their_service(pods: Pods) -> None:
    """The endpoints of a Service name its ready pods, and are deleted with it."""
    ports = [{"port": 80, "targetPort": 8000}]
    spec = {"selector": {"app": "web"}, "ports": ports}
    client.create(
        pods.cluster, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    )
    pods.create("one", container("sleep 300"), labels={"app": "web"})

    def look() -> list[tuple[list[str], list[str], int]]:
        found = client.find(pods.cluster, ENDPOINTS, "web")
        return shown(found.get("subsets") or []) if found else [([], [], 0)]

    eventually(lambda: look() == [(["one"], [], 8000)], look)
    pods.delete("one", grace=0)
    eventually(lambda: look() == [], look)
    client.delete(pods.cluster, SERVICES, "web")
    eventually(lambda: client.find(pods.cluster, ENDPOINTS, "web") is None)
