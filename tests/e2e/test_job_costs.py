"""What a job costs equals what its pods held, on the embedded cluster."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.usage.model import HeldResource, UsagePart, UsageStatus, read_usage
from edl_workflows.core.jobs.usage.spans import GIBIBYTE
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.pipelines.cli.root import run
from edl_workflows.runtime.kube import client
from tests import local_cluster
from tests.e2e.pod_times import PodTimes
from tests.local_cluster import LocalCluster
from tests.unit.runtime.kube.support import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

NAME = "sleepers"
SIZES = {"PS": ("200m", "64Mi"), "Worker": ("100m", "128Mi")}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """An embedded cluster with its controller."""
    folder = tmp_path_factory.mktemp("cluster")
    with local_cluster.cluster(folder, local_cluster.Settings(controller=True)) as running:
        yield running


def make_role(role: str, replicas: int, script: str) -> dict[str, Any]:
    """Replicas that run a shell script."""
    cpu, memory = SIZES[role]
    container = {
        "name": "tensorflow",
        "image": "local",
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }
    template = {"spec": {"containers": [container]}}
    return {"replicas": replicas, "restartPolicy": "ExitCode", "template": template}


@pytest.mark.smoke
def test_a_job_costs_what_its_pods_held(
    embedded: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers are killed after two seconds and replaced; the server is deleted when they are done. The
    account in the job's status equals what somebody measures who looks at the pods all the time; what the
    killed ones held is lost, and `edl cost` shows the same."""
    cluster = embedded.client()
    dies_once = f"mkdir {tmp_path}/$HOSTNAME && sleep 2 && exit 137; sleep 4"
    roles = {"PS": make_role("PS", 1, "sleep 100"), "Worker": make_role("Worker", 2, dies_once)}
    manifest = {
        "apiVersion": TF_JOBS.api_version,
        "kind": TF_JOBS.kind,
        "metadata": {"name": NAME},
        "spec": {"tfReplicaSpecs": roles},
    }

    def read_status() -> dict[str, Any]:
        status: dict[str, Any] = client.get(cluster, TF_JOBS, NAME).get("status") or {}
        return status

    def account() -> UsageStatus | None:
        return read_usage({"status": read_status()})

    with PodTimes(cluster, kind_of(TF_JOBS.kind).pods_of(NAME)) as times:
        client.create(cluster, manifest)
        eventually(lambda: read_status().get("phase") == "Succeeded", 120)
        eventually(times.all_ended, 60)
        # Whoever looks misses the pod a moment after the controller does.
        eventually(lambda: (u := account()) is not None and u.time.timestamp() >= times.last_end() - 2, 60)

    assert len(times.pods) == 5
    usage = account()
    assert usage is not None
    for resource, unit in ((HeldResource.CPU, 1.0), (HeldResource.MEMORY, GIBIBYTE)):
        counted, seen = sum(usage.held(resource).values()), times.held(str(resource)) / unit
        assert counted == pytest.approx(seen, rel=0.15), (usage, times.pods)
    lost = usage.held(HeldResource.CPU)[UsagePart.LOST]
    assert 0.2 <= lost <= 1.0
    assert usage.queue_seconds is not None
    assert run(["cost", NAME, "-o", "json", "--kubeconfig", str(embedded.kubeconfig)]) == 0
    (cost,) = json.loads(capsys.readouterr().out)
    assert cost["hours"]["cpu"]["lost"] * 3600 == pytest.approx(lost, abs=0.1)
