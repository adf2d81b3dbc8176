"""What the tests of stages and of the Airflow provider share: an API server with our kinds, and a controller
that only pretends."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, SCALE_PLANS, Object, Scope
from edl_workflows.testing import ApiServerProcess, api_server
from tests.unit.services.controller.support import crds

IN_AIRFLOW = [
    pytest.mark.airflow,
    # What Airflow's own modules import and call warns; only ours is ours to correct.
    pytest.mark.filterwarnings("ignore:::(?!edl_workflows)"),
]
"""Marks of a module whose tests run Airflow."""

ENDS = "test/ends"
"""Annotation of a job: the phase in which it ends, a moment after it runs; without it runs until
`StandIn.end`."""
TICK = 0.05
MIGRATION = tuple(
    ScalePlanPhase(name)
    for name in (
        "Pending",
        "Checkpointing",
        "Checkpointed",
        "Migrating",
        "Restarting",
        "Verifying",
        "Succeeded",
    )
)


@contextmanager
def server_with_kinds(folder: Path) -> Iterator[ApiServerProcess]:
    """An API server with our kinds."""
    with api_server(folder) as started:
        for crd in crds():
            client.create(started.cluster(), crd)
        yield started


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """One for a folder of tests about all namespaces, or about nodes."""
    with server_with_kinds(tmp_path_factory.mktemp("api")) as started:
        yield started


@pytest.fixture(scope="session")
def server(shared_api_server: ApiServerProcess) -> ApiServerProcess:
    """The one that most folders share (`tests.conftest`)."""
    return shared_api_server


@pytest.fixture
def cluster(server: ApiServerProcess) -> Cluster:
    """A handle in a namespace of the test's own."""
    handle = server.cluster()
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}}
    return handle.in_namespace(client.create(handle, manifest)["metadata"]["name"])


@pytest.fixture
def stand_in(cluster: Cluster) -> Iterator["StandIn"]:
    """A pretending controller in the test's namespace."""
    with running(StandIn(cluster)) as controller:
        yield controller


def elastic_job(name: str | None = "mnist", ends: str = "") -> dict[str, Any]:
    """A parameter-server job; see `ENDS`."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    roles = {"ps": {"replicas": 2, "template": template}, "worker": {"replicas": 1, "template": template}}
    manifest: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"annotations": {ENDS: ends} if ends else {}},
        "spec": {"replicaSpecs": roles},
    }
    if name:
        manifest["metadata"]["name"] = name
    return manifest


@dataclass
class StandIn:
    """Sets the statuses that controller and master would, and moves on by one phase each tick.

    Attributes:
        cluster: whose default namespace it serves.
        hold: no plan gets further than this phase.
        fail: plans fail instead of succeeding, with the reason `failure`.
        idle: new jobs stay without a status.
        ends: the phase in which jobs end that don't say; "" if they go on.
        result: what the jobs' functions returned, as JSON.
    """

    cluster: Cluster
    hold: ScalePlanPhase = ScalePlanPhase.SUCCEEDED
    fail: bool = False
    failure: str = "StepTimeout"
    idle: bool = False
    ends: str = ""
    result: str = ""
    _ends: dict[str, str] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until `stop`."""
        informers = [
            Informer(ClusterSource.of(self.cluster), Scope(resource, self.cluster.namespace))
            for resource in (ELASTIC_JOBS, SCALE_PLANS)
        ]
        for informer in informers:
            informer.start()
        while not self._stopped.wait(TICK):
            for informer, act in zip(informers, (self._job, self._plan), strict=True):
                for obj in informer.cache.items():
                    with suppress(ConflictError, NotFoundError):  # it changed or went: next time
                        act(obj)
        for informer in informers:
            informer.stop()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def end(self, name: str, phase: str = "Succeeded") -> None:
        """Let a job end."""
        self._ends[name] = phase

    def _job(self, job: Object) -> None:
        status, metadata = job.get("status") or {}, job["metadata"]
        if self.idle or status.get("phase") in ("Succeeded", "Failed"):
            return
        ends = self._ends.get(metadata["name"]) or (metadata.get("annotations") or {}).get(ENDS)
        ends = ends or self.ends
        wanted: dict[str, Any] = {
            "phase": "Running",
            "reason": "",
            "message": "",
            "conditions": _ready("True"),
        }
        if job["spec"].get("suspend"):
            wanted = {"phase": "Suspended", "reason": "", "message": "", "conditions": _ready("False")}
        elif status.get("phase") == "Running" and ends:
            wanted = {"phase": ends, "reason": "TestSaysSo", "message": "the test ended it"}
            self._ends.pop(metadata["name"], None)
        wanted |= {
            "observedGeneration": metadata["generation"],
            "progress": {"step": 100, "records": 6400},
            "result": self.result,
            "checkpoint": {"uri": "/ck/100", "step": 100, "time": "2026-01-01T00:00:00Z"},
            "replicaStatuses": {"worker": {"desired": 1, "ready": 1}},
        }
        self._set(ELASTIC_JOBS, job, wanted)

    def _plan(self, plan: Object) -> None:
        status = plan.get("status") or {}
        phase = ScalePlanPhase(status.get("phase") or "Pending")
        if phase.final or MIGRATION.index(phase) >= MIGRATION.index(self.hold):
            return
        after = MIGRATION[MIGRATION.index(phase) + 1]
        wanted: dict[str, Any] = {"phase": str(after)}
        if after is ScalePlanPhase.CHECKPOINTED:
            wanted["checkpoint"] = {"uri": "/ck/120", "step": 120}
        if after is ScalePlanPhase.SUCCEEDED:
            wanted |= {"resumedStep": 121, "stallSeconds": 0.5}
            if self.fail:
                wanted = {"phase": "Failed", "reason": self.failure, "message": "rolled back"}
        self._set(SCALE_PLANS, plan, wanted)

    def _set(self, resource: Any, obj: Object, wanted: Mapping[str, Any]) -> None:
        status, metadata = obj.get("status") or {}, obj["metadata"]
        if {key: status.get(key) for key in wanted} != wanted:
            client.patch_status(
                self.cluster, resource, metadata["name"], wanted, metadata["namespace"], metadata["uid"]
            )


@contextmanager
def running(controller: StandIn) -> Iterator[StandIn]:
    """The controller in a thread while the context lasts."""
    thread = threading.Thread(target=controller.run, name="stand-in", daemon=True)
    thread.start()
    try:
        yield controller
    finally:
        controller.stop()
        thread.join()


def _ready(status: str) -> list[dict[str, str]]:
    return [{"type": "Ready", "status": status, "reason": "Test", "message": ""}]


def create_ps_pod(cluster: Cluster, job: str, node_id: int, rank: int) -> None:
    """A pod as the controller makes it for a parameter server."""
    labels = {
        names.JOB_LABEL: job,
        names.REPLICA_TYPE_LABEL: "ps",
        names.REPLICA_INDEX_LABEL: str(node_id),
        names.RANK_INDEX_LABEL: str(rank),
    }
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": names.node_name(job, "ps", node_id), "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
    }
    client.create(cluster, manifest)


def jobs(cluster: Cluster) -> dict[str, Object]:
    """The namespace's jobs by name."""
    return _by_name(cluster, ELASTIC_JOBS)


def plans(cluster: Cluster) -> dict[str, Object]:
    """The namespace's plans by name."""
    return _by_name(cluster, SCALE_PLANS)


def pods(cluster: Cluster) -> dict[str, Object]:
    """The namespace's pods by name."""
    return _by_name(cluster, PODS)


def _by_name(cluster: Cluster, resource: Any) -> dict[str, Object]:
    listed = client.list_objects(cluster, Scope(resource, cluster.namespace)).items
    return {obj["metadata"]["name"]: obj for obj in listed}


def eventually(holds: Any, what: str, seconds: float = 240.0) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(TICK)
