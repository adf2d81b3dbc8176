"""The cluster outlives its objects: what one of them breaks is that object's, told there, and nobody
else's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.local import daemon
from edl_workflows.local.apiserver.server import open_server
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey
from edl_workflows.local.capacity import NODE_NAME
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import NODES
from tests.local_cluster import LocalCluster, cluster
from tests.unit.local.support import Pods, condition, container, eventually

pytestmark = pytest.mark.slow

VOLUME: Object = {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1GB"}}]}
REQUEST: Object = {"containers": [container("true", resources={"requests": {"cpu": "two"}})]}
LIMIT: Object = {"containers": [container("sleep 600", resources={"limits": {"memory": "1GB"}})]}
PROBE: Object = {"containers": [container("sleep 600", livenessProbe={"tcpSocket": {"port": "²"}})]}


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of the test's own."""
    with cluster(tmp_path / "cluster") as found:
        yield found


def put_past_admission(folder: Path, pods: dict[str, Object]) -> None:
    """Store pods as a version without checks would have."""
    server = open_server(folder, {})
    spec = {"restartPolicy": "Never", "containers": [container("sleep 600")]}
    for name, wrong in pods.items():
        metadata = {"name": name, "namespace": "default"}
        made = server.client.create("pods", {"metadata": metadata, "spec": spec})
        bound = {"nodeName": NODE_NAME} if name.startswith("bound") else {}
        made["spec"] = {**made["spec"], **wrong, **bound}
        server.registry.store.update(StoreKey("pods", "default", name), made)
    node = server.client.get("nodes", NODE_NAME)
    node["status"]["allocatable"] |= {"memory": "lots", "example.com/dongle": "many"}
    server.registry.store.update(StoreKey("nodes", "", NODE_NAME), node)
    server.close()


def test_pods_stored_before_checks_fail_alone(own: LocalCluster) -> None:
    """A cluster whose store has pods with unreadable quantities starts. These pods fail with the field's name
    and can be deleted, and other pods run."""
    neighbour = Pods(own.client())
    neighbour.create("neighbour", container("sleep 600"))
    neighbour.phase("neighbour", "Running")
    own.down()
    wrong = {"bound-volume": VOLUME, "bound-limit": LIMIT, "bound-request": REQUEST, "bound-probe": PROBE}
    put_past_admission(own.folder, {**wrong, "waiting": REQUEST})

    own.up()
    pods = Pods(own.client())
    failed = {name: pods.end(name)["status"] for name in ("bound-volume", "bound-limit", "bound-request")}
    refused = pods.until("waiting", lambda pod: condition(pod, "PodScheduled"))
    pods.create("after", container("true"))
    pods.phase("after", "Succeeded")
    for name in (*wrong, "waiting"):
        pods.delete(name, grace=0)

    assert {one["reason"] for one in failed.values()} == {"Unsupported"}
    assert "spec.volumes[0].emptyDir.sizeLimit" in failed["bound-volume"]["message"]
    assert "spec.containers[0].resources.limits[memory]" in failed["bound-limit"]["message"]
    assert "'two' is not a Kubernetes quantity" in condition(refused, "PodScheduled")["message"]
    assert daemon.find(own.folder) is not None


def test_a_deleted_node_comes_back(own: LocalCluster) -> None:
    """After ``kubectl delete node``, the node registers again and its pods continue, since it is this
    machine."""
    pods = Pods(own.client())
    pods.create("before", container("sleep 600"))
    pods.phase("before", "Running")
    uid = client.get(own.client(), NODES, NODE_NAME)["metadata"]["uid"]

    client.delete(own.client(), NODES, NODE_NAME)
    pods.create("after", container("true"))
    pods.phase("after", "Succeeded")
    node = eventually(lambda: client.find(own.client(), NODES, NODE_NAME), "the node")

    assert node["metadata"]["uid"] != uid
    assert pods.get("before")["status"]["phase"] == "Running"


def test_a_node_that_offers_nothing(own: LocalCluster) -> None:
    """If the node's capacity is removed, pods are Pending with a reason until it is set again."""
    pods, admin = Pods(own.client()), own.client()
    offers = client.get(admin, NODES, NODE_NAME)["status"]["allocatable"]

    client.patch(admin, NODES, NODE_NAME, {"status": {"allocatable": None}}, subresource="status")
    pods.create("waits", container("true"))
    waiting = pods.until("waits", lambda pod: condition(pod, "PodScheduled"))
    client.patch(admin, NODES, NODE_NAME, {"status": {"allocatable": offers}}, subresource="status")

    assert "Too many pods" in condition(waiting, "PodScheduled")["message"]
    pods.phase("waits", "Succeeded")
