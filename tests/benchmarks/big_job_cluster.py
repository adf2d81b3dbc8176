"""The cluster of one big job: the embedded API server, the real controller and the job's real master, each a
process of its own. The kubelet is played here: it says that pods run, and how they ended.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources as package_files
from typing import Any

import psutil
import yaml

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    PODS,
    SCALE_PLANS,
    ApiResource,
    Scope,
)
from edl_workflows.testing import ApiServerProcess, free_port

JOB = "big"
TOKEN = "bench-token"
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
MESSAGE_BYTES = 4096
"""Most bytes of a container's last words, as kubelets keep them."""
WORKER = names.WORKER_TYPE


def job_manifest(members: int) -> dict[str, Any]:
    """A collective job whose members are replaced after any error."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    worker = {"replicas": members, "restartPolicy": "Always", "template": template}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": JOB},
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "optimizeMode": "manual",
            "rendezvous": {"minNodes": members // 2, "maxNodes": members},
            "replicaSpecs": {WORKER: worker},
        },
    }


@dataclass(frozen=True)
class Place:
    """A worker's pod: node id and rank."""

    node: int
    rank: int


@dataclass
class Kubelet:
    """Runs no pods, but says so, and counts what is created.

    Attributes:
        started: called in another thread with each worker's pod, once it is said to run.
        created: objects that were created, by kind.
        places: of the workers' pods, by node.
    """

    cluster: Cluster
    started: Callable[[Place], None]
    created: Counter[str] = field(default_factory=Counter)
    places: dict[int, Place] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(4)
        self._master_pod = ""
        self._pods = self._watch(PODS, self._pod_changed)
        self._plans = self._watch(SCALE_PLANS, self._plan_changed)

    def stop(self) -> None:
        """End the watches."""
        for informer in (self._pods, self._plans):
            informer.stop()
        self._pool.shutdown(cancel_futures=True)

    def end_worker(self, node: int, code: int, text: str = "") -> None:
        """Say that a worker's container has ended."""
        self._end_pod(names.node_name(JOB, WORKER, node), code, text)

    def end_master(self, code: int) -> None:
        """Say that the master's container has ended."""
        self._end_pod(self._master_pod, code)

    def _end_pod(self, name: str, code: int, text: str = "") -> None:
        terminated = {"exitCode": code, "message": text[-MESSAGE_BYTES:]}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}],
        }
        self._pool.submit(client.patch_status, self.cluster, PODS, name, status)

    def _watch(self, resource: ApiResource, listener: Callable[[ObjectChange], None]) -> Informer:
        informer = Informer(ClusterSource.of(self.cluster), Scope(resource))
        informer.on_change(listener)
        informer.start()
        return informer

    def _plan_changed(self, change: ObjectChange) -> None:
        self.created["ScalePlan"] += change.type == "ADDED"

    def _pod_changed(self, change: ObjectChange) -> None:
        metadata = change.object["metadata"]
        if metadata.get("deletionTimestamp") and change.type != "DELETED":
            self._pool.submit(self._remove_pod, metadata["name"])
        elif change.type == "ADDED":
            self._pool.submit(self._start_pod, metadata)

    def _start_pod(self, metadata: dict[str, Any]) -> None:
        client.patch_status(self.cluster, PODS, metadata["name"], RUNNING)
        labels = metadata["labels"]
        if labels[names.REPLICA_TYPE_LABEL] != WORKER:
            self._master_pod = metadata["name"]
            return
        place = Place(int(labels[names.REPLICA_INDEX_LABEL]), int(labels[names.RANK_INDEX_LABEL]))
        self.created["Pod"] += 1
        self.places[place.node] = place
        self.started(place)

    def _remove_pod(self, name: str) -> None:
        try:
            client.delete(self.cluster, PODS, name, options=DeletionOptions(grace_seconds=0))
        except NotFoundError:
            return


@dataclass
class MasterProcess:
    """The job's master, which can be killed and started again on the same port."""

    server: ApiServerProcess
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "edl_workflows", "master", "run", "--job", JOB]
        command += ["--kubeconfig", str(self.server.kubeconfig), "--namespace", "default"]
        command += ["--port", str(self.port)]
        env = {**os.environ, names.ENV_JOB_TOKEN: TOKEN}
        with (self.server.directory / "master.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll() if self.process is not None else None

    @property
    def usage(self) -> tuple[float, int]:
        """CPU seconds so far, and bytes of memory."""
        assert self.process is not None
        process = psutil.Process(self.process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss


@contextmanager
def running_controller(server: ApiServerProcess) -> Iterator[None]:
    """The controller."""
    command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--all-namespaces"]
    command += [
        "--kubeconfig",
        str(server.kubeconfig),
        "--no-leader-elect",
        "--metrics-port",
        str(free_port()),
    ]
    with (server.directory / "controller.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def create_job(cluster: Cluster, members: int) -> None:
    """Install the definitions and create the job; returns when the controller has prepared it."""
    for file in (package_files.files("edl_workflows.core.jobs") / "crds").iterdir():
        client.create(cluster, yaml.safe_load(file.read_text()))
    client.create(cluster, job_manifest(members))
    deadline = time.monotonic() + 60
    while client.find(cluster, CONFIG_MAPS, names.state_config_map_name(JOB)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the controller made no ConfigMap for the job's state")
        time.sleep(0.1)


def status_size(cluster: Cluster) -> int:
    """Bytes of the job with its status."""
    return len(str(client.get(cluster, ELASTIC_JOBS, JOB)))


def state_size(cluster: Cluster) -> int:
    """Bytes of the state that the master has stored, in one ConfigMap or in parts."""
    names_of_parts = [name for letter in "ab" for name in names.state_part_names(JOB, letter)]
    parts = [
        client.find(cluster, CONFIG_MAPS, name)
        for name in (names.state_config_map_name(JOB), *names_of_parts)
    ]
    return sum(len(str(part.get("data"))) for part in parts if part is not None)


def job_phase(cluster: Cluster) -> str:
    """The job's phase."""
    return str((client.get(cluster, ELASTIC_JOBS, JOB).get("status") or {}).get("phase"))
