"""Jobs that train in real pods, and what is done to them there: deletion, eviction, a cut of the network."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.runtime.kube import client, logs, resources, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master.state.stored_state import StoredState
from tests.cluster.bed.bed import Bed
from tests.demo.processes import Child
from tests.e2e.records import HELD, SHARD
from tests.e2e.submitted import Container, SubmittedJob, Training

LEASE = "edl-controller"
LOG_CHARACTERS = 6000
"""Of each pod, for a failed test."""


def container(bed: Bed) -> Container:
    """What the bed's nodes can run without a registry."""
    return Container(bed.image, bed.python, {"imagePullPolicy": "Never"})


@dataclass
class PodJob(SubmittedJob):
    """A submitted job in real pods.

    Attributes:
        training: what it trains.
    """

    training: Training

    @classmethod
    def start(cls, bed: Bed, cluster: Cluster, name: str, training: Training) -> "PodJob":
        """Submit it."""
        training.folder.mkdir(parents=True)
        job = SubmittedJob.submit(cluster, training.manifest(name, container(bed)))
        return cls(cluster, job.name, training)

    @property
    def step(self) -> int:
        """The newest global step that the status tells."""
        progress = self.get().status.progress
        return progress.step if progress else 0

    def go_on(self, steps: int = 10, seconds: float = 120) -> None:
        """Wait until training has made further steps."""
        self.wait_step(self.step + steps, seconds)

    def pod(self, role: str, index: int = 0) -> dict[str, Any]:
        """The running pod of a role that comes `index`-th by age."""
        running = [pod for pod in self.pods(role) if _runs(pod)]
        return sorted(running, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))[index]

    def delete_pod(self, pod: dict[str, Any]) -> None:
        """As ``kubectl delete pod`` does."""
        metadata = pod["metadata"]
        client.delete(
            self.cluster,
            resources.PODS,
            metadata["name"],
            options=client.DeletionOptions(uid=metadata["uid"]),
        )

    def await_running(self, role: str, count: int, gone: frozenset[str], seconds: float = 120) -> list[str]:
        """Wait until so many pods of a role run, none of them one of `gone`; their names."""

        def found() -> list[str] | None:
            running = [pod["metadata"]["name"] for pod in self.pods(role) if _runs(pod)]
            return running if len(running) == count and gone.isdisjoint(running) else None

        return self.until(found, seconds, f"{count} {role} pods without {sorted(gone)}")

    def held(self) -> int:
        """Records that may be trained twice if all workers are lost now: what the master has leased to them,
        and what each may lease until it ends."""
        document = stored_state(self.cluster, self.name)
        leased = sum(
            end - start
            for dataset in document.shards.snapshot().datasets
            for lease in dataset.leases
            for _, _, intervals in lease.shards
            for start, end in intervals
        )
        workers = sum(node.live for node in document.nodes if node.type == names.WORKER_TYPE)
        return (leased + workers * HELD) * SHARD


def stored_state(cluster: Cluster, job: str) -> StoredState:
    """What a job's master has stored."""
    stored = client.get(cluster, resources.CONFIG_MAPS, names.state_config_map_name(job))
    return StoredState.from_json(stored["data"][names.STATE_KEY])


def _runs(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


class Controllers:
    """Replicas of the controller for one namespace, as processes of this machine that compete for the Lease.

    Args:
        bed: whose kubeconfig they use.
        cluster: with the namespace.
        logs: folder.
    """

    def __init__(self, bed: Bed, cluster: Cluster, logs: Path) -> None:
        self._cluster = cluster
        self._logs = logs
        master = container(bed).runs("-m", "edl_workflows", "master", "run")
        template = logs / "master.yaml"
        template.write_text(json.dumps({"spec": {"containers": [master]}}))
        self._command = [
            sys.executable, "-m", "edl_workflows", "controller", "run", "--kubeconfig",
            str(bed.kubeconfig),
            "--namespace", cluster.namespace, "--kinds", "all", "--metrics-port", "0",
            "--master-template", str(template),
        ]  # fmt: skip
        self._children: list[Child] = []

    def start(self) -> None:
        """One more."""
        number = len(self._children)
        name = f"controller-{number}"
        self._children.append(Child(name, self._command, os.environ, self._logs / f"{name}.log"))

    def leader(self) -> str:
        """Who holds the Lease; "" for nobody."""
        lease = client.find(self._cluster, resources.LEASES, LEASE)
        return str(lease["spec"].get("holderIdentity") or "") if lease else ""

    def await_leader(self, other_than: str = "", seconds: float = 60) -> str:
        """Wait until one leads that is not `other_than`."""
        deadline = time.monotonic() + seconds
        while (leader := self.leader()) in ("", other_than):
            assert time.monotonic() < deadline, f"no new leader within {seconds} s; the Lease says {leader!r}"
            time.sleep(0.2)
        return leader

    def kill(self, leader: str) -> None:
        """SIGKILL to the one with this identity (host, process id, random)."""
        pid = int(leader.split("_")[1])
        assert psutil.Process(pid).cmdline() == self._command, f"{leader} is none of ours"
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End all."""
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.reap()
        self._children.clear()


@contextlib.contextmanager
def cordoned(cluster: Cluster) -> Iterator[None]:
    """No new pod is placed on any node meanwhile."""
    nodes = [
        node["metadata"]["name"]
        for node in client.list_objects(cluster, resources.Scope(resources.NODES)).items
    ]
    try:
        for node in nodes:
            client.patch(cluster, resources.NODES, node, {"spec": {"unschedulable": True}})
        yield
    finally:
        for node in nodes:
            client.patch(cluster, resources.NODES, node, {"spec": {"unschedulable": None}})


def evict(cluster: Cluster, pod: dict[str, Any]) -> None:
    """As ``kubectl drain`` does: by the eviction API, which respects disruption budgets."""
    metadata = pod["metadata"]
    path = f"{resources.PODS.path(metadata['namespace'])}/{metadata['name']}/eviction"
    head = {"name": metadata["name"], "namespace": metadata["namespace"]}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": head}
    request = transport.ApiRequest(
        "create", "pods", path, f"evict {metadata['name']}", body=body, idempotent=False
    )
    transport.send(cluster, request)


@contextlib.contextmanager
def cut(bed: Bed, one: dict[str, Any], other: dict[str, Any]) -> Iterator[None]:
    """Packets between two pods are dropped meanwhile, both ways; what was open hangs, as when a cable is
    pulled."""
    ends = (str(one["status"]["podIP"]), str(other["status"]["podIP"]))
    rules: list[tuple[str, ...]] = [
        ("FORWARD", "-s", source, "-d", target, "-j", "DROP") for source, target in (ends, ends[::-1])
    ]
    made: list[tuple[str, ...]] = []
    try:
        for rule in rules:
            bed.run_on_node("iptables", "--wait", "-I", *rule)
            made.append(rule)
        yield
    finally:
        for rule in made:
            bed.run_on_node("iptables", "--wait", "-D", *rule)


@dataclass(frozen=True)
class Place:
    """Where the jobs of some tests run: a namespace with its controller, and a folder that pods and tests
    share."""

    bed: Bed
    cluster: Cluster
    controllers: Controllers
    folder: Path

    def submit(self, name: str, epochs: int, delay: float, replicas: dict[str, int]) -> PodJob:
        """Submit a job with a folder of its own."""
        return PodJob.start(
            self.bed, self.cluster, name, Training(self.folder / name, epochs, delay, replicas)
        )


@contextlib.contextmanager
def place(request: pytest.FixtureRequest, bed: Bed, cluster: Cluster, replicas: int = 1) -> Iterator[Place]:
    """Install the definitions and run so many replicas of the controller; afterwards end them and remove the
    folder.

    Args:
        request: of the fixture; if a test failed meanwhile, what all pods printed last is printed.
        bed: where.
        cluster: with a namespace of the tests' own.
        replicas: of the controller.
    """
    crds.install(["all"], kubeconfig=bed.kubeconfig)
    folder = bed.data_dir / cluster.namespace
    folder.mkdir(parents=True)
    controllers = Controllers(bed, cluster, folder)
    failed = request.session.testsfailed
    try:
        for _ in range(replicas):
            controllers.start()
        controllers.await_leader()
        yield Place(bed, cluster, controllers, folder)
    finally:
        if request.session.testsfailed > failed:
            _print_logs(cluster, folder)
        controllers.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _print_logs(cluster: Cluster, folder: Path) -> None:
    for pod in client.list_objects(cluster, resources.Scope(resources.PODS, cluster.namespace)).items:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        print(
            f"== {name}: {status.get('phase')} {status.get('reason', '')} {status.get('containerStatuses')}"
        )
        with contextlib.suppress(EdlError):
            print(logs.read(cluster, name)[-LOG_CHARACTERS:])
    for log in sorted(folder.glob("*.log")):
        print(f"== {log.name}\n{log.read_text()[-LOG_CHARACTERS:]}")
