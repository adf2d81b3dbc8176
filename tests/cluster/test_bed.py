"""What the tests may rely on of the cluster that they run on."""

import json
from pathlib import Path

from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import NAMESPACES, PODS
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"restartPolicy": "Never"},
}


def test_pod_runs_the_package(bed: Bed, cluster: Cluster, namespace: str, shared_folder: Path) -> None:
    """A pod runs this checkout with the bed's interpreter and writes to a folder that the test reads."""
    program = (
        "import edl_workflows, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(edl_workflows.__version__)"
    )
    container = {
        "name": "main",
        "image": bed.image,
        "imagePullPolicy": "Never",
        "command": [bed.python, "-c", program, str(shared_folder / "version")],
        "volumeMounts": [{"name": "data", "mountPath": str(shared_folder)}],
    }
    volume = {"name": "data", "hostPath": {"path": str(shared_folder)}}
    spec = {**POD["spec"], "containers": [container], "volumes": [volume]}  # type: ignore[dict-item]
    client.create(cluster, {**POD, "spec": spec}, namespace)

    def phase() -> str:
        return str(client.get(cluster, PODS, "p", namespace)["status"].get("phase"))

    until(lambda: phase() in ("Succeeded", "Failed"), "the pod ends")

    from edl_workflows import __version__

    assert (phase(), (shared_folder / "version").read_text()) == ("Succeeded", __version__)


def test_audit_log_names_each_request(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """A request that was answered stands in the audit log, with verb, resource, user and user agent."""

    def entries() -> list[dict[str, object]]:
        lines = bed.audit_log.read_text().splitlines()
        return [json.loads(line) for line in lines if f'"/api/v1/namespaces/{namespace}"' in line]

    client.get(cluster, NAMESPACES, namespace)
    until(lambda: any(one["verb"] == "get" for one in entries()), "the request is logged")
