"""The monitor against the embedded API server, with a store in memory."""

import re
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ELASTIC_JOBS, NODES, PODS, SCALE_PLANS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.brain.monitor import NODE_METRICS, ClusterMonitor, MonitorOptions, diff_rows
from edl_workflows.services.brain.observations import (
    ChangeObservation,
    ClusterObservation,
    JobObservation,
    RoleObservation,
)
from edl_workflows.services.brain.server import BrainOptions, BrainServer
from edl_workflows.testing import ApiServerProcess
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import crds, elastic_job

PERIOD = 0.05


@dataclass
class Memory:
    """A store that forgets at the end of the test.

    Attributes:
        away: whether each call fails.
        refused: calls that failed.
        writes: rows of jobs that were written, repeated ones included.
    """

    jobs: dict[str, JobObservation] = field(default_factory=dict)
    plans: dict[str, ChangeObservation] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    samples: list[ClusterObservation] = field(default_factory=list)
    away: bool = False
    refused: int = 0
    writes: int = 0

    def open_jobs(self, kind: str, namespace: str) -> Collection[str]:
        self._check()
        found = (job for job in self.jobs.values() if job.kind == kind and job.namespace == namespace)
        return [job.uid for job in found if job.uid not in self.gone]

    def open_plans(self, namespace: str) -> Collection[str]:
        self._check()
        there = (plan for plan in self.plans.values() if plan.namespace == namespace)
        return [plan.uid for plan in there if plan.uid not in self.gone]

    def record_jobs(self, jobs: Collection[JobObservation], gone: Collection[str], now: float) -> None:
        self._check()
        self.writes += len(jobs)
        self.jobs |= {job.uid: job for job in jobs}
        self.gone |= set(gone)

    def record_plans(self, plans: Collection[ChangeObservation], gone: Collection[str], now: float) -> None:
        self._check()
        self.plans |= {plan.uid: plan for plan in plans}
        self.gone |= set(gone)

    def record_cluster(self, sample: ClusterObservation) -> None:
        self._check()
        self.samples.append(sample)

    def _check(self) -> None:
        if self.away:
            self.refused += 1
            raise UnavailableError("the store is away")

    @property
    def newest(self) -> ClusterObservation:
        """The newest sample; an empty one before the first."""
        return self.samples[-1] if self.samples else ClusterObservation(0)

    def job(self, name: str) -> JobObservation | None:
        """The job of this name that is not gone."""
        return next(
            (job for job in self.jobs.values() if job.name == name and job.uid not in self.gone), None
        )

    def phase(self, name: str) -> str:
        """Its phase; "" without it."""
        job = self.job(name)
        return job.phase if job else ""


Start = Callable[[Memory], ClusterMonitor]


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Start]:
    """Starts monitors for the test's namespace and stops them at its end."""
    running: list[ClusterMonitor] = []

    def make(store: Memory) -> ClusterMonitor:
        running.append(ClusterMonitor(cluster, store, MonitorOptions(cluster.namespace, PERIOD)))
        running[-1].start()
        return running[-1]

    yield make
    for monitor in running:
        monitor.stop()


def plan(name: str = "grow") -> dict[str, Any]:
    """A plan with a reason."""
    spec = {"ownerJob": "mnist", "replicaResourceSpecs": {"worker": {"replicas": 3}}, "reason": "more pay"}
    return {"apiVersion": names.API_VERSION, "kind": "ScalePlan", "metadata": {"name": name}, "spec": spec}


def pod(name: str, job: str) -> dict[str, Any]:
    """A pod of a job with two cores, bound to a node."""
    container = {"name": "main", "image": "train:1", "resources": {"requests": {"cpu": "2"}}}
    metadata = {"name": name, "labels": {names.JOB_LABEL: job}}
    spec = {"containers": [container], "nodeName": "n1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_a_jobs_life(cluster: Cluster, start: Start) -> None:
    """A job is recorded when it appears, changes, ends, and is deleted."""
    store = Memory()
    start(store)

    client.create(cluster, elastic_job())
    eventually(lambda: store.phase("mnist") == "Pending")
    status = {
        "phase": "Running",
        "progress": {"step": 7, "speed": 1.5},
        "replicaStatuses": {"worker": {"desired": 1, "ready": 1}},
    }
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)
    eventually(lambda: store.phase("mnist") == "Running")
    job = store.job("mnist")
    assert job is not None
    assert (7, 1.5, {"worker": RoleObservation(1, 1)}) == (job.step, job.speed, job.replicas)
    ended = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", ended)
    eventually(lambda: store.phase("mnist") == "Succeeded")
    client.delete(cluster, ELASTIC_JOBS, "mnist")

    eventually(lambda: job.uid in store.gone)
    assert store.jobs[job.uid].finished == 1767225600.0


def test_what_a_jobs_pods_hold(cluster: Cluster, start: Start) -> None:
    """A job's row has the requests of its pods, and samples of the cluster include them."""
    store = Memory()
    client.create(cluster, elastic_job())
    start(store)
    client.create(cluster, pod("mnist-0", "mnist"))

    eventually(lambda: (store.job("mnist") or JobObservation("", "", "", "", "")).requests.get("cpu") == 2.0)
    eventually(lambda: store.newest.requested.get("cpu") == 2.0)
    client.patch_status(cluster, PODS, "mnist-0", {"phase": "Running"})
    eventually(lambda: store.newest.pods_running == 1)
    client.patch_status(cluster, PODS, "mnist-0", {"phase": "Succeeded"})
    eventually(lambda: not store.newest.requested)


def test_nodes_are_sampled(cluster: Cluster, start: Start) -> None:
    """The resources of nodes are recorded. Without a metrics server their usage is not."""
    store = Memory()
    start(store)
    name = f"node-{cluster.namespace}"
    client.create(cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    try:
        eventually(lambda: store.newest.nodes == 1)
        ready = [{"type": "Ready", "status": "True"}]
        client.patch_status(cluster, NODES, name, {"allocatable": {"cpu": "6"}, "conditions": ready})
        eventually(lambda: store.newest.allocatable == {"cpu": 6.0})
        assert not store.newest.used
    finally:
        client.delete(cluster, NODES, name)


def test_plans_are_told(cluster: Cluster, start: Start) -> None:
    """The monitor stores plans with reason and phase, and marks deleted ones."""
    store = Memory()
    start(store)
    made = client.create(cluster, plan())
    uid = made["metadata"]["uid"]

    eventually(lambda: uid in store.plans)
    assert (store.plans[uid].reason, store.plans[uid].changes) == ("more pay", ("worker: 3 replicas",))
    client.patch_status(cluster, SCALE_PLANS, "grow", {"phase": "Succeeded"})
    eventually(lambda: store.plans[uid].phase == "Succeeded")
    client.delete(cluster, SCALE_PLANS, "grow")
    eventually(lambda: uid in store.gone)


def test_what_does_not_change_is_written_once(cluster: Cluster, start: Start) -> None:
    """Cycles without changes write only samples."""
    store = Memory()
    client.create(cluster, elastic_job())
    start(store)
    eventually(lambda: len(store.samples) > 5)

    assert store.writes == 1


def test_a_new_process_goes_on(cluster: Cluster, start: Start) -> None:
    """A new monitor marks what was deleted while none ran. A new job of the same name is another job."""
    store = Memory()
    client.create(cluster, elastic_job("goes"))
    client.create(cluster, elastic_job("again"))
    client.create(cluster, plan())
    first = start(store)
    eventually(lambda: len(store.jobs) == 2 and len(store.plans) == 1)
    first.stop()
    old = dict(store.jobs)
    for name in ("goes", "again"):
        client.delete(cluster, ELASTIC_JOBS, name)
    client.delete(cluster, SCALE_PLANS, "grow")
    client.create(cluster, elastic_job("again"))

    start(store)

    eventually(lambda: store.gone == {*old, *store.plans})
    eventually(lambda: store.phase("again") == "Pending")


def test_a_store_that_is_away(cluster: Cluster, start: Start) -> None:
    """While the store is unavailable, changes and deletions are kept and written when it is back."""
    store = Memory()
    client.create(cluster, elastic_job("goes"))
    monitor = start(store)
    eventually(lambda: store.phase("goes") == "Pending")
    store.away = True
    client.delete(cluster, ELASTIC_JOBS, "goes")
    client.create(cluster, elastic_job("comes"))
    eventually(lambda: store.refused > 3)
    store.away = False

    eventually(lambda: store.phase("comes") == "Pending" and store.job("goes") is None)
    assert monitor.problems() == []


def test_it_ends(cluster: Cluster, start: Start) -> None:
    """After `stop` no thread of the monitor runs, and nothing is written."""
    store = Memory()
    monitor = start(store)
    eventually(lambda: bool(store.samples))
    monitor.stop()
    written = len(store.samples)

    assert not [one.name for one in threading.enumerate() if one.name == "cluster monitor" and one.is_alive()]
    assert written == len(store.samples)


@pytest.mark.slow
def test_definitions_and_servers_come_and_go(tmp_path: Path) -> None:
    """Without definitions of our kinds, the cluster is still sampled; with them, jobs are recorded. A server
    that restarts is watched again, and objects that disappeared are marked."""
    server = ApiServerProcess(tmp_path)
    server.start()
    store = Memory()
    monitor: ClusterMonitor | None = None
    try:
        cluster = server.cluster()
        monitor = ClusterMonitor(cluster, store, MonitorOptions("default", PERIOD))
        monitor.start()
        eventually(lambda: bool(store.samples))
        assert monitor.waits_for()
        for crd in crds():
            client.create(cluster, crd)
        client.create(cluster, elastic_job("goes"))
        eventually(lambda: store.phase("goes") == "Pending")
        server.kill()
        server.start()
        client.delete(cluster, ELASTIC_JOBS, "goes")
        client.create(cluster, elastic_job("comes"))

        eventually(lambda: store.phase("comes") == "Pending" and store.job("goes") is None)
        # An event tells that a watch stands again; else its next bookmark would.
        client.create(cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        client.create(cluster, pod("mnist-0", "mnist"))
        eventually(lambda: (store.newest.nodes, store.newest.pods_pending) == (1, 1))
    finally:
        if monitor is not None:
            monitor.stop()
        server.kill()


def test_the_documented_rights() -> None:
    """The documented ClusterRole has exactly the rights for the watches and for the list of node metrics."""
    text = (Path(__file__).parents[4] / "docs/how-to/run-brain.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    (role,) = [block for block in blocks if block["kind"] == "ClusterRole"]
    found = {
        (rule["apiGroups"][0], resource, *rule["verbs"])
        for rule in role["rules"]
        for resource in rule["resources"]
    }

    watched = [NODES, PODS, *(kind.source.api for kind in KINDS)]
    expected = {(one.group, one.plural, "list", "watch") for one in watched}
    assert found == expected | {(NODE_METRICS.group, NODE_METRICS.plural, "list")}


def test_the_whole_process(cluster: Cluster, tmp_path: Path) -> None:
    """A Brain with a monitor shows what exists and what was deleted, and stops with all its threads."""
    before, url = set(threading.enumerate()), f"sqlite:///{tmp_path}/brain.db"
    server = BrainServer(
        BrainOptions(url, port=0, monitor=MonitorOptions(cluster.namespace, PERIOD)), cluster
    )
    made = client.create(cluster, elastic_job())
    client.create(cluster, plan())
    with server.serving() as url, httpx.Client(base_url=url) as http:

        def phases() -> list[str]:
            return [job["phase"] for job in http.get("/v1/jobs").json()["jobs"]]

        eventually(lambda: phases() == ["Pending"])
        eventually(lambda: len(http.get("/v1/cluster").json()["points"]) > 1)
        eventually(lambda: len(http.get("/v1/plans").json()["plans"]) == 1)
        answer = http.get(f"/v1/jobs/{made['metadata']['uid']}").json()
        assert [plan["reason"] for plan in answer["plans"]] == ["more pay"]
        client.delete(cluster, ELASTIC_JOBS, "mnist")
        client.delete(cluster, SCALE_PLANS, "grow")
        eventually(lambda: phases() == ["Deleted"])
        eventually(lambda: http.get("/v1/plans").json()["plans"][0]["phase"] == "Deleted")
        assert http.get("/v1/cluster").json()["monitored"]

    assert not {
        one.name
        for one in set(threading.enumerate()) - before
        if one.name.startswith(("cluster", "informer"))
    }


def job(uid: str, step: int = 0) -> JobObservation:
    """A row."""
    return JobObservation(uid, "ElasticJob", "ns", uid, "Running", step=step)


DIFFERENCES = [
    pytest.param({}, [], [], [], id="nothing"),
    pytest.param({}, [job("a")], ["a"], [], id="new"),
    pytest.param({"a": None}, [job("a")], ["a"], [], id="known from an earlier process"),
    pytest.param({"a": job("a")}, [job("a")], [], [], id="the same"),
    pytest.param({"a": job("a")}, [job("a", 1)], ["a"], [], id="changed"),
    pytest.param({"a": job("a"), "b": None}, [], [], ["a", "b"], id="gone"),
]


@pytest.mark.parametrize(("told", "seen", "changed", "gone"), DIFFERENCES)
def test_differences(
    told: dict[str, JobObservation | None], seen: list[JobObservation], changed: list[str], gone: list[str]
) -> None:
    """Only values that differ from the store's are written."""
    found = diff_rows(told, seen)

    assert ([row.uid for row in found[0]], found[1]) == (changed, gone)


UIDS = st.sampled_from("abcdef")


@given(st.dictionaries(UIDS, st.none() | st.integers(0, 2)), st.dictionaries(UIDS, st.integers(0, 2)))
def test_differences_make_the_store_know(known: dict[str, int | None], there: dict[str, int]) -> None:
    """After the differences are written, the store has the current state and there are no more
    differences."""
    seen = [job(uid, step) for uid, step in there.items()]
    told = {uid: None if step is None else job(uid, step) for uid, step in known.items()}
    changed, gone = diff_rows(told, seen)

    kept = {uid: row for uid, row in told.items() if uid not in gone} | {row.uid: row for row in changed}
    assert kept == {row.uid: row for row in seen}
    assert diff_rows(kept, seen) == ([], [])
