"""A job's pods are created in parallel, but no more of them than the API server accepts."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, UnavailableError
from edl_workflows.core.jobs.actions import Actions
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
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


@pytest.fixture
def applier() -> Iterator[Applier]:
    """One that writes to no API server."""
    world = ObservedCluster(
        CLUSTER, NamespaceSelection.of("default"), (), (), lambda _group: None, lambda *_: None
    )
    made = Applier(CLUSTER, world, Recorder(CLUSTER, "test"), lambda: None)
    yield made
    made.stop()


def test_pods_are_created_at_the_same_time(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert applier.create(Actions(create=pods), GROUP).made == len(pods)


def test_all_workers_together_have_a_bound(applier: Applier, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many workers create pods of large jobs at the same time, no more threads send requests than the
    workers themselves and `MOST_PARALLEL`."""
    workers = 4
    senders: set[threading.Thread] = set()

    def create(_cluster: Cluster, manifest: dict[str, Any], _namespace: str) -> dict[str, Any]:
        senders.add(threading.current_thread())
        return manifest

    monkeypatch.setattr(client, "create", create)
    monkeypatch.setattr(ObservedCluster, "wrote", lambda *_: None)
    actions = Actions(create=tuple(pod(number) for number in range(4 * MOST_PARALLEL)))
    with ThreadPoolExecutor(workers) as pool:
        creations = list(pool.map(lambda _worker: applier.create(actions, GROUP), range(workers)))
    assert [creation.made for creation in creations] == [4 * MOST_PARALLEL] * workers
    assert len(senders) <= MOST_PARALLEL + workers


def test_a_failure_is_raised_after_the_last_request(
    applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a pod's request fails, the decision does not end before the requests at the same time have ended:
    another replica may act on the job afterwards."""
    failed, ended = threading.Event(), threading.Event()

    def create(_cluster: Cluster, manifest: dict[str, Any], _namespace: str) -> dict[str, Any]:
        if manifest["metadata"]["name"] == "big-worker-1":
            failed.set()
            raise UnavailableError("no answer")
        if manifest["metadata"]["name"] == "big-worker-2":
            failed.wait(60)
            threading.Event().wait(0.2)  # an early end would be seen
            ended.set()
        return manifest

    monkeypatch.setattr(client, "create", create)
    monkeypatch.setattr(ObservedCluster, "wrote", lambda *_: None)
    with pytest.raises(UnavailableError):
        applier.create(Actions(create=tuple(map(pod, range(3)))), GROUP)
    assert ended.is_set()


def test_a_quota_refuses_one_pod_and_no_other_is_requested(
    applier: Applier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand pods that a quota refuses are one request, until the decision knows of the refusal."""
    requests: list[str] = []

    def refuse(_cluster: Cluster, manifest: dict[str, Any], _namespace: str) -> dict[str, Any]:
        requests.append(manifest["metadata"]["name"])
        raise ForbiddenError("exceeded quota")

    monkeypatch.setattr(client, "create", refuse)
    creations = applier.create(Actions(create=tuple(pod(number) for number in range(1000))), GROUP)
    assert [refusal.name for refusal in creations.refused] == requests == ["big-worker-0"]


def test_other_objects_are_created_one_after_the_other() -> None:
    """What a pod needs, such as a Service, is there before the pod: only pods are created in parallel."""
    service = {"kind": "Service", "metadata": {"name": "big"}}
    manifests = [service, pod(0), pod(1), pod(2), service, pod(3), service]
    sizes = [len(batch) for batch in apply._batches(manifests)]
    assert sizes == [1, 1, 2, 1, 1, 1]
    assert [manifest for batch in apply._batches(manifests) for manifest in batch] == manifests
