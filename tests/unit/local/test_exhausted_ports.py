"""Host ports run out: pods that need one wait and say so, all else goes on, and what ends gives its ports
back."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.capacity import Capacity
from edl_workflows.local.cluster import ClusterOptions, RunningCluster, running_cluster
from edl_workflows.local.network import host_ports
from tests.unit.local.support import WAIT_SECONDS, container

pytestmark = pytest.mark.slow

FEW = (15_104, 15_359)
"""One block, outside of what clusters use otherwise."""
PORTS: Object = {"ports": [{"containerPort": 7000 + number} for number in range(100)]}


def make_pod(cluster: RunningCluster, name: str, **fields: Any) -> None:
    """A pod that runs until it is deleted."""
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    containers = [container("sleep 600", **fields)]
    spec = {"restartPolicy": "Never", "enableServiceLinks": False, "containers": containers}
    cluster.server.client.create("pods", {"metadata": metadata, "spec": spec})


def make_service(cluster: RunningCluster, name: str, *ports: int) -> None:
    """A Service in front of the pod of that name."""
    spec = {"selector": {"app": name}, "ports": [{"name": f"p{one}", "port": one} for one in ports]}
    cluster.server.client.create(
        "services", {"metadata": {"name": name, "namespace": "default"}, "spec": spec}
    )


async def until(cluster: RunningCluster, name: str, good: Callable[[Object], bool]) -> Object:
    """The pod's status as soon as it is good."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        status: Object = cluster.server.client.get("pods", name, "default")["status"]
        if good(status):
            return status
        assert not cluster.failed.done(), cluster.failed
        assert time.monotonic() < deadline, (name, status.get("containerStatuses"))
        await asyncio.sleep(0.05)


def runs(status: Object) -> bool:
    return bool(status["phase"] == "Running")


def lacks_ports(status: Object) -> bool:
    states = [one["state"].get("waiting", {}) for one in status.get("containerStatuses", [])]
    return any(one.get("reason") == "NoHostPort" for one in states)


async def check_exhaustion(cluster: RunningCluster) -> Object:
    """Three pods of 100 ports where there are 255, among Services that would take them all."""
    for number in range(100):
        make_service(cluster, f"idle-{number}", 80, 81, 82)
    make_pod(cluster, "one", **PORTS)
    make_pod(cluster, "two", **PORTS)
    await until(cluster, "one", runs)
    await until(cluster, "two", runs)
    make_pod(cluster, "three", **PORTS)
    waiting = await until(cluster, "three", lacks_ports)
    make_pod(cluster, "plain")
    await until(cluster, "plain", runs)
    cluster.server.client.delete("pods", "one", "default", grace=0)
    await until(cluster, "three", runs)
    return waiting


def test_ports_that_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without a free host port is Pending and says so, while other pods run. It runs when another pod
    has ended, and the cluster can be started again."""
    monkeypatch.setattr(host_ports, "FIRST", FEW[0])
    monkeypatch.setattr(host_ports, "LAST", FEW[1])
    options = ClusterOptions(tmp_path, Capacity("16", "64Gi"), grace=0.1)

    async def both() -> Object:
        async with running_cluster(options) as cluster:
            waiting = await check_exhaustion(cluster)
        async with running_cluster(options) as again:
            await until(again, "plain", lambda status: status["phase"] == "Failed")
        return waiting

    waiting = asyncio.run(both())

    assert waiting["phase"] == "Pending"
    assert "no free port in 15104-15359" in waiting["containerStatuses"][0]["state"]["waiting"]["message"]
