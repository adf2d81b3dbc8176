"""The Python `kubernetes` client against the server: typed objects, watches, custom objects, leader
election."""

import copy
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import client, config, dynamic, informer, stream, watch

from tests.conformance.support import Api, eventually


@pytest.fixture
def kube(api: Api) -> Iterator[Any]:
    """A client of the `kubernetes` package."""
    with config.new_client_from_config(str(api.kubeconfig)) as made:
        yield made


def test_typed_objects(kube: Any, namespace: str) -> None:
    """Pods can be created, read, listed and deleted as typed objects."""
    core = client.CoreV1Api(kube)
    container = client.V1Container(name="a", image="i", env=[client.V1EnvVar(name="A", value="1")])
    spec = client.V1PodSpec(containers=[container], scheduler_name="nobody")
    core.create_namespaced_pod(namespace, client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=spec))
    status = {
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "a", "ready": True, "restartCount": 0, "image": "i", "imageID": ""}
            ],
        }
    }
    core.patch_namespaced_pod_status("p", namespace, status)
    pod = core.read_namespaced_pod("p", namespace)
    listed = core.list_namespaced_pod(
        namespace, label_selector="", field_selector="status.phase=Running"
    ).items
    core.delete_namespaced_pod("p", namespace, grace_period_seconds=0)

    assert (pod.status.phase, pod.status.container_statuses[0].ready) == ("Running", True)
    assert pod.metadata.creation_timestamp.tzinfo is not None
    assert [one.metadata.name for one in listed] == ["p"]


def test_errors(kube: Any, namespace: str) -> None:
    """A rejection raises ApiException with the status and the body."""
    with pytest.raises(client.ApiException) as caught:
        client.CoreV1Api(kube).read_namespaced_pod("nobody", namespace)

    assert (caught.value.status, caught.value.reason) == (404, "Not Found")
    assert '"reason":"NotFound"' in caught.value.body.replace('": "', '":"')


def test_watch(kube: Any, namespace: str) -> None:
    """The client's watch yields typed events and can be resumed from the version that it has reached."""
    core, watcher = client.CoreV1Api(kube), watch.Watch()
    since = core.list_namespaced_config_map(namespace).metadata.resource_version
    for name in ("a", "b"):
        core.create_namespaced_config_map(
            namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name))
        )
    seen = []
    for event in watcher.stream(
        core.list_namespaced_config_map, namespace, resource_version=since, timeout_seconds=10
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            watcher.stop()

    assert seen == [("ADDED", "a"), ("ADDED", "b")]
    assert int(watcher.resource_version) > int(since)


def test_custom_objects(kube: Any, namespace: str, widgets: str) -> None:
    """Custom objects, including their status and scale, work with the untyped API."""
    objects = client.CustomObjectsApi(kube)
    place = (widgets, "v1", namespace, "widgets")
    manifest = {
        "apiVersion": f"{widgets}/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"image": "a"},
    }
    objects.create_namespaced_custom_object(*place, manifest)
    objects.patch_namespaced_custom_object_status(*place, "w", {"status": {"phase": "Running"}})
    objects.patch_namespaced_custom_object_scale(*place, "w", {"spec": {"replicas": 3}})
    found = objects.get_namespaced_custom_object(*place, "w")
    listed = objects.list_namespaced_custom_object(*place)

    assert (found["status"], found["spec"]["replicas"]) == ({"phase": "Running"}, 3)
    assert len(listed["items"]) == 1


def test_dynamic_client(kube: Any, namespace: str) -> None:
    """The dynamic client finds resources by discovery."""
    resources = dynamic.DynamicClient(kube).resources.get(api_version="v1", kind="ConfigMap")
    made = resources.create(namespace=namespace, body={"metadata": {"name": "a"}, "data": {"k": "v"}})

    assert resources.get(namespace=namespace, name="a").metadata.uid == made.metadata.uid


def test_leases_elect_one(kube: Any, namespace: str) -> None:
    """If several candidates take an expired lease at the same time, one wins and the others get a
    Conflict."""
    leases = client.CoordinationV1Api(kube)
    spec = client.V1LeaseSpec(holder_identity="dead", lease_duration_seconds=1)
    leases.create_namespaced_lease(
        namespace, client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
    )
    seen = leases.read_namespaced_lease("leader", namespace)
    outcomes: dict[str, int] = {}

    def take(name: str) -> None:
        mine = copy.deepcopy(seen)
        mine.spec.holder_identity = name
        mine.spec.renew_time = datetime.now(UTC)
        try:
            leases.replace_namespaced_lease("leader", namespace, mine)
            outcomes[name] = 200
        except client.ApiException as error:
            outcomes[name] = error.status

    candidates = [threading.Thread(target=take, args=(f"c{index}",)) for index in range(5)]
    for candidate in candidates:
        candidate.start()
    for candidate in candidates:
        candidate.join()
    holder = leases.read_namespaced_lease("leader", namespace).spec.holder_identity

    assert sorted(outcomes.values()) == [200, 409, 409, 409, 409]
    assert outcomes[holder] == 200


def test_informer(kube: Any, namespace: str) -> None:
    """The client's informer fills its cache from a list and then follows a watch."""
    core = client.CoreV1Api(kube)
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="a")))
    shared = informer.SharedInformer(core.list_namespaced_config_map, namespace=namespace)
    shared.start()
    eventually(lambda: _cached(shared, f"{namespace}/a"), "the list is cached")
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=client.V1ObjectMeta(name="b")))
    eventually(lambda: _cached(shared, f"{namespace}/b"), "the watch is followed")
    core.delete_namespaced_config_map("a", namespace)
    eventually(lambda: not _cached(shared, f"{namespace}/a"), "the deletion is followed")
    shared.stop()


@pytest.mark.embedded_only("containers are processes without streams")
def test_a_stream_is_refused_with_advice(kube: Any, namespace: str) -> None:
    """The client's exec over WebSocket shows the server's advice."""
    core = client.CoreV1Api(kube)
    container = client.V1Container(name="a", image="i")
    spec = client.V1PodSpec(containers=[container], scheduler_name="nobody")
    core.create_namespaced_pod(namespace, client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=spec))
    # Release 36 stumbles over a refusal that has no body; what the server said stands above its own error.
    with pytest.raises((client.ApiException, AttributeError)) as caught:
        stream.stream(core.connect_get_namespaced_pod_exec, "p", namespace, command="true")

    assert "not served by the embedded cluster" in f"{caught.value} {caught.value.__context__}"


@pytest.mark.embedded_only("a real API server has server-side apply")
def test_server_side_apply_is_refused(kube: Any, namespace: str) -> None:
    """The client's server-side apply raises the server's message."""
    resources = dynamic.DynamicClient(kube).resources.get(api_version="v1", kind="ConfigMap")
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    with pytest.raises(dynamic.exceptions.DynamicApiError, match="use client-side apply"):
        resources.server_side_apply(namespace=namespace, body=body, field_manager="test")


def _cached(shared: Any, key: str) -> bool:
    return shared.cache.get_by_key(key) is not None
