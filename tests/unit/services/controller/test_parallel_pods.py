"""A job's pods are created in parallel, but no more of them than the API server accepts."""

import threading
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.core.jobs.actions import Actions
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.events import Recorder
from edl_workflows.services.controller import apply
from edl_workflows.services.controller.apply import MOST_PARALLEL, Applier
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster

CLUSTER = Cluster(api_client=None, namespace="default", key="none")
GROUP = JobGroup("default", "big")


def pod(number: int) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": f"big-worker-{number}"}}


def make_applier() -> Applier:
    world = ObservedCluster(CLUSTER, "default", (), (), lambda _group: None, lambda *_: None)
    return Applier(CLUSTER, world, Recorder(CLUSTER, "test"), lambda: None)


def test_pods_are_created_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 31 pods, the last 16 are created at the same time: none of these requests ends before all have
    begun."""
    together = threading.Barrier(MOST_PARALLEL)
    last = {f"big-worker-{number}" for number in range(MOST_PARALLEL - 1, 2 * MOST_PARALLEL - 1)}

    def create(_cluster: Cluster, manifest: dict[str, Any], _namespace: str) -> dict[str, Any]:
        if manifest["metadata"]["name"] in last:
            together.wait(60)
        return manifest

    monkeypatch.setattr(client, "create", create)
    monkeypatch.setattr(ObservedCluster, "wrote", lambda *_: None)
    pods = tuple(pod(number) for number in range(2 * MOST_PARALLEL - 1))
    assert make_applier().create(Actions(create=pods), GROUP).made == len(pods)


def test_a_quota_refuses_one_pod_and_no_other_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pods that a quota refuses are one request, until the decision knows of the refusal."""
    requests: list[str] = []

    def refuse(_cluster: Cluster, manifest: dict[str, Any], _namespace: str) -> dict[str, Any]:
        requests.append(manifest["metadata"]["name"])
        raise ForbiddenError("exceeded quota")

    monkeypatch.setattr(client, "create", refuse)
    creations = make_applier().create(Actions(create=tuple(pod(number) for number in range(1000))), GROUP)
    assert [refusal.name for refusal in creations.refused] == requests == ["big-worker-0"]


def test_other_objects_are_created_one_after_the_other() -> None:
    """What a pod needs, such as a Service, is there before the pod: only pods are created in parallel."""
    service = {"kind": "Service", "metadata": {"name": "big"}}
    manifests = [service, pod(0), pod(1), pod(2), service, pod(3), service]
    sizes = [len(batch) for batch in apply._batches(manifests)]
    assert sizes == [1, 1, 2, 1, 1, 1]
    assert [manifest for batch in apply._batches(manifests) for manifest in batch] == manifests
