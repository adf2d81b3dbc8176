"""Quantities and other numbers of built-in objects, checked when they are written."""

from typing import Any

import pytest

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey


def pod(**spec: Any) -> Object:
    """A pod with one container."""
    containers = [{"name": "main", "image": "none", "command": ["true"]}]
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": containers, **spec}}


def with_container(**fields: Any) -> Object:
    """A pod whose container has these fields."""
    return pod(containers=[{"name": "main", "image": "none", "command": ["true"], **fields}])


def with_volume(**source: Any) -> Object:
    """A pod with one volume."""
    return pod(volumes=[{"name": "v", **source}])


def divisor(text: Any, resource: str = "limits.cpu") -> Object:
    """A pod with a variable that is a divided resource."""
    reference = {"resource": resource, "divisor": text}
    return with_container(env=[{"name": "A", "valueFrom": {"resourceFieldRef": reference}}])


MAIN = "spec.containers[0]"
DIVISOR = f"{MAIN}.env[0].valueFrom.resourceFieldRef.divisor"
CLAIM = {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": "5 gigs"}}}}}
REFUSED: dict[str, tuple[Object, str]] = {
    "digits of another script": (
        with_container(resources={"limits": {"cpu": "\u0661"}}),
        f"{MAIN}.resources.limits[cpu]",
    ),
    "sizeLimit in GB": (with_volume(emptyDir={"sizeLimit": "1GB"}), "spec.volumes[0].emptyDir.sizeLimit"),
    "sizeLimit below zero": (with_volume(emptyDir={"sizeLimit": "-1"}), "spec.volumes[0].emptyDir.sizeLimit"),
    "sizeLimit an object": (with_volume(emptyDir={"sizeLimit": {}}), "spec.volumes[0].emptyDir.sizeLimit"),
    "sizeLimit a boolean": (with_volume(emptyDir={"sizeLimit": True}), "spec.volumes[0].emptyDir.sizeLimit"),
    "claim's storage": (
        with_volume(ephemeral=CLAIM),
        "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests[storage]",
    ),
    "limit in words": (
        with_container(resources={"limits": {"cpu": "two"}}), f"{MAIN}.resources.limits[cpu]",
    ),
    "request of 5,000 digits": (
        with_container(resources={"requests": {"memory": "9" * 5000}}), f"{MAIN}.resources.requests[memory]",
    ),
    "half a device": (
        with_container(resources={"limits": {"nvidia.com/gpu": "500m"}}),
        f"{MAIN}.resources.limits[nvidia.com/gpu]",
    ),
    "request above its limit": (
        with_container(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
        f"{MAIN}.resources.requests",
    ),
    "overhead": (pod(overhead={"cpu": "much"}), "spec.overhead[cpu]"),
    "divisor in GB": (divisor("1GB", "limits.memory"), DIVISOR),
    "divisor that Kubernetes does not know": (divisor("7"), DIVISOR),
    "divisor of another resource": (divisor("1Mi"), DIVISOR),
    "grace period beyond 31 bits": (
        pod(terminationGracePeriodSeconds=2**62), "spec.terminationGracePeriodSeconds",
    ),
    "deadline of no second": (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
    "deadline beyond 31 bits": (pod(activeDeadlineSeconds=2**40), "spec.activeDeadlineSeconds"),
    "probe's negative period": (
        with_container(livenessProbe={"exec": {"command": ["true"]}, "periodSeconds": -1}),
        f"{MAIN}.livenessProbe.periodSeconds",
    ),
    "probe's port": (
        with_container(livenessProbe={"tcpSocket": {"port": "²"}}), f"{MAIN}.livenessProbe.tcpSocket.port",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_a_number_that_is_none_is_refused_at_its_path(row: str, server: ApiServer) -> None:
    """A pod with an invalid number is Invalid at the field's path, and nothing is stored."""
    manifest, path = REFUSED[row]

    with pytest.raises(ApiError) as refused:
        server.client.create("pods", manifest)

    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    assert [cause["field"] for cause in refused.value.details["causes"]] == [path]
    assert server.client.find("pods", "p", "default") is None


ACCEPTED: dict[str, Object] = {
    "sizeLimit as a number": with_volume(emptyDir={"sizeLimit": 1024}),
    "sizeLimit": with_volume(emptyDir={"sizeLimit": "1Gi"}),
    "divisor as a number": divisor(1),
    "divisor of millicores": divisor("1m"),
    "divisor by default": divisor("0"),
    "divisor in Mi": divisor("1Mi", "requests.memory"),
    "whole devices": with_container(resources={"limits": {"nvidia.com/gpu": 2}}),
    "cpu as a fraction": with_container(resources={"limits": {"cpu": 0.5}}),
}


@pytest.mark.parametrize("row", ACCEPTED)
def test_quantities_as_kubernetes_takes_them(row: str, server: ApiServer) -> None:
    """Numbers and text with a suffix are accepted."""
    assert server.client.create("pods", ACCEPTED[row])["metadata"]["uid"]


@pytest.mark.parametrize("field", ["capacity", "allocatable"])
@pytest.mark.parametrize("amount", ["lots", "-1", "1.5", [], True])
def test_nonsense_in_a_nodes_capacity_is_refused(field: str, amount: Any, server: ApiServer) -> None:
    """The number of pods that a node can run must be a whole, non-negative number."""
    server.client.create("nodes", {"metadata": {"name": "n"}})

    with pytest.raises(ApiError) as refused:
        server.client.patch("nodes", "n", {"status": {field: {"pods": amount}}}, subresource="status")

    assert refused.value.code == 422
    assert [cause["field"] for cause in refused.value.details["causes"]] == [f"status.{field}[pods]"]


@pytest.mark.parametrize("target", [0, 65536, "²", "9" * 5000, "no_port", ""])
def test_a_services_target_port_is_a_port_or_a_name(target: Any, server: ApiServer) -> None:
    """A Service's targetPort is a port number or a port's name, as Kubernetes checks it."""
    spec = {"ports": [{"port": 80, "targetPort": target}], "selector": {"app": "a"}}

    with pytest.raises(ApiError) as refused:
        server.client.create("services", {"metadata": {"name": "s", "namespace": "default"}, "spec": spec})

    assert [cause["field"] for cause in refused.value.details["causes"]] == ["spec.ports[0].targetPort"]


def test_what_is_stored_already_may_get_a_status(server: ApiServer) -> None:
    """Stricter checks of later versions do not keep an old pod from getting a failed status or from being
    deleted."""
    made = server.client.create("pods", with_volume(emptyDir={"sizeLimit": "1Gi"}))
    made["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "1GB"
    server.registry.store.update(StoreKey("pods", "default", "p"), made)

    patch = {"status": {"phase": "Failed", "reason": "Unsupported"}}
    changed = server.client.patch("pods", "p", patch, "default", subresource="status")
    server.client.delete("pods", "p", "default", grace=0)

    assert changed["status"]["phase"] == "Failed"
    assert server.client.find("pods", "p", "default") is None
