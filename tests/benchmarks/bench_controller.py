"""The controller and the embedded API server under many jobs of four pods each.

Each runs in a process of its own. The bench plays the masters and the kubelet: it writes an auto ScalePlan
for each job and marks each pod Running. Then a second controller starts over the finished state: what a
restart costs::

    python tests/benchmarks/bench_controller.py [--jobs 1000]
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import resources as package_files
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Scope
from edl_workflows.testing import ApiServerProcess, api_server, free_port

WORKERS = 3
"""With the master four pods a job."""
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
PATIENCE = 1800.0
WRITES = ("create", "update", "patch", "delete")


@dataclass
class Scrape:
    """What a controller's /metrics said."""

    requests: Counter[str] = field(default_factory=Counter)
    decisions: float = 0.0
    decision_seconds: float = 0.0
    failures: float = 0.0
    memory_mib: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def writes(self) -> int:
        """Requests that change something."""
        return sum(self.requests[verb] for verb in WRITES)


def scrape(port: int) -> Scrape:
    """Read a controller's metrics."""
    found = Scrape()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("edl_api_requests_total"):
            verb = re.search(r'verb="(\w+)"', name)
            found.requests[verb[1] if verb else ""] += int(float(value))
        elif name.startswith("edl_controller_reconcile_seconds_count"):
            found.decisions += float(value)
        elif name.startswith("edl_controller_reconcile_seconds_sum"):
            found.decision_seconds += float(value)
        elif name.startswith("edl_controller_reconcile_total") and 'result="success"' not in name:
            found.failures += float(value)
        elif name == "process_resident_memory_bytes":
            found.memory_mib = float(value) / 2**20
        elif name == "process_cpu_seconds_total":
            found.cpu_seconds = float(value)
    return found


@contextmanager
def controller(server: ApiServerProcess, workers: int) -> Iterator[int]:
    """A controller in a process of its own; its metrics port."""
    port = free_port()
    command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--all-namespaces"]
    command += ["--kubeconfig", str(server.kubeconfig), "--no-leader-elect", "--workers", str(workers)]
    command += ["--metrics-port", str(port)]
    with (server.directory / "controller.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(port), 60)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def answers(port: int) -> bool:
    """Whether the controller has listed everything."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)


def job(name: str) -> dict[str, Any]:
    """A job with its workers."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    spec = {"replicaSpecs": {"worker": {"replicas": WORKERS, "template": template}}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def plan(name: str) -> dict[str, Any]:
    """What the job's master asks for."""
    pods = [
        {"name": names.node_name(name, "worker", index), "id": index, "type": "worker", "rankIndex": index}
        for index in range(WORKERS)
    ]
    labels = {names.JOB_LABEL: name, names.SCALE_TYPE_LABEL: names.SCALE_AUTO}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": f"{name}-plan", "labels": labels},
        "spec": {"ownerJob": name, "createPods": pods},
    }


class Kubelet:
    """Marks every new pod Running, and knows which jobs run with all their workers."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
        self._cluster, self._pool = cluster, pool
        self.running: set[str] = set()
        self._pods = self._informer(PODS, self._pod)
        self._jobs = self._informer(ELASTIC_JOBS, self._job)

    def stop(self) -> None:
        """End its watches."""
        self._pods.stop()
        self._jobs.stop()

    def _informer(self, resource: Any, listener: Callable[[ObjectChange], None]) -> Informer:
        informer = Informer(ClusterSource.of(self._cluster), Scope(resource))
        informer.on_change(listener)
        informer.start()
        return informer

    def _pod(self, change: ObjectChange) -> None:
        if change.type == "ADDED":
            self._pool.submit(client.patch_status, self._cluster, PODS, change.key.name, READY)

    def _job(self, change: ObjectChange) -> None:
        status = change.object.get("status") or {}
        active = (status.get("replicaStatuses") or {}).get("worker", {}).get("active", 0)
        if status.get("phase") == "Running" and active == WORKERS:
            self.running.add(change.key.name)


@dataclass
class Result:
    """What was measured; times in seconds."""

    jobs: int
    pods: int
    all_running: float
    jobs_per_second: float
    decisions_per_job: float
    mean_decision: float
    requests_per_job: float
    writes_per_job: float
    failed_decisions: int
    controller_memory_mib: float
    controller_cpu_seconds: float
    writes_while_idle: int
    restart_to_ready: float
    restart_writes: int
    restart_memory_mib: float


def measure(server: ApiServerProcess, jobs: int, workers: int) -> Result:
    """All jobs from nothing to Running, then a restart."""
    cluster = server.cluster()
    for file in (package_files.files("edl_workflows.core.jobs") / "crds").iterdir():
        client.create(cluster, yaml.safe_load(file.read_text()))
    with controller(server, workers) as port:
        seconds = run_jobs(cluster, jobs)
        time.sleep(3.0)
        busy = scrape(port)
        time.sleep(10.0)
        idle_writes = scrape(port).writes - busy.writes
    began = time.perf_counter()
    with controller(server, workers) as port:
        ready = time.perf_counter() - began
        time.sleep(10.0)
        restarted = scrape(port)
    return Result(
        jobs=jobs,
        pods=jobs * (WORKERS + 1),
        all_running=round(seconds, 2),
        jobs_per_second=round(jobs / seconds, 1),
        decisions_per_job=round(busy.decisions / jobs, 1),
        mean_decision=round(busy.decision_seconds / busy.decisions, 4),
        requests_per_job=round(busy.requests.total() / jobs, 2),
        writes_per_job=round(busy.writes / jobs, 2),
        failed_decisions=int(busy.failures),
        controller_memory_mib=round(busy.memory_mib),
        controller_cpu_seconds=round(busy.cpu_seconds, 1),
        writes_while_idle=idle_writes,
        restart_to_ready=round(ready, 2),
        restart_writes=restarted.writes,
        restart_memory_mib=round(restarted.memory_mib),
    )


def run_jobs(cluster: Cluster, jobs: int) -> float:
    """Create all jobs and their plans; seconds until all run with all workers."""
    with ThreadPoolExecutor(4) as kubelet_pool, ThreadPoolExecutor(4) as users:
        kubelet = Kubelet(cluster, kubelet_pool)
        began = time.perf_counter()
        failed = threading.Event()

        def submit(name: str) -> None:
            client.create(cluster, job(name))
            client.create(cluster, plan(name))

        for index in range(jobs):
            future = users.submit(submit, f"job-{index}")
            future.add_done_callback(lambda f: failed.set() if f.exception() else None)
        wait_for(lambda: failed.is_set() or len(kubelet.running) == jobs)
        seconds = time.perf_counter() - began
        kubelet.stop()
    if failed.is_set():
        raise RuntimeError("a job could not be created")
    return seconds


def main() -> int:
    """Measure, print a table and JSON; 1 if the controller did something needless or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4, help="the controller's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, api_server(Path(folder)) as server:
        result = measure(server, options.jobs, options.workers)
    for name, value in asdict(result).items():
        print(f"{name:24} {value}")
    print(json.dumps(asdict(result)))
    return 1 if result.writes_while_idle or result.restart_writes or result.failed_decisions else 0


if __name__ == "__main__":
    sys.exit(main())
