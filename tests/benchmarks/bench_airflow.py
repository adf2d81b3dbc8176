"""What our provider costs Airflow: ``python -m tests.benchmarks.bench_airflow [--json]``.

(a) Parse: CPU seconds that a DAG file takes which imports our operators, over one that imports only Airflow.
Airflow's DAG processor parses each file in a forked process that has Airflow, and nothing of ours, imported:
so does this. (b) Waiting: 1,000 triggers in one process against the embedded API server: requests per minute
and waiting task while nothing changes, and the time from a status change to the trigger's event. (c) Logs:
100 deferred tasks with training logs in a real triggerer that is killed three times (`bench_airflow_logs`).
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource, RequestRecord
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.testing import ApiServerProcess, api_server
from tests.benchmarks import bench_airflow_logs
from tests.demo.airflow import settings
from tests.demo.processes import free_port

TURNS = 5
WAITS = 1_000
QUIET_SECONDS = 60.0
"""Long enough to see requests that are made now and then; watches are renewed every 5 to 10 minutes."""
WATCH_RENEWALS_A_MINUTE = 2 / 5
"""What a quiet minute may not show: a renewed watch is one request, at worst with a LIST before it, every 5
minutes."""
CHANGES = 200
CHANGES_A_SECOND = 20

PLAIN = """
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup
with DAG("plain", schedule=None):
    BaseOperator(task_id="t")
"""
OURS = """
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from edl_workflows.airflow.task_groups import checkpoint_migrate_restart
with DAG("ours", schedule=None):
    submit = SubmitElasticJobOperator(task_id="submit", manifest={})
    ElasticJobSensor(task_id="wait", name="mnist")
    checkpoint_migrate_restart(job="mnist", replicas=3)
"""

PARSE = """
import runpy, sys, time
import airflow.models.dagbag
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, TaskGroup
begun = time.process_time()
runpy.run_path(sys.argv[1])
print(time.process_time() - begun)
"""


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    case: str
    unit: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        """Whether the goal is."""
        return self.value <= self.goal


def parse() -> list[Row]:
    """(a) of the module."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.py" for name in ("plain", "ours")}
        files["plain"].write_text(PLAIN)
        files["ours"].write_text(OURS)
        taken: dict[str, list[float]] = {name: [] for name in files}
        for _turn in range(TURNS):
            for name, file in files.items():
                taken[name].append(_cpu_seconds(file))
    extra = min(taken["ours"]) - min(taken["plain"])
    return [Row("parse of a DAG file over Airflow's own", "CPU s", extra, 0.1)]


def _cpu_seconds(file: Path) -> float:
    """CPU seconds of one parse, in a process that has imported what the DAG processor's children have."""
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(file)], check=True, capture_output=True, text=True
    )
    return float(done.stdout.splitlines()[-1])


async def wait() -> list[Row]:
    """(b) of the module."""
    from edl_workflows.airflow import triggers

    with tempfile.TemporaryDirectory() as folder, api_server(Path(folder) / "api") as server:
        records: list[RequestRecord] = []
        cluster = _furnish(server)
        source = ClusterSource.of(cluster.observed_by(records.append))
        names = [f"job-{index}" for index in range(WAITS)]
        with ThreadPoolExecutor(8) as pool:
            uids = list(pool.map(lambda name: _create(cluster, name), names))
        fired: dict[str, float] = {}
        # The connection is given, so that requests can be counted.
        triggers._source = lambda connection: source
        waits = [
            asyncio.create_task(_await(cluster.namespace, name, uid, fired))
            for name, uid in zip(names, uids, strict=True)
        ]
        await asyncio.sleep(5)
        begun = len(records)
        await asyncio.sleep(QUIET_SECONDS)
        seen = (len(records) - begun) * 60 / QUIET_SECONDS
        changed = await _change(cluster, names[:CHANGES], fired)
        delays = sorted(fired[name] - changed[name] for name in changed)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    p99 = delays[int(len(delays) * 0.99)]
    return [
        Row("requests for 1,000 waits", "1/min/task", (seen + WATCH_RENEWALS_A_MINUTE) / WAITS, 0.01),
        Row("status change to event, p99", "s", p99, 0.5),
        Row("status change to event, median", "s", statistics.median(delays), 0.5),
    ]


async def _change(cluster: Cluster, names: list[str], fired: dict[str, float]) -> dict[str, float]:
    """Let jobs succeed one after the other, and wait for the events; when each was changed."""
    changed = {}
    loop = asyncio.get_running_loop()
    for name in names:
        changed[name] = await loop.run_in_executor(None, _succeed, cluster, name)
        await asyncio.sleep(1 / CHANGES_A_SECOND)
    deadline = time.monotonic() + 30
    while len(fired) < len(names) and time.monotonic() < deadline:  # noqa: ASYNC110 - a benchmark's pause
        await asyncio.sleep(0.1)
    assert len(fired) == len(names), f"{len(names) - len(fired)} events are missing"
    return changed


async def _await(namespace: str, name: str, uid: str, fired: dict[str, float]) -> None:
    """One trigger."""
    from edl_workflows.airflow import triggers

    goal = JobGoal.model_validate({"phases": ["Succeeded"]})
    handle = Handle(kind="ElasticJob", namespace=namespace, name=name, uid=uid, goal=goal)
    trigger = triggers.ElasticJobTrigger(handle=handle.model_dump(mode="json"), connection={})
    async for _event in trigger.run():
        fired[name] = time.monotonic()


def _furnish(server: ApiServerProcess) -> Cluster:
    cluster = server.cluster()
    folder = Path(__file__).resolve().parents[2] / "edl_workflows" / "core" / "jobs" / "crds"
    for file in folder.glob("*.yaml"):
        client.create(cluster, yaml.safe_load(file.read_text()))
    return cluster


def _create(cluster: Cluster, name: str) -> str:
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    manifest: dict[str, Any] = {
        "apiVersion": ELASTIC_JOBS.api_version,
        "kind": ELASTIC_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }
    return str(client.create(cluster, manifest)["metadata"]["uid"])


def _succeed(cluster: Cluster, name: str) -> float:
    """Returns when the change was sent: what the server took for it counts."""
    begun = time.monotonic()
    client.patch_status(cluster, ELASTIC_JOBS, name, {"phase": "Succeeded", "observedGeneration": 1})
    return begun


def follow_logs(folder: Path, tasks: int) -> list[Row]:
    """(c) of the module."""
    found = bench_airflow_logs.measure(folder, tasks)
    return [
        Row(f"lines lost, double or out of order, of {found.lines:,}", "lines", found.wrong, 0),
        Row(f"requests for {tasks} waits with logs", "1/min/task", found.requests, 0.1),
        Row("event loop late, median of a second", "s", found.late_median, 0.2),
        Row("event loop late, worst", "s", found.late_worst, 1),
    ]


def main() -> int:
    """Run all three; fail if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100, help="tasks with training logs; 0 leaves out (c)")
    parser.add_argument("--only-logs", action="store_true", help="only (c)")
    parser.add_argument("--json", action="store_true", help="machine-readable result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "dags").mkdir()
        os.environ |= settings(Path(home) / "home", Path(home) / "dags", free_port())
        os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
        rows = [] if options.only_logs else [*parse(), *asyncio.run(wait())]
        rows += follow_logs(Path(home), options.tasks) if options.tasks else []
    if options.json:
        print(json.dumps([asdict(row) | {"met": row.met} for row in rows]))
    else:
        for row in rows:
            print(
                f"{row.case:42}{row.value:12.5f} {row.unit:12} goal ≤ {row.goal:g}  "
                f"{'met' if row.met else 'MISSED'}"
            )
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
