"""The verbs against the embedded API server."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    ManifestError,
    NotFoundError,
)
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, PODS, Scope, of_manifest


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_create_get_patch_delete(cluster: Cluster) -> None:
    """An object can be created, patched, read and deleted in the handle's namespace."""
    created = client.create(cluster, config_map("a", x="1"))
    patched = client.patch(cluster, CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}})

    assert cluster.namespace == created["metadata"]["namespace"]
    assert patched["data"] == {"y": "2"}
    assert patched == client.get(cluster, CONFIG_MAPS, "a")
    assert client.delete(cluster, CONFIG_MAPS, "a") is None
    assert client.find(cluster, CONFIG_MAPS, "a") is None


def test_delete_of_nothing_is_success(cluster: Cluster) -> None:
    """Deleting an object that does not exist succeeds."""
    assert client.delete(cluster, CONFIG_MAPS, "never") is None


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_leads_elsewhere_is_refused(cluster: Cluster, name: str) -> None:
    """A name such as ``..`` is rejected; otherwise the URL would be that of all objects or of the
    namespace."""
    client.create(cluster, config_map("a"))

    with pytest.raises(InvalidError, match="name"):
        client.delete(cluster, CONFIG_MAPS, name)

    assert client.find(cluster, CONFIG_MAPS, "a") is not None


@pytest.mark.parametrize("namespace", [".", ".."])
def test_a_namespace_that_leads_elsewhere_is_refused(cluster: Cluster, namespace: str) -> None:
    """A namespace such as ``..`` is rejected; otherwise a request could address other paths of the API."""
    with pytest.raises(InvalidError, match="namespace"):
        client.list_objects(cluster, Scope(CONFIG_MAPS, namespace))


def test_delete_spares_a_successor(cluster: Cluster) -> None:
    """A delete for one uid leaves another object of the same name alone."""
    first = client.create(cluster, config_map("a"))
    client.delete(cluster, CONFIG_MAPS, "a")
    second = client.create(cluster, config_map("a"))

    with pytest.raises(ConflictError):
        client.delete(cluster, CONFIG_MAPS, "a", options=DeletionOptions(uid=first["metadata"]["uid"]))

    assert second == client.get(cluster, CONFIG_MAPS, "a")


def test_delete_returns_what_is_held(cluster: Cluster) -> None:
    """If a finalizer holds a deleted object, the call returns it."""
    manifest = config_map("a")
    manifest["metadata"]["finalizers"] = ["test.example/hold"]
    client.create(cluster, manifest)

    held = client.delete(cluster, CONFIG_MAPS, "a")

    assert held is not None
    assert held["metadata"]["deletionTimestamp"]
    client.patch(cluster, CONFIG_MAPS, "a", {"metadata": {"finalizers": None}})


def test_create_twice(cluster: Cluster) -> None:
    """Creating an existing name raises an error that differs from all other conflicts."""
    client.create(cluster, config_map("a"))

    with pytest.raises(AlreadyExistsError, match='"a" already exists'):
        client.create(cluster, config_map("a"))


def test_stale_writes_are_refused(cluster: Cluster) -> None:
    """A patch or a replacement based on an old version raises ConflictError."""
    old = client.create(cluster, config_map("a"))
    client.patch(cluster, CONFIG_MAPS, "a", {"data": {"x": "1"}})
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"x": "2"}}

    with pytest.raises(ConflictError):
        client.patch(cluster, CONFIG_MAPS, "a", stale)
    with pytest.raises(ConflictError):
        client.replace(cluster, old)
    with pytest.raises(ConflictError):
        client.patch_status(cluster, PODS, _pod(cluster), {"phase": "Running"}, uid="another")


def _pod(cluster: Cluster) -> str:
    spec = {"containers": [{"name": "main", "image": "x"}]}
    client.create(cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    return "p"


def test_patch_status(cluster: Cluster) -> None:
    """A patch of the status is merged into the existing status."""
    name = _pod(cluster)
    client.patch_status(cluster, PODS, name, {"phase": "Running"})
    pod = client.patch_status(cluster, PODS, name, {"message": "hello"})

    assert (pod["status"]["phase"], pod["status"]["message"]) == ("Running", "hello")


def test_list_reads_all_pages(cluster: Cluster) -> None:
    """A list of many pages is one list, of whole objects."""
    for index in range(7):
        client.create(cluster, config_map(f"a-{index}"))

    listed = client.list_objects(cluster, Scope(CONFIG_MAPS, cluster.namespace), page_size=3)

    assert [f"a-{index}" for index in range(7)] == [o["metadata"]["name"] for o in listed.items]
    assert {("v1", "ConfigMap")} == {(o["apiVersion"], o["kind"]) for o in listed.items}


def test_unknown_field_is_refused(cluster: Cluster) -> None:
    """A misspelt field is an error that names it, not silently dropped."""
    with pytest.raises(InvalidError, match="dataa"):
        client.create(cluster, config_map("a") | {"dataa": {}})


def test_invalid_object(cluster: Cluster) -> None:
    """The server's validation comes back with each field's path."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": []}}

    with pytest.raises(ManifestError) as caught:
        client.create(cluster, pod)

    assert "spec.containers" in [problem.path for problem in caught.value.problems]


def test_missing_object(cluster: Cluster) -> None:
    """The error about a missing object names the object and its namespace."""
    with pytest.raises(NotFoundError, match=f"ConfigMap {cluster.namespace}/a"):
        client.get(cluster, CONFIG_MAPS, "a")


def test_unknown_kind() -> None:
    """A manifest of an unknown kind is rejected before any request."""
    with pytest.raises(InvalidError, match="'Banana'"):
        of_manifest({"apiVersion": "v1", "kind": "Banana"})


def test_a_conflict_is_tried_again_and_nothing_else_is() -> None:
    """A guarded change that meets a conflict is made again, and its result is returned. Any other error ends
    it."""
    said = [NotFoundError("gone"), ConflictError("changed"), "written"]

    def change() -> object:
        if isinstance(answer := said.pop(), Exception):
            raise answer
        return answer

    said.reverse()
    with pytest.raises(NotFoundError):
        client.retry_conflicts(change)
    assert client.retry_conflicts(change) == "written"
    assert not said
