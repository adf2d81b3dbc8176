"""An operator in Go, built with controller-runtime's manager and client-go's defaults (protobuf, leader
election)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes.api import CONFIG_MAPS, EVENTS, LEASES, PODS, ROLE_BINDINGS, ROLES
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from tests.clients.environments import go_program
from tests.local_cluster import LocalCluster
from tests.unit.local.support import eventually

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="go is not on PATH")


@contextmanager
def operator(local: LocalCluster, namespace: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The operator, running; what it says is in `log`."""
    program = go_program("operator")
    settings = os.environ | {"KUBECONFIG": str(local.kubeconfig), "NAMESPACE": namespace}
    with log.open("wb") as file:
        process = subprocess.Popen([program], env=settings, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=60)


def holder(handle: Cluster) -> str:
    """Who leads."""
    lease = client.find(handle, LEASES, "operator")
    return str(lease["spec"].get("holderIdentity") or "") if lease else ""


def ask(handle: Cluster, name: str, script: str) -> None:
    """Have the operator run a script in a pod."""
    metadata = {"name": name, "labels": {"run": script}}
    client.create(handle, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})


def told(handle: Cluster, name: str) -> str:
    """The phase that the operator noted."""
    return str((client.get(handle, CONFIG_MAPS, name).get("data") or {}).get("phase", ""))


def test_a_manager_leads_and_makes_pods(local: LocalCluster, handle: Cluster, tmp_path: Path) -> None:
    """The manager is elected, makes built-in objects by protobuf, follows its pod and records events."""
    with operator(local, handle.namespace, tmp_path / "log") as process:
        eventually(lambda: holder(handle), (tmp_path / "log").read_text)
        ask(handle, "one", "true")
        eventually(lambda: told(handle, "one") == "Succeeded", (tmp_path / "log").read_text)
        spec = client.get(handle, PODS, "one")["spec"]
        events = client.list_objects(handle, Scope(EVENTS, handle.namespace)).items
        assert process.poll() is None
    container = spec["containers"][0]

    assert (spec["terminationGracePeriodSeconds"], spec["automountServiceAccountToken"]) == (0, False)
    assert spec["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    assert container["env"][0] == {"name": "GREETING", "value": "hello"}
    assert container["resources"] == {"requests": {"cpu": "100m"}}
    assert container["startupProbe"]["timeoutSeconds"] == 1
    assert client.get(handle, ROLES, "one")["rules"][0]["verbs"] == ["get"]
    assert client.get(handle, ROLE_BINDINGS, "one")["subjects"][0]["name"] == "default"
    assert {"Created", "LeaderElection"} <= {reason(event) for event in events}


def reason(event: Object) -> str:
    return str(event["reason"])


def test_another_manager_takes_over(local: LocalCluster, handle: Cluster, tmp_path: Path) -> None:
    """When the leading manager is killed, the second one leads once the lease has expired, and continues the
    work."""
    with operator(local, handle.namespace, tmp_path / "first") as first:
        eventually(lambda: holder(handle), (tmp_path / "first").read_text)
        before = holder(handle)
        with operator(local, handle.namespace, tmp_path / "second"):
            first.kill()
            eventually(lambda: holder(handle) not in ("", before), (tmp_path / "second").read_text)
            ask(handle, "two", "true")
            eventually(lambda: told(handle, "two") == "Succeeded", (tmp_path / "second").read_text)
