"""What running jobs cost the API server, etcd and the controller.

The jobs have real masters (`fleet`) and the real controller, on a control plane with KWOK's nodes (`plane`).
Once all train, some are waited for, and then everything is counted for a while.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources as package_files
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from edl_workflows.testing import free_port
from tests.benchmarks.cluster.audit import AuditLog, Call
from tests.benchmarks.cluster.load import TEMPLATE, cpu_seconds, install, start_controller
from tests.benchmarks.cluster.plane import CONTROLLER, MASTERS, Binaries, Plane, process, running_plane
from tests.benchmarks.scale.waiters import StepTimes, measure_delays, wait_for_steps

NAMESPACE = "default"
KINDS: tuple[tuple[str, dict[str, int]], ...] = (
    ("ParameterServerStrategy", {names.PS_TYPE: 1, names.WORKER_TYPE: 1}),
    ("AllreduceStrategy", {names.WORKER_TYPE: 2}),
)
"""Of the jobs, in turn: strategy and nodes."""
MASTERS_A_PROCESS = 500
"""A master needs about a thousandth of a core."""
STARTING = 3.0
"""Seconds within which a job may start, on average; it takes a tenth of that."""
SETTLE_SECONDS = 5.0
"""Seconds after the last event of a job until only its progress is written."""
_WRITES = ("create", "update", "patch", "delete")
_STATUS, _STATE = "elasticjobs/status", "configmaps"
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
        waiters: so many jobs are waited for before, `rounds` times each; a young job is not.
    """

    jobs: int
    seconds: float
    young: bool = False
    waiters: int = 36
    rounds: int = 3


@dataclass(frozen=True)
class Cost:
    """What the jobs cost.

    Attributes:
        counts: a job and minute, by name; they depend on the programs and not on the machine.
        writes: of all masters, a second and job.
        megabytes: put into etcd, a minute.
        database: MiB of etcd's file at the end.
        controller_cores, masters_cores: CPU of these processes.
        api_seconds: p99 of the API server's answers, without watches.
        delays: seconds from a step to the waiter that waits for it: p99 and median; None for none.
    """

    counts: dict[str, float]
    writes: float
    megabytes: float
    database: float
    controller_cores: float
    masters_cores: float
    api_seconds: float
    delays: tuple[float, float] | None


def measure(load: Load, binaries: Binaries) -> Cost:
    """Run the load on a control plane of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_plane(binaries, Path(folder)) as plane,
        _running_jobs(plane, load) as jobs,
    ):
        delays = _measure_waiters(plane, jobs, load) if load.waiters and not load.young else []
        if not load.young:
            time.sleep(SETTLE_SECONDS)
        log, before = AuditLog(plane.audit_log), jobs.read_counters()
        time.sleep(load.seconds)
        after, calls = jobs.read_counters(), log.news()
        jobs.check()
        return _compute_cost(load, calls, before, after, delays)


@dataclass(frozen=True)
class _Counters:
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


class _Jobs:
    """The jobs that train, their masters and their controller."""

    def __init__(self, plane: Plane, fleets: list[Program], controller: Program, port: int) -> None:
        self._plane = plane
        self._fleets, self._controller, self._port = fleets, controller, port
        self._file = plane.folder / _EVENTS
        self._events = 0
        self._watch = Informer(ClusterSource.of(plane.cluster()), Scope(ELASTIC_JOBS, NAMESPACE))
        self._watch.on_change(self._count)
        self._watch.start()
        self._watch.wait_synced(60)

    def close(self) -> None:
        self._watch.stop()

    def _count(self, _change: ObjectChange) -> None:
        self._events += 1

    def check(self) -> None:
        """Raise RuntimeError if a program has ended."""
        fleets = [(f"masters-{index}", fleet) for index, fleet in enumerate(self._fleets)]
        for name, program in (*fleets, ("controller", self._controller)):
            if program.poll() is not None:
                text = (self._plane.folder / f"{name}.log").read_text()
                raise RuntimeError(f"{name} ended with {program.returncode}: {text[-4000:]}")

    def wait_until_all_train(self, count: int) -> None:
        """Wait for the first step of each job."""
        deadline = time.monotonic() + 60 + STARTING * count
        while (training := len(self.read_steps("trains"))) < count:
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{training} of {count} jobs train")
            time.sleep(0.5)

    def read_steps(self, kind: str) -> StepTimes:
        """When each job's first step ("trains"), or each awaited step ("step"), was reported."""
        steps = (event for event in self._read_events() if event["event"] == kind)
        return {(event["job"], event["step"]): event["time"] for event in steps}

    def _read_events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self._file.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    def read_counters(self) -> _Counters:
        etcd = _scrape(f"{self._plane.etcd}/metrics")
        return _Counters(
            time=time.monotonic(),
            decisions=_scrape(f"http://127.0.0.1:{self._port}/metrics")[_DECISIONS],
            put_bytes=etcd[_PUT_BYTES],
            database=etcd[_DATABASE],
            events=self._events,
            cpu=(cpu_seconds(self._controller.pid), sum(cpu_seconds(fleet.pid) for fleet in self._fleets)),
        )


@contextlib.contextmanager
def _running_jobs(plane: Plane, load: Load) -> Iterator[_Jobs]:
    """All jobs, when they train."""
    cluster = plane.cluster()
    folder = package_files.files("edl_workflows.core.jobs") / "crds"
    install(cluster, [file.read_text() for file in folder.iterdir()])
    (plane.folder / _EVENTS).touch()
    with ExitStack() as stack:
        processes = -(-load.jobs // MASTERS_A_PROCESS)
        fleets = [_start_fleet(stack, plane, (index, processes), load) for index in range(processes)]
        port = free_port()
        jobs = _Jobs(plane, fleets, start_controller(stack, plane, port), port)
        stack.callback(jobs.close)
        with ThreadPoolExecutor(4) as users:
            list(users.map(lambda index: client.create(cluster, _job(index)), range(load.jobs)))
        jobs.wait_until_all_train(load.jobs)
        yield jobs


def _start_fleet(stack: ExitStack, plane: Plane, part: tuple[int, int], load: Load) -> Program:
    command = [sys.executable, "-m", "tests.benchmarks.scale.fleet", str(plane.kubeconfig(MASTERS))]
    command += [str(plane.folder / _EVENTS), "--part", f"{part[0]}/{part[1]}"]
    command += ["--young"] if load.young else []
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


def _measure_waiters(plane: Plane, jobs: _Jobs, load: Load) -> list[float]:
    cluster: Cluster = plane.cluster()
    first_steps = dict(list(jobs.read_steps("trains").items())[: load.waiters])
    learned = wait_for_steps(cluster, first_steps, load.rounds)
    jobs.check()
    return measure_delays(jobs.read_steps("step"), learned)


def _scrape(url: str) -> Counter[str]:
    """The sums of a program's metrics over their labels."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += sample.value  # type: ignore[assignment]  # a float
    return sums


def _compute_cost(
    load: Load, calls: list[Call], before: _Counters, after: _Counters, delays: list[float]
) -> Cost:
    seconds = after.time - before.time
    share = load.jobs * seconds / 60
    of_masters = [call for call in calls if call.user == MASTERS]
    of_controller = [call for call in calls if call.user == CONTROLLER]
    written = Counter(call.resource for call in of_masters if call.verb in _WRITES)
    put = after.put_bytes - before.put_bytes
    counts = {
        "status writes": written[_STATUS],
        "state writes": written[_STATE],
        "other writes of the master": sum(written.values()) - written[_STATUS] - written[_STATE],
        "kilobytes": put / 1000,
        "decisions": after.decisions - before.decisions,
        "requests of the controller": len(of_controller),
        "watch events of a waiter": after.events - before.events,
    }
    answered = sorted(call.seconds for call in calls if call.verb != "watch")
    controller, masters = (end - begin for begin, end in zip(before.cpu, after.cpu, strict=True))
    return Cost(
        counts={name: round(count / share, 3) for name, count in counts.items()},
        writes=round(sum(written.values()) / load.jobs / seconds, 4),
        megabytes=round(put / 1e6 / (seconds / 60), 2),
        database=round(after.database / 2**20, 1),
        controller_cores=round(controller / seconds, 3),
        masters_cores=round(masters / seconds, 3),
        api_seconds=round(_percentile(answered, 99), 4),
        delays=(round(_percentile(delays, 99), 3), round(statistics.median(delays), 3)) if delays else None,
    )


def _percentile(numbers: list[float], percent: int) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
