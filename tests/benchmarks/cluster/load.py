"""Many jobs of four pods, by our controller and by Kubeflow's training-operator, each on a fresh control
plane with KWOK's nodes."""

import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import resources as package_files
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.runtime.kube import client, transport
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import CRDS, ELASTIC_JOBS, Scope
from edl_workflows.testing import free_port
from tests.benchmarks.cluster.audit import AuditLog, by_kind
from tests.benchmarks.cluster.masters import ROLES
from tests.benchmarks.cluster.plane import (
    CONTROLLER,
    MASTERS,
    PEER,
    Binaries,
    Plane,
    process,
    running_plane,
    wait_for,
)

TF_JOBS = ApiResource("kubeflow.org", "v1", "tfjobs", "TFJob")
PATIENCE = 1800.0
_TF_ROLES = {"PS": 1, "Worker": 3}
TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}


@dataclass
class Result:
    """What a number of jobs cost.

    Attributes:
        seconds: from the first job's creation until every job's status says that all its pods run.
        requests: of the controller a job, watches and lists included.
        masters_requests: of the stand-in for the jobs' masters a job; None where a job has none.
        kinds: the controller's requests a job by verb and resource.
        memory_mib: the most that the controller's process had in memory.
        cpu_seconds: the controller's.
    """

    who: str
    jobs: int
    seconds: float
    requests: float
    masters_requests: float | None
    memory_mib: float
    cpu_seconds: float
    kinds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """A controller and its kind of job.

    Attributes:
        name: for people.
        user: the controller's.
        crds: documents to create first.
        start: starts what belongs to it; gives the controller's process.
        job: a job's manifest by name.
        resource: the job's kind.
        running: whether a job's status says that all its pods run.
    """

    name: str
    user: str
    crds: Sequence[str]
    start: Callable[[ExitStack, Plane, Binaries], "subprocess.Popen[bytes]"]
    job: Callable[[str], dict[str, Any]]
    resource: ApiResource
    running: Callable[[dict[str, Any]], bool]


def ours(account: str = "") -> Contender:
    """Our controller, with a stand-in for the masters.

    Args:
        account: the ServiceAccount that the jobs' masters share; "" for one a job, with rights to that job
            alone.
    """
    folder = package_files.files("edl_workflows.core.jobs") / "crds"
    crds = [file.read_text() for file in folder.iterdir()]
    who = f"{CONTROLLER}, masters share an account" if account else CONTROLLER

    def job(name: str) -> dict[str, Any]:
        return _elastic_job(name, account)

    return Contender(who, CONTROLLER, crds, _start_ours, job, ELASTIC_JOBS, _elastic_job_runs)


def peer(binaries: Binaries) -> Contender:
    """Kubeflow's training-operator as it comes, with the kind of job that we compare with."""
    crds = [file.read_text() for file in binaries.peer_crds]
    return Contender(PEER, PEER, crds, _start_peer, _tf_job, TF_JOBS, _tf_job_runs)


def measure(contender: Contender, jobs: int, binaries: Binaries) -> Result:
    """All jobs from nothing to Running."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_plane(binaries, Path(folder)) as plane,
        ExitStack() as stack,
    ):
        cluster = plane.cluster()
        install(cluster, contender.crds)
        controller = contender.start(stack, plane, binaries)
        log = AuditLog(plane.audit_log)
        seconds = _run(cluster, contender, jobs)
        time.sleep(5.0)  # what a controller still does behind the last job counts, too
        calls = log.news()
        own = [call for call in calls if call.user == contender.user]
        masters = [call for call in calls if call.user == MASTERS]
        return Result(
            who=contender.name,
            jobs=jobs,
            seconds=round(seconds, 1),
            requests=round(len(own) / jobs, 2),
            masters_requests=round(len(masters) / jobs, 2) if contender.user == CONTROLLER else None,
            memory_mib=round(peak_memory(controller.pid)),
            cpu_seconds=round(cpu_seconds(controller.pid), 1),
            kinds={kind: round(n / jobs, 2) for kind, n in by_kind(own).most_common() if n > jobs / 20},
        )


def install(cluster: Cluster, documents: Sequence[str]) -> None:
    for document in documents:
        crd = yaml.safe_load(document)
        made = client.create(cluster, crd, field_validation="Ignore")
        name = made["metadata"]["name"]
        wait_for(lambda name=name: _established(cluster, name))  # type: ignore[misc]  # the loop's name, bound now


def _established(cluster: Cluster, name: str) -> bool:
    conditions = (client.get(cluster, CRDS, name).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _run(cluster: Cluster, contender: Contender, jobs: int) -> float:
    """Create all jobs; seconds until all run."""
    running: set[str] = set()
    done = threading.Event()

    def changed(change: ObjectChange) -> None:
        if contender.running(change.object.get("status") or {}):
            running.add(change.key.name)
            if len(running) == jobs:
                done.set()

    informer = Informer(ClusterSource.of(cluster), Scope(contender.resource))
    informer.on_change(changed)
    informer.start()
    informer.wait_synced(60)
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as users:
        for made in [users.submit(_submit, cluster, contender, f"job-{index}") for index in range(jobs)]:
            made.result()
        if not done.wait(PATIENCE):
            raise TimeoutError(f"{len(running)} of {jobs} jobs run after {PATIENCE} s")
    seconds = time.perf_counter() - began
    informer.stop()
    return seconds


def _submit(cluster: Cluster, contender: Contender, name: str) -> None:
    request = transport.ApiRequest(
        "create", contender.resource.plural, contender.resource.path("default"), f"create {name}",
        body=contender.job(name), idempotent=False,
    )  # fmt: skip
    transport.send(cluster, request)


def peak_memory(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _elastic_job(name: str, account: str) -> dict[str, Any]:
    specs: dict[str, Any] = {role: {"replicas": count, "template": TEMPLATE} for role, count in ROLES.items()}
    if account:
        specs[names.MASTER_TYPE] = {"template": {"spec": {"serviceAccountName": account}}}
    head = {"apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": name}}
    return head | {"spec": {"replicaSpecs": specs}}


def _elastic_job_runs(status: dict[str, Any]) -> bool:
    counts = status.get("replicaStatuses") or {}
    return status.get("phase") == "Running" and all(
        counts.get(role, {}).get("active") == count for role, count in ROLES.items()
    )


def _start_ours(stack: ExitStack, plane: Plane, _binaries: Binaries) -> "subprocess.Popen[bytes]":
    masters = [sys.executable, "-m", "tests.benchmarks.cluster.masters", str(plane.kubeconfig(MASTERS))]
    stack.enter_context(process(plane.folder, "masters", masters))
    return start_controller(stack, plane, free_port())


def start_controller(stack: ExitStack, plane: Plane, port: int) -> "subprocess.Popen[bytes]":
    """Our controller, which has listed everything.

    Args:
        stack: ends it.
        plane: of its jobs.
        port: of its metrics.
    """
    command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--all-namespaces"]
    command += ["--no-leader-elect", "--kubeconfig", str(plane.kubeconfig(CONTROLLER))]
    command += ["--metrics-port", str(port), *os.environ.get("CTL", "").split()]
    controller = stack.enter_context(process(plane.folder, "controller", command))
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
    return controller


def _tf_job(name: str) -> dict[str, Any]:
    specs = {role: {"replicas": count, "template": TEMPLATE} for role, count in _TF_ROLES.items()}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {"tfReplicaSpecs": specs},
    }


def _tf_job_runs(status: dict[str, Any]) -> bool:
    counts = status.get("replicaStatuses") or {}
    return all(counts.get(role, {}).get("active") == count for role, count in _TF_ROLES.items())


def _start_peer(stack: ExitStack, plane: Plane, binaries: Binaries) -> "subprocess.Popen[bytes]":
    port = free_port()
    command = [str(binaries.peer), f"--kubeconfig={plane.kubeconfig(PEER)}", "--enable-scheme=tfjob"]
    command += [
        f"--metrics-bind-address=127.0.0.1:{free_port()}",
        f"--health-probe-bind-address=127.0.0.1:{port}",
    ]
    command += [f"--monitoring-port={free_port()}"]
    operator = stack.enter_context(process(plane.folder, "operator", command))
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/readyz"))
    return operator


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
