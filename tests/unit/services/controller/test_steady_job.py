"""What a job that trains, and needs nothing, costs the controller."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.kind import CONFIG_MAPS, SECRETS
from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, version_of
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import auto_plan, elastic_job, status_of

WRITES = 60
MASTER = names.master_pod_name("mnist", 0)


class SteadyJob:
    """A job whose pods run, under a controller of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._metrics = ControllerMetrics()
        options = ManagerOptions(
            namespaces=NamespaceSelection.of(cluster.namespace), workers=2, kinds=choose_kinds(())
        )
        self.manager = Manager(cluster, options, self._metrics, lambda: None)
        self.group = JobGroup(cluster.namespace, "mnist")
        self.manager.start()
        client.create(cluster, elastic_job())
        eventually(lambda: self._pod(MASTER) is not None)
        client.create(cluster, auto_plan("mnist", 0))
        worker = names.node_name("mnist", "worker", 0)
        eventually(lambda: self._pod(worker) is not None)
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        for pod in (MASTER, worker):
            client.patch_status(cluster, api.PODS, pod, ready)
        eventually(lambda: status_of(cluster, "mnist").get("phase") == "Running")
        eventually(lambda: status_of(cluster, "mnist")["replicaStatuses"]["worker"].get("active") == 1)
        self.settle()

    @property
    def decisions(self) -> float:
        """How many were made, of all kinds."""
        registry = self._metrics.registry
        samples = (sample for metric in registry.collect() for sample in metric.samples)
        return sum(s.value for s in samples if s.name == "edl_controller_reconcile_total")

    def settle(self, *written: Object) -> None:
        """Wait until the controller has seen what was written, and has nothing left to do."""
        for obj in written:
            eventually(partial(self._is_cached, obj))
        eventually(lambda: self.manager.idle)

    def cached(self, obj: Object) -> Object | None:
        """An object in the controller's cache."""
        return self.manager.world.find(
            obj["apiVersion"], obj["kind"], self.group, str(obj["metadata"]["name"])
        )

    def _is_cached(self, obj: Object) -> bool:
        cached = self.cached(obj)
        return cached is not None and version_of(cached) == version_of(obj)

    def _pod(self, name: str) -> Object | None:
        return client.find(self.cluster, api.PODS, name)


@pytest.fixture
def steady(cluster: Cluster) -> Iterator[SteadyJob]:
    """A job that trains."""
    job = SteadyJob(cluster)
    yield job
    job.manager.stop()


def _make_progress(step: int) -> dict[str, Any]:
    """A status as a job's master writes it."""
    time = "2026-01-01T00:00:00Z"
    progress = {"step": step, "records": 32 * step, "speed": 9.5, "metrics": {"loss": 1 / step}, "time": time}
    return {
        "progress": progress,
        "goodput": {"ratio": 0.9, "elapsedSeconds": step, "seconds": {"training": step}},
        "history": [{"time": time, "step": at} for at in range(0, step, 10)],
        "checkpoint": {"uri": f"file:///model-{step}", "step": step, "time": time, "saveSeconds": 0.1 * step},
        "parameterServers": {"changes": "Any"},
        "progressPeriodSeconds": 60 + step,  # the controller's own write, which only the master reads
    }


def test_writes_of_a_master_cost_no_decision(steady: SteadyJob, cluster: Cluster) -> None:
    """A master writes its progress 60 times and its state 60 times: the controller sees each, and decides
    nothing. What decisions read wakes it."""
    before = steady.decisions

    for step in range(1, WRITES + 1):
        job = client.patch_status(cluster, api.ELASTIC_JOBS, "mnist", _make_progress(step))
        body = {"data": {names.STATE_KEY: "x" * step}}
        state = client.patch(cluster, api.CONFIG_MAPS, names.state_config_map_name("mnist"), body)
    steady.settle(job, state)

    assert steady.decisions == before
    warned = client.patch_status(cluster, api.ELASTIC_JOBS, "mnist", {"warnings": ["a straggler"]})
    steady.settle(warned)
    assert steady.decisions > before


def test_decision_after_silent_writes_is_no_conflict(steady: SteadyJob, cluster: Cluster) -> None:
    """The cache has the newest version of each object, also of those whose changes asked for no decision, so
    that a write that is guarded by the version succeeds at once."""
    written = client.patch_status(cluster, api.ELASTIC_JOBS, "mnist", _make_progress(7))
    steady.settle(written)

    cached = steady.cached(written)

    assert cached is not None
    assert cached["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    assert cached["status"]["checkpoint"]["saveSeconds"] == written["status"]["checkpoint"]["saveSeconds"]
    assert cached["status"].keys().isdisjoint({"progress", "goodput", "history", "parameterServers"})


def test_content_of_secrets_and_states_stays_in_the_api_server(steady: SteadyJob, cluster: Cluster) -> None:
    """The controller asks for the metadata of Secrets and ConfigMaps, and gets no more."""
    for source in (SECRETS, CONFIG_MAPS):
        (informer,) = steady.manager.world._by_source[source].informers
        listed = client.list_objects(cluster, informer.scope).items

        assert listed
        assert all(obj.keys() == {"apiVersion", "kind", "metadata"} for obj in listed)
        assert {obj["kind"] for obj in listed} == {source.api.kind}
