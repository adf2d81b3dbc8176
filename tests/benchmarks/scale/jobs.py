"""Many jobs that train: each with a real master (`fleet`), all with the real controller, on a control plane
with KWOK's nodes (`plane`)."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources as package_files
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from edl_workflows.core.kubernetes import names
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerStage
from edl_workflows.core.write_budget import PROGRESS_SECONDS, WRITES_PER_SECOND, choose_period
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from edl_workflows.testing import free_port
from tests.benchmarks.cluster.load import TEMPLATE, cpu_seconds, install, start_controller
from tests.benchmarks.cluster.plane import MASTERS, Plane, process
from tests.benchmarks.scale.training import MOVED_SECONDS
from tests.benchmarks.scale.waiters import StepTimes

NAMESPACE = "default"
SETTLE_SECONDS = 5.0
"""The controller has dealt with all events if it has decided nothing for so many seconds."""
KINDS: tuple[tuple[str, dict[str, int]], ...] = (
    ("ParameterServerStrategy", {names.PS_TYPE: 1, names.WORKER_TYPE: 1}),
    ("AllreduceStrategy", {names.WORKER_TYPE: 2}),
)
"""Of the jobs, in turn: strategy and nodes."""
MASTERS_A_PROCESS = 500
"""A master needs about a thousandth of a core."""
JOBS_A_SECOND = 2.5
"""Most jobs that are created in a second, so that two cores start each of them within its time-outs."""
MASTERS_A_SECOND = 20.0
"""The same, of those that have only a master."""
STARTING = 3.0
"""Seconds within which a job may start, on average; it takes a tenth of that."""
PUBLISHING = 1.0
"""Seconds within which the controller may publish a period to a job, on average; it takes a fifth of that."""
CREATING = 4
"""Requests that create jobs at the same time."""
_PUT_BYTES, _DATABASE = "etcd_debugging_mvcc_total_put_size_in_bytes", "etcd_mvcc_db_total_size_in_bytes"
_EVENTS = "events"
_DECISIONS = "edl_controller_reconcile_seconds_count"

Program = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Load:
    """What is measured.

    Attributes:
        jobs: how many train.
        seconds: for which they are counted.
        young: whether they have just begun to train; otherwise they have trained for ten minutes.
        waiters: so many jobs are waited for afterwards, `rounds` times each; a young job is not.
        waste: what the masters do that they must not do, a key of `tests.benchmarks.scale.waste.WASTES`; ""
            for nothing.
        alone: whether there are only the masters, without pods, watches and a controller. Their jobs have the
            period that the controller would publish.
    """

    jobs: int
    seconds: float
    young: bool = False
    waiters: int = 36
    rounds: int = 3
    waste: str = ""
    alone: bool = False

    @property
    def period(self) -> int:
        """Seconds between two progress writes of a job."""
        return choose_period(self.jobs, WRITES_PER_SECOND)

    @property
    def start_seconds(self) -> float:
        """Over which the jobs are created, evenly: at least a period of progress. So at any moment, some job
        is at each point of its period, and any minute is as good as any other."""
        if self.alone:
            return self.jobs / MASTERS_A_SECOND
        return max(float(PROGRESS_SECONDS), self.jobs / JOBS_A_SECOND)


@dataclass(frozen=True)
class Counters:
    """What has been counted until a moment.

    Attributes:
        time: monotonic seconds.
        events: of watches of a job, for all jobs.
        cpu: seconds of the controller and of the masters.
    """

    time: float
    decisions: float
    put_bytes: float
    database: float
    events: int
    cpu: tuple[float, float]


class TrainingJobs:
    """The jobs that train, their masters and their controller.

    Args:
        plane: of the jobs.
        fleets: the processes of the masters.
        controller: its process and the port of its metrics; None for none.
    """

    def __init__(self, plane: Plane, fleets: list[Program], controller: tuple[Program, int] | None) -> None:
        self._plane = plane
        self._fleets, self._controller = fleets, controller
        self._file = plane.folder / _EVENTS
        self._events = 0
        self._watch = Informer(ClusterSource.of(plane.cluster()), Scope(ELASTIC_JOBS, NAMESPACE))
        self._watch.on_change(self._count)
        self._watch.start()
        self._watch.wait_synced(60)

    def close(self) -> None:
        """Stop to count."""
        self._watch.stop()

    def _count(self, _change: ObjectChange) -> None:
        self._events += 1

    def check(self) -> None:
        """Raise RuntimeError if a program has ended."""
        programs = [(f"masters-{index}", fleet) for index, fleet in enumerate(self._fleets)]
        if self._controller is not None:
            programs.append(("controller", self._controller[0]))
        for name, program in programs:
            if program.poll() is not None:
                text = (self._plane.folder / f"{name}.log").read_text()
                raise RuntimeError(f"{name} ended with {program.returncode}: {text[-4000:]}")

    def wait_until_train(self, count: int) -> None:
        """Wait for the first step of each job."""
        deadline = time.monotonic() + 60 + STARTING * count
        while (training := len(self.read_steps("trains"))) < count:
            self._wait(deadline, f"{training} of {count} jobs train")

    def wait_until_steady(self, count: int) -> None:
        """Wait until nothing happens to the jobs any more but progress: each has the period of so many jobs,
        and the first answer of its optimizer, which comes a minute after its master has started."""
        period = choose_period(count, WRITES_PER_SECOND)
        deadline = time.monotonic() + 180 + PUBLISHING * count
        while not self._are_steady(count, period):
            unsteady = [job for job in self._watch.cache.items() if not _is_steady(job, period)]
            example = f": {unsteady[0]['metadata']['name']}: {unsteady[0].get('status')}" if unsteady else ""
            self._wait(
                deadline,
                f"{len(unsteady)} jobs have no period of {period} s or no answer of an optimizer{example}",
            )

    def _are_steady(self, count: int, period: int) -> bool:
        return sum(_is_steady(job, period) for job in self._watch.cache.items()) == count

    def wait_until_decided(self) -> None:
        """Wait until the controller has dealt with the last event of each job."""
        deadline, since = time.monotonic() + 300, time.monotonic()
        decisions = self.read_counters().decisions
        while time.monotonic() < since + SETTLE_SECONDS:
            self._wait(deadline, "the controller goes on to decide about steady jobs")
            before, decisions = decisions, self.read_counters().decisions
            if decisions != before:
                since = time.monotonic()

    def _wait(self, deadline: float, missing: str) -> None:
        self.check()
        if time.monotonic() > deadline:
            raise TimeoutError(missing)
        time.sleep(0.5)

    def read_steps(self, kind: str) -> StepTimes:
        """When each job's first step ("trains"), or each awaited step ("step"), was reported."""
        steps = (event for event in self._read_events() if event["event"] == kind)
        return {(event["job"], event["step"]): event["time"] for event in steps}

    def _read_events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self._file.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    def read_counters(self) -> Counters:
        """What has been counted until now."""
        etcd = _scrape(f"{self._plane.etcd}/metrics")
        decisions = controller_cpu = 0.0
        if self._controller is not None:
            program, port = self._controller
            decisions = _scrape(f"http://127.0.0.1:{port}/metrics")[_DECISIONS]
            controller_cpu = cpu_seconds(program.pid)
        return Counters(
            time=time.monotonic(),
            decisions=decisions,
            put_bytes=etcd[_PUT_BYTES],
            database=etcd[_DATABASE],
            events=self._events,
            cpu=(controller_cpu, sum(cpu_seconds(fleet.pid) for fleet in self._fleets)),
        )


@contextlib.contextmanager
def training_jobs(plane: Plane, load: Load) -> Iterator[TrainingJobs]:
    """All jobs, when they train."""
    cluster = plane.cluster()
    folder = package_files.files("edl_workflows.core.jobs") / "crds"
    install(cluster, [file.read_text() for file in folder.iterdir()])
    (plane.folder / _EVENTS).touch()
    with ExitStack() as stack:
        processes = -(-load.jobs // MASTERS_A_PROCESS)
        fleets = [_start_fleet(stack, plane, (index, processes), load) for index in range(processes)]
        port = free_port()
        controller = None if load.alone else (start_controller(stack, plane, port), port)
        jobs = TrainingJobs(plane, fleets, controller)
        stack.callback(jobs.close)
        began = time.monotonic()
        create = _create_running if load.alone else _create
        with ThreadPoolExecutor(CREATING) as users:
            made = []
            for index in range(load.jobs):
                time.sleep(max(0.0, began + load.start_seconds * index / load.jobs - time.monotonic()))
                made.append(users.submit(create, cluster, index, load))
            for creation in made:
                creation.result()
        jobs.wait_until_train(load.jobs)
        print(f"{load.jobs} jobs train after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if not load.young:
            jobs.wait_until_steady(load.jobs)
            if load.alone:
                time.sleep(MOVED_SECONDS)
            else:
                jobs.wait_until_decided()
        yield jobs


def _create(cluster: Cluster, index: int, _load: Load) -> None:
    client.create(cluster, _job(index))


def _create_running(cluster: Cluster, index: int, load: Load) -> None:
    """With what the controller gives to a job that runs and has no pods."""
    job = _job(index)
    name = job["metadata"]["name"]
    state = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.state_config_map_name(name)}}
    client.create(cluster, state, NAMESPACE)
    client.create(cluster, job)
    status = {"phase": "Running", "progressPeriodSeconds": load.period}
    client.patch_status(cluster, ELASTIC_JOBS, name, status, NAMESPACE)


def _start_fleet(stack: ExitStack, plane: Plane, part: tuple[int, int], load: Load) -> Program:
    command = [sys.executable, "-m", "tests.benchmarks.scale.fleet", str(plane.kubeconfig(MASTERS))]
    command += [str(plane.folder / _EVENTS), "--part", f"{part[0]}/{part[1]}", "--waste", load.waste]
    command += ["--young"] if load.young else []
    command += ["--alone"] if load.alone else []
    return stack.enter_context(process(plane.folder, f"masters-{part[0]}", command))


def _job(index: int) -> dict[str, Any]:
    strategy, roles = KINDS[index % len(KINDS)]
    specs = {role: {"replicas": count, "template": TEMPLATE} for role, count in roles.items()}
    return {
        "apiVersion": names.API_VERSION,
        "kind": ELASTIC_JOBS.kind,
        "metadata": {"name": f"job-{index}", "namespace": NAMESPACE},
        "spec": {"distributionStrategy": strategy, "replicaSpecs": specs},
    }


def _is_steady(job: dict[str, Any], period: int) -> bool:
    status = job.get("status") or {}
    stage = (status.get("autoscaling") or {}).get("stage")
    known = status.get("progressPeriodSeconds") or PROGRESS_SECONDS
    return known == period and stage not in (None, OptimizerStage.CREATE)


def _scrape(url: str) -> Counter[str]:
    """The sums of a program's metrics over their labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value  # type: ignore[assignment]  # a float
    return sums
