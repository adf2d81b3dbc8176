"""Jobs that train in real pods, and what is done to them there: deletion, eviction, a cut of the network."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from edl_workflows.demo.processes import Child
from edl_workflows.jobs import names
from edl_workflows.kube import client, resources, transport
from edl_workflows.kube.connect import Cluster
from edl_workflows.master.state.job import JobDocument
from tests.cluster.bed import Bed
from tests.e2e.records import HELD, SHARD
from tests.e2e.submitted import Container, SubmittedJob, Training

LEASE = "edl-controller"


def container(bed: Bed) -> Container:
    """What the bed's nodes can run without a registry."""
    return Container(bed.image, str(bed.python), {"imagePullPolicy": "Never"})


@dataclass
class PodJob(SubmittedJob):
    """A submitted job in real pods.

    Attributes:
        training: what it trains.
    """

    training: Training

    @classmethod
    def start(cls, bed: Bed, cluster: Cluster, name: str, training: Training) -> "PodJob":
        """Submit it. The master runs in the same image as the nodes."""
        training.folder.mkdir(parents=True)
        inside = container(bed)
        manifest = training.manifest(name, inside)
        master = inside.runs("-m", "edl_workflows.cli", "master", "run")
        template = {"spec": {"containers": [master]}}
        manifest["spec"]["replicaSpecs"][names.MASTER_TYPE] = {"template": template}
        job = SubmittedJob.submit(cluster, manifest)
        return cls(cluster, job.name, training)

    @property
    def step(self) -> int:
        """The newest global step that the status tells."""
        progress = self.get().status.progress
        return progress.step if progress else 0

    def go_on(self, steps: int = 20, seconds: float = 120) -> None:
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
            self.cluster, resources.PODS, metadata["name"], options=client.DeleteOptions(uid=metadata["uid"])
        )

    def await_running(self, role: str, count: int, gone: frozenset[str], seconds: float = 120) -> list[str]:
        """Wait until so many pods of a role run, none of them one of `gone`; their names."""

        def found() -> list[str] | None:
            running = [pod["metadata"]["name"] for pod in self.pods(role) if _runs(pod)]
            return running if len(running) == count and gone.isdisjoint(running) else None

        return self.until(found, seconds, f"{count} {role} pods without {sorted(gone)}")

    def held(self) -> int:
        """Records that may be trained twice if all workers are lost now: what the master has leased to them, and what
        each may lease until it ends."""
        stored = client.get(self.cluster, resources.CONFIG_MAPS, names.state_config_map_name(self.name))
        document = JobDocument.from_json(stored["data"][names.STATE_KEY])
        leased = sum(
            end - start
            for dataset in document.shards.datasets
            for lease in dataset.leases
            for _, _, intervals in lease.shards
            for start, end in intervals
        )
        workers = sum(node.live for node in document.nodes if node.type == names.WORKER_TYPE)
        return (leased + workers * HELD) * SHARD


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
        self._command = [
            sys.executable, "-m", "edl_workflows.cli", "controller", "run", "--kubeconfig", str(bed.kubeconfig),
            "--namespace", cluster.namespace, "--metrics-port", "0",
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
    request = transport.Request("create", "pods", path, f"evict {metadata['name']}", body=body, idempotent=False)
    transport.send(cluster, request)


@contextlib.contextmanager
def cut(one: dict[str, Any], other: dict[str, Any]) -> Iterator[None]:
    """Packets between two pods are dropped meanwhile, both ways; what was open hangs, as when a cable is pulled."""
    ends = (one["status"]["podIP"], other["status"]["podIP"])
    rules = [["FORWARD", "-s", source, "-d", target, "-j", "DROP"] for source, target in (ends, ends[::-1])]
    try:
        for rule in rules:
            _iptables("-I", *rule)
        yield
    finally:
        for rule in rules:
            _iptables("-D", *rule)


def _iptables(*arguments: str) -> None:
    subprocess.run(["iptables", "--wait", *arguments], check=True, timeout=30)
