"""Many jobs of four pods, by our controller and by Kubeflow's training-operator, each on a fresh control
plane with KWOK's nodes."""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
    AuditLevel,
    Binaries,
    Plane,
    process,
    running_plane,
    wait_for,
)

TF_JOBS = ApiResource("kubeflow.org", "v1", "tfjobs", "TFJob")
PATIENCE = 1800.0
SETTLE_SECONDS = 5.0
"""What a controller still does behind the last job counts, too."""
WRITES = frozenset({"create", "update", "patch", "delete"})
_TF_ROLES = {"PS": 1, "Worker": 3}
TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}


@dataclass
class Result:
    """What a number of jobs cost.

    Attributes:
        seconds: from the first job's creation until every job's status says that all its pods run.
        requests: of the controllers a job, watches and lists included, but no renewals of Leases.
        masters_requests: of the stand-in for the jobs' masters a job; None where a job has none.
        kinds: the controllers' requests a job by verb and resource.
        memory_mib: the most that a controller's process had in memory.
        cpu_seconds: of the controllers together, from before the first job's creation on.
        cpu: the same of all processes, by name; the bench's own creates and watches jobs.
        writes: of everybody, by verb and resource, for all jobs.
    """

    who: str
    jobs: int
    seconds: float
    requests: float
    masters_requests: float | None
    memory_mib: float
    cpu_seconds: float
    kinds: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)

    @property
    def all_cpu(self) -> float:
        """CPU seconds of everything on the machine that belongs to the run."""
        return round(sum(self.cpu.values()), 1)


@dataclass(frozen=True)
class Contender:
    """A controller and its kind of job.

    Attributes:
        name: for people.
        user: the controllers'.
        crds: documents to create first.
        start: starts what belongs to it, and puts it into the plane's processes.
        controllers: which of these are its controllers.
        run: brings jobs of these names from nothing to Running; gives the seconds.
    """

    name: str
    user: str
    crds: Sequence[str]
    start: Callable[[ExitStack, Plane, Binaries], None]
    controllers: Sequence[str]
    run: Callable[[Plane, Sequence[str]], float]


def ours(account: str = "", partitions: int = 1) -> Contender:
    """Our controller, with a stand-in for the masters.

    Args:
        account: the ServiceAccount that the jobs' masters share; "" for one a job, with rights to that job
            alone.
        partitions: how many replicas share the jobs.
    """
    folder = package_files.files("edl_workflows.core.jobs") / "crds"
    crds = [file.read_text() for file in folder.iterdir()]
    who = f"{CONTROLLER}, masters share an account" if account else CONTROLLER
    who += f", {partitions} partitions" if partitions > 1 else ""
    controllers = [f"controller-{index}" for index in range(partitions)]

    def start(stack: ExitStack, plane: Plane, _binaries: Binaries) -> None:
        masters = [sys.executable, "-m", "tests.benchmarks.cluster.masters", str(plane.kubeconfig(MASTERS))]
        plane.processes["masters"] = stack.enter_context(process(plane.folder, "masters", masters))
        for name in controllers:
            plane.processes[name] = start_controller(stack, plane, free_port(), partitions, name)

    def run(plane: Plane, jobs: Sequence[str]) -> float:
        manifests = [_elastic_job(name, account) for name in jobs]
        return _submit_all(plane.cluster(), ELASTIC_JOBS, manifests, _elastic_job_runs)

    return Contender(who, CONTROLLER, crds, start, controllers, run)


def peer(binaries: Binaries) -> Contender:
    """Kubeflow's training-operator as it comes, with the kind of job that we compare with."""
    crds = [file.read_text() for file in binaries.peer_crds]

    def run(plane: Plane, jobs: Sequence[str]) -> float:
        return _submit_all(plane.cluster(), TF_JOBS, list(map(_tf_job, jobs)), _tf_job_runs)

    return Contender(PEER, PEER, crds, _start_peer, [PEER], run)


@contextmanager
def started(contender: Contender, binaries: Binaries, audited: AuditLevel = "Metadata") -> Iterator[Plane]:
    """A control plane of its own with the contender's definitions and programs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_plane(binaries, Path(folder), audited) as plane,
        ExitStack() as stack,
    ):
        install(plane.cluster(), contender.crds)
        contender.start(stack, plane, binaries)
        yield plane


def measure(
    contender: Contender, jobs: int, binaries: Binaries, at_end: Callable[[Cluster], None] = lambda _: None
) -> Result:
    """All jobs from nothing to Running.

    Args:
        contender: whose.
        jobs: how many.
        binaries: the programs.
        at_end: called before all is stopped.
    """
    with started(contender, binaries) as plane:
        log, before = AuditLog(plane.audit_log), cpu_by_process(plane)
        seconds = contender.run(plane, [f"job-{index}" for index in range(jobs)])
        time.sleep(SETTLE_SECONDS)
        cpu = {name: round(used - before[name], 1) for name, used in cpu_by_process(plane).items()}
        calls = [call for call in log.news() if call.resource != "leases"]
        at_end(plane.cluster())
        own = [call for call in calls if call.user == contender.user]
        masters = [call for call in calls if call.user == MASTERS]
        written = by_kind([call for call in calls if call.verb in WRITES])
        memory = [peak_memory(plane.processes[name].pid) for name in contender.controllers]
        return Result(
            who=contender.name,
            jobs=jobs,
            seconds=round(seconds, 1),
            requests=round(len(own) / jobs, 2),
            masters_requests=round(len(masters) / jobs, 2) if contender.user == CONTROLLER else None,
            memory_mib=round(max(memory, default=0)),
            cpu_seconds=round(sum(cpu[name] for name in contender.controllers), 1),
            kinds={kind: round(n / jobs, 2) for kind, n in by_kind(own).most_common() if n > jobs / 100},
            cpu=cpu,
            writes=dict(written.most_common()),
        )


def cpu_by_process(plane: Plane) -> dict[str, float]:
    """CPU seconds so far of the plane's processes, the bench's own, and those that it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {name: cpu_seconds(started.pid) for name, started in plane.processes.items()}
    ended = children.ru_utime + children.ru_stime
    return used | {"bench": own.ru_utime + own.ru_stime, "ended processes": ended}


def install(cluster: Cluster, documents: Sequence[str]) -> None:
    for document in documents:
        crd = yaml.safe_load(document)
        made = client.create(cluster, crd, field_validation="Ignore")
        name = made["metadata"]["name"]
        wait_for(lambda name=name: _established(cluster, name))  # type: ignore[misc]  # the loop's name, bound now


def _established(cluster: Cluster, name: str) -> bool:
    conditions = (client.get(cluster, CRDS, name).get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def _submit_all(
    cluster: Cluster,
    kind: ApiResource,
    jobs: Sequence[dict[str, Any]],
    runs: Callable[[dict[str, Any]], bool],
) -> float:
    """Create all jobs; seconds until the status of each says that all its pods run."""
    running: set[str] = set()
    done = threading.Event()

    def changed(change: ObjectChange) -> None:
        if runs(change.object.get("status") or {}):
            running.add(change.key.name)
            if len(running) == len(jobs):
                done.set()

    informer = Informer(ClusterSource.of(cluster), Scope(kind))
    informer.on_change(changed)
    informer.start()
    informer.wait_synced(60)
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as users:
        for made in [users.submit(_submit, cluster, kind, job) for job in jobs]:
            made.result()
        if not done.wait(PATIENCE):
            raise TimeoutError(f"{len(running)} of {len(jobs)} jobs run after {PATIENCE} s")
    seconds = time.perf_counter() - began
    informer.stop()
    return seconds


def _submit(cluster: Cluster, kind: ApiResource, job: dict[str, Any]) -> None:
    request = transport.ApiRequest(
        "create", kind.plural, kind.path("default"), f"create {kind.plural}", body=job, idempotent=False
    )
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


def start_controller(
    stack: ExitStack, plane: Plane, port: int, partitions: int = 1, name: str = "controller"
) -> "subprocess.Popen[bytes]":
    """Our controller, which has listed everything.

    Args:
        stack: ends it.
        plane: of its jobs.
        port: of its metrics.
        partitions: how many replicas share the jobs.
        name: of its log.
    """
    command = [sys.executable, "-m", "edl_workflows", "controller", "run", "--all-namespaces"]
    command += ["--kubeconfig", str(plane.kubeconfig(CONTROLLER)), "--metrics-port", str(port)]
    command += ["--partitions", str(partitions)] if partitions > 1 else ["--no-leader-elect"]
    command += os.environ.get("CTL", "").split()
    controller = stack.enter_context(process(plane.folder, name, command))
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/metrics", "edl_controller_leading 1.0"))
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


def _start_peer(stack: ExitStack, plane: Plane, binaries: Binaries) -> None:
    port = free_port()
    command = [str(binaries.peer), f"--kubeconfig={plane.kubeconfig(PEER)}", "--enable-scheme=tfjob"]
    command += [
        f"--metrics-bind-address=127.0.0.1:{free_port()}",
        f"--health-probe-bind-address=127.0.0.1:{port}",
    ]
    command += [f"--monitoring-port={free_port()}"]
    plane.processes[PEER] = stack.enter_context(process(plane.folder, PEER, command))
    wait_for(lambda: answers(f"http://127.0.0.1:{port}/readyz"))


def answers(url: str, text: str = "") -> bool:
    """Whether an address answers with OK, and with this text."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return text in answer.read().decode()
    except OSError:
        return False
