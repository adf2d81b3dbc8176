"""A master's own ScalePlans outside of its state: both adapters make them alike, and a killed master makes
each once.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from edl_workflows.core.exceptions import AlreadyExistsError, NotFoundError
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlan, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install.crds import crd_of_kind
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master.effects import MasterBackend
from edl_workflows.services.master.kubernetes import KubernetesBackend, read_job
from edl_workflows.services.master.standalone import StandaloneBackend, parse_nodes
from edl_workflows.services.master.state.settings import JobSettings
from tests import local_cluster

JOB = "grower"
NAME = names.own_plan_name(JOB, 1)
SPEC = ScalePlanSpec(
    owner_job=JOB,
    replica_resource_specs={"worker": ReplicaResourceSpec(replicas=3)},
    reason="worker: 1 → 3 nodes",
)
TOKEN = "token-of-the-test"
DEADLINE = 240.0


class World(Protocol):
    """An adapter, and what of it a test must see."""

    outside: MasterBackend

    def find(self, name: str) -> dict[str, Any]:
        """A plan's manifest."""


class StandaloneWorld:
    """Without a cluster."""

    def __init__(self, folder: Path) -> None:
        self.adapter = StandaloneBackend(
            folder / "plans.json", JobSettings(JOB, "default", parse_nodes("ps=1,worker=1"))
        )
        self.outside: MasterBackend = self.adapter

    def find(self, name: str) -> dict[str, Any]:
        return self.adapter.find(name)


class ClusterWorld:
    """A Kubernetes API with the job in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.outside: MasterBackend = KubernetesBackend(cluster, read_job(cluster, JOB))

    def find(self, name: str) -> dict[str, Any]:
        return client.get(self.cluster, resources.SCALE_PLANS, name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server that knows our kinds and the job, without a controller."""
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster")) as running:
        handle = running.client()
        for kind in KINDS:
            with contextlib.suppress(AlreadyExistsError):
                client.create(handle, crd_of_kind(kind))
        template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
        roles = {role: {"replicas": 1, "template": template} for role in ("ps", "worker")}
        job = {"apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": JOB}}
        _eventually(lambda: _created(handle, {**job, "spec": {"replicaSpecs": roles}}))
        yield handle


@pytest.fixture(params=["standalone", "cluster"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each adapter."""
    if request.param == "standalone":
        return StandaloneWorld(tmp_path)
    return ClusterWorld(request.getfixturevalue("cluster"))


def _created(cluster: Cluster, manifest: dict[str, Any]) -> bool:
    try:
        client.create(cluster, manifest)
    except NotFoundError:
        return False  # the definition is not served yet
    return True


def _eventually(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_plan_is_made_once(world: World) -> None:
    """The master creates one manual ScalePlan with the reason. A repetition finds it."""
    for _ in range(2):
        world.outside.make_plan(NAME, SPEC)
    made = ScalePlan.parse(world.find(NAME))
    assert made.job == JOB
    assert not made.auto
    assert made.metadata.labels[names.JOB_LABEL] == JOB
    assert made.metadata.labels[names.SCALE_TYPE_LABEL] == names.SCALE_MANUAL
    assert made.spec == SPEC


def test_somebody_elses_plan_of_the_name_is_refused(cluster: Cluster) -> None:
    """A plan of the same name that the master did not make is not taken for its own."""
    name = names.own_plan_name(JOB, 99)
    foreign = {"apiVersion": names.API_VERSION, "kind": "ScalePlan", "metadata": {"name": name}}
    client.create(cluster, {**foreign, "spec": {"ownerJob": JOB}})
    with pytest.raises(AlreadyExistsError):
        ClusterWorld(cluster).outside.make_plan(name, SPEC)


def _shown(**fields: Any) -> dict[str, Any]:
    return {"autoscaling": AutoscalingStatus.model_validate(fields).to_dict()}


def test_what_is_shown_replaces_what_was_shown(cluster: Cluster) -> None:
    """In the job's status, a new plan replaces all roles and reasons of the old one, even those that an
    earlier master wrote. In manual mode the status shows no plan."""
    three = {"worker": {"replicas": 3}, "ps": {"replicas": 2}}
    first = _shown(stage="one", replica_resource_specs=three, reasons={"worker": "a", "ps": "b"})
    second = _shown(stage="two", replica_resource_specs={"ps": {"replicas": 2}}, reasons={"ps": "b"})

    def shows(outside: MasterBackend, status: dict[str, Any]) -> object:
        outside.report_job(status)
        return read_job(cluster, JOB).status.autoscaling

    one = ClusterWorld(cluster).outside
    assert shows(one, first) == AutoscalingStatus.model_validate(first["autoscaling"])
    assert shows(one, second) == AutoscalingStatus.model_validate(second["autoscaling"])
    assert shows(one, first) == AutoscalingStatus.model_validate(first["autoscaling"])
    other = ClusterWorld(cluster).outside
    assert shows(other, second) == AutoscalingStatus.model_validate(second["autoscaling"])
    assert shows(other, {"autoscaling": None}) is None


MASTER = """
import os, signal, sys
from pathlib import Path
from edl_workflows.core.jobs.elastic_job.model import OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.services.master import server, standalone
from edl_workflows.services.master.state.settings import AutoscalingSettings, JobSettings, RoleSettings
from edl_workflows.services.master.state.settings import Timeouts

folder, port, when = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
make = standalone.StandaloneBackend.make_plan

def die(self, name, spec):
    if when == "after":
        make(self, name, spec)
    os.kill(os.getpid(), signal.SIGKILL)

if when != "never":
    standalone.StandaloneBackend.make_plan = die
size = NodeResource(cpu="4", memory="4Gi")
roles = {"ps": RoleSettings(1, resource=size), "worker": RoleSettings(1, resource=size)}
settings = JobSettings(
    "grower", "default", roles, limits={"cpu": 40.0, "memory": 2.0**36}, timeouts=Timeouts(autoscale=4.0),
    optimizing=AutoscalingSettings(OptimizeMode.SINGLE_JOB, allowed=True),
)
address = server.ListenAddress("127.0.0.1", port)
sys.exit(server.run_standalone(settings, folder, "token-of-the-test", address))
"""


class FakeNodes(threading.Thread):
    """Nodes that register when the master wants them, use a third of their cores, and say that they train."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=240, trust_env=False
        )
        self.step = 0

    def run(self) -> None:
        while not self.ended.wait(0.1):
            with contextlib.suppress(httpx.HTTPError):
                self._round()

    def _round(self) -> None:
        status = self.http.get("/v1/status").raise_for_status().json()
        active = (status["directive"] or {}).get("active")
        self.step += 1
        for about in status["nodes"]:
            node = {"type": about["type"], "id": about["id"]}
            if not about["registered"]:
                self.http.post("/v1/nodes", json={"node": node, "rank": about["rank"], "incarnation": "a"})
            used = {"cpu": 1.2, "memory": 500.0}
            self.http.post("/v1/nodes/heartbeat", json={"node": node, "incarnation": "a", "usage": used})
            for cluster in filter(None, (active, status["directive"].get("next"))):
                report = {"node": node, "version": cluster["version"], "state": "ready"}
                self.http.post("/v1/processes", json=report)
            if active and about["type"] == "worker":
                now = time.time()
                report = {"node": node, "version": active["version"], "step": self.step, "time": now}
                self.http.post("/v1/steps", json={**report, "first_step_time": now - 1})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_master_killed_around_its_plan_makes_it_once(when: str, tmp_path: Path) -> None:
    """The master is killed with SIGKILL after the decision is stored, before or after its ScalePlan is
    created. The next master finishes it, and the workers are added once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def start(when: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", MASTER, str(tmp_path), str(port), when]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    nodes = FakeNodes(f"http://127.0.0.1:{port}")
    nodes.start()
    first = start(when)
    second = None
    try:
        assert first.wait(DEADLINE) == -9
        stored = json.loads((tmp_path / "state.json").read_text())["autoscaling"]
        assert stored["open"]["number"] == 1
        assert (NAME in _plans(tmp_path)) is (when == "after")
        second = start("never")
        _eventually(lambda: _phase(tmp_path) == "Succeeded", "the plan is carried out")
        state = json.loads((tmp_path / "state.json").read_text())
        assert state["counts"]["worker"] == 3
        assert _plans(tmp_path)[NAME]["spec"]["reason"]
    finally:
        nodes.ended.set()
        nodes.join(240)
        nodes.http.close()
        for process in filter(None, (first, second)):
            process.kill()
            process.wait(240)


def _plans(folder: Path) -> dict[str, Any]:
    path = folder / "scaleplans.json"
    plans: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return plans


def _phase(folder: Path) -> str:
    return str(_plans(folder).get(NAME, {}).get("status", {}).get("phase", ""))
