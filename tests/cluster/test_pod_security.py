"""Pod Security `restricted` on a real cluster: the API server admits what the rules of our tests admit."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.process import BedError
from tests.cluster.installed import RESTRICTED, make_namespace
from tests.example_pods import EXAMPLES, pods_of, read_example
from tests.pod_security import for_kubernetes, violations

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def restricted(cluster: Cluster) -> Any:
    """A namespace that enforces the standard."""
    name = f"test-{uuid.uuid4().hex[:6]}"
    make_namespace(cluster, name, RESTRICTED)
    yield name
    client.delete(cluster, resources.NAMESPACES, name)


def refusal(bed: Bed, pod: dict[str, Any], namespace: str) -> str:
    """Why the API server refuses a pod; "" if it would create it. Its account and owner need not exist."""
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in ("serviceAccountName", "priorityClassName")
    }
    metadata = {"name": pod["metadata"]["name"], "labels": {"tests": "pod-security"}}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        bed.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(manifest))
    except BedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_admitted(bed: Bed, restricted: str, path: Path) -> None:
    """The pods of each example, in the form for Kubernetes, are admitted. As the example is, they are
    refused, as our rules say."""
    for pod in pods_of(read_example(for_kubernetes(path.read_text()))):
        assert refusal(bed, pod, restricted) == ""
    for pod in pods_of(read_example(path.read_text())):
        assert ("violates PodSecurity" in refusal(bed, pod, restricted)) == bool(violations(pod["spec"]))
