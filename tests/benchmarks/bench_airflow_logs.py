"""Deferred tasks with training logs in one real triggerer, which is killed three times.

Each task has a job whose pod, a process in the embedded cluster, prints a numbered line a second. Nobody but
the triggerer works for the tasks: they are deferred in Airflow's database by this process, and there is no
controller and no scheduler of Airflow.
"""

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Scope
from tests import local_cluster
from tests.demo.processes import Child

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

KILLS = 3
MORE_LINES = 20
"""Of each task before the triggerer is killed, and again before the next time."""
WINDOW_SECONDS = 60.0
SETTLING_SECONDS = 15.0
"""From the first lines of each task until the window begins: a triggerer that starts lists the pods of all
tasks, which is no part of the steady state."""
DEADLINE_SECONDS = 1_200.0
DAG_ID = "bench_logs"
PROBE_VARIABLE = "EDL_BENCH_PROBE"
"""Environment variable of the triggerer: the file that `triggerer_probe` writes, a line of JSON a second."""
PROGRAM = """
import pathlib, sys, time
count = 0
while not pathlib.Path(sys.argv[1]).exists():
    print("line", count)
    count += 1
    time.sleep(1)
print("last", count)
"""
LINE = re.compile(rb'"timestamp": ?"([^"]+)".*"event": ?"\[worker-0\] (line|last) (\d+)"')


@dataclass(frozen=True)
class LogFigures:
    """What was measured.

    Attributes:
        lines: of training in the logs of all tasks.
        wrong: lines that are missing, double or out of order.
        requests: to the API server, a minute and task, in the last `WINDOW_SECONDS` before the jobs end.
        late_median, late_worst: of the event loop in that time: the worst of each second, in seconds.
    """

    lines: int
    wrong: int
    requests: float
    late_median: float
    late_worst: float


@dataclass
class Bench:
    """The cluster, Airflow's home, and the jobs, each with a run of the same name."""

    cluster: Cluster
    folder: Path
    env: dict[str, str]
    names: list[str]

    @property
    def end(self) -> Path:
        """The file that tells the programs to end."""
        return self.folder / "end"

    def create_job(self, name: str) -> str:
        """A job that runs, and its pod; the job's uid."""
        container = {
            "name": "main",
            "image": "local",
            "command": [sys.executable, "-S", "-E", "-u", "-c", PROGRAM, str(self.end)],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        }
        template = {"spec": {"containers": [container]}}
        job: dict[str, Any] = {
            "apiVersion": ELASTIC_JOBS.api_version,
            "kind": ELASTIC_JOBS.kind,
            "metadata": {"name": name},
            "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
        }
        uid = str(client.create(self.cluster, job)["metadata"]["uid"])
        self.set_phase(name, "Running")
        labels = {
            names.JOB_LABEL: name,
            names.REPLICA_TYPE_LABEL: "worker",
            names.REPLICA_INDEX_LABEL: "0",
            names.RANK_INDEX_LABEL: "0",
        }
        metadata = {"name": f"{name}-worker-0", "labels": labels}
        spec = {**template["spec"], "restartPolicy": "Never"}
        client.create(self.cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return uid

    def set_phase(self, name: str, phase: str) -> None:
        """What the controller would write."""
        client.patch_status(self.cluster, ELASTIC_JOBS, name, {"phase": phase, "observedGeneration": 1})

    def defer(self) -> None:
        """A run for each job, whose task is deferred with the trigger of the job."""
        from airflow.models.trigger import Trigger
        from airflow.sdk import DAG
        from airflow.utils.session import create_session

        from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
        from tests.airflow import dags

        with DAG(DAG_ID, schedule=None) as dag:
            SubmitElasticJobOperator(task_id="train", manifest={}, deferrable=True, logs="chief")
        dags.write(dag)
        for name in self.names:
            dags.create_run(dag, name)
            uid = self.create_job(name)
            with create_session() as session:
                [ti] = dags.find_run(DAG_ID, name, session).get_task_instances(session=session)
                trigger = Trigger.from_object(self._trigger(name, uid))
                session.add(trigger)
                session.flush()
                ti.state, ti.try_number, ti.trigger_id = "deferred", 1, trigger.id
                ti.next_method, ti.next_kwargs = "execute_complete", {}

    def _trigger(self, name: str, uid: str) -> "BaseTrigger":
        from tests.benchmarks.triggerer_probe import ObservedTrigger

        goal = JobGoal.model_validate({"phases": ["Succeeded"]})
        handle = Handle(kind="ElasticJob", namespace=self.cluster.namespace, name=name, uid=uid, goal=goal)
        return ObservedTrigger(handle=handle.model_dump(mode="json"), connection={}, logs={"pods": "chief"})

    def deferred(self) -> int:
        """How many tasks still wait."""
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import func, select

        count = select(func.count()).where(TaskInstance.dag_id == DAG_ID, TaskInstance.state == "deferred")
        with create_session() as session:
            return int(session.scalar(count) or 0)

    def lines_of(self, name: str) -> list[tuple[str, int]]:
        """The lines of training in the log of a job's task, in the order of their time."""
        files = self.folder.glob(f"home/logs/dag_id={DAG_ID}/run_id={name}/task_id=train/attempt=1.log*")
        found = [match for file in files for raw in file.open("rb") if (match := LINE.search(raw))]
        found.sort(key=lambda match: match[1])
        return [(match[2].decode(), int(match[3])) for match in found]

    @contextmanager
    def triggerer(self) -> Iterator[None]:
        """One triggerer, killed when the context ends."""
        command = [sys.executable, "-m", "airflow", "triggerer"]
        child = Child("triggerer", command, self.env, self.folder / "triggerer.log")
        try:
            yield
            child.check()
        finally:
            child._signal(signal.SIGKILL)
            child.reap()


def measure(folder: Path, count: int) -> LogFigures:
    """Run the benchmark.

    Args:
        folder: an empty folder; ``AIRFLOW_HOME`` is its ``home``.
        count: number of tasks.
    """
    with local_cluster.cluster(folder / "cluster") as local:
        bench = Bench(local.client(), folder, _environment(folder, local.kubeconfig), _names(count))
        _create_database()
        bench.defer()
        for _ in range(KILLS):
            with bench.triggerer():
                _await_lines(bench)
        with bench.triggerer():
            _await_lines(bench)
            time.sleep(SETTLING_SECONDS + WINDOW_SECONDS)
            window = _probed(folder / "probe.jsonl")
            bench.end.touch()
            _await(lambda: _ended_pods(bench) == count, "the end of the pods")
            for name in bench.names:
                bench.set_phase(name, "Succeeded")
            _await(lambda: bench.deferred() == 0, "the events of the triggers")
        lines = {name: bench.lines_of(name) for name in bench.names}
    late = sorted(one["late"] for one in window)
    minutes = (window[-1]["time"] - window[0]["time"]) / 60
    return LogFigures(
        lines=sum(map(len, lines.values())),
        wrong=sum(map(_count_wrong, lines.values())),
        requests=(window[-1]["requests"] - window[0]["requests"]) / minutes / count,
        late_median=late[len(late) // 2],
        late_worst=late[-1],
    )


def _names(count: int) -> list[str]:
    return [f"train-{number}" for number in range(count)]


def _environment(folder: Path, kubeconfig: Path) -> dict[str, str]:
    """Of the triggerer."""
    connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(kubeconfig)}}
    return {
        **os.environ,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        PROBE_VARIABLE: str(folder / "probe.jsonl"),
    }


def _create_database() -> None:
    from airflow.utils.db import initdb

    initdb()


def _await_lines(bench: Bench) -> None:
    before = {name: len(bench.lines_of(name)) for name in bench.names}
    _await(
        lambda: all(len(bench.lines_of(name)) >= before[name] + MORE_LINES for name in bench.names),
        "more lines of each task",
    )


def _ended_pods(bench: Bench) -> int:
    found = client.list_objects(bench.cluster, Scope(PODS, bench.cluster.namespace)).items
    return Counter((pod.get("status") or {}).get("phase") for pod in found)["Succeeded"]


def _await(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:.0f} s: {what}"
        time.sleep(2)


def _probed(file: Path) -> list[dict[str, Any]]:
    """The last `WINDOW_SECONDS` of the newest triggerer."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    newest = [one for one in found if one["process"] == found[-1]["process"]]
    return [one for one in newest if one["time"] >= newest[-1]["time"] - WINDOW_SECONDS]


def _count_wrong(lines: list[tuple[str, int]]) -> int:
    """Lines at another place than theirs, and those that are missing."""
    last = max((number for _, number in lines), default=0)
    wanted = [*(("line", number) for number in range(last)), ("last", last)]
    return sum(one != other for one, other in zip(lines, wanted, strict=False)) + abs(
        len(lines) - len(wanted)
    )
