"""Kills, clears, lost workers and restarts under Airflow's real services: no job is orphaned, none that should live is cancelled.

Every case is a DAG of its own; all runs begin together, so that the minutes of waiting are spent once.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.demo.airflow import Airflow
from edl_workflows.demo.processes import Child
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import StandIn, jobs, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.timeout(900),
]

CASES = (
    "deferred-killed",
    "deferred-marked-success",
    "deferred-cleared",
    "deferred-out-of-time",
    "deferred-moved",
    "sync-killed",
    "sync-cleared",
    "sync-lost",
)
DAGS = f"""
from datetime import timedelta
from airflow.sdk import DAG
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator

TEMPLATE = {{"spec": {{"containers": [{{"name": "main", "image": "train:1"}}]}}}}
MANIFEST = {{
    "apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob",
    "spec": {{"replicaSpecs": {{"worker": {{"replicas": 1, "template": TEMPLATE}}}}}},
}}

for case in {CASES!r}:
    with DAG(case, schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="train", manifest=MANIFEST, deferrable=case.startswith("deferred"),
            completion_timeout=timedelta(seconds=20) if case.endswith("time") else None,
            retries=0 if case.endswith("time") else 1, retry_delay=timedelta(seconds=1),
        )
    globals()[case.replace("-", "_")] = dag
"""
SECONDS = 240.0
"""For a state to come about: a few seconds each on an idle machine, a minute and more on a busy one."""


@dataclass
class Live:
    """Airflow's services, the cluster and the runs."""

    airflow: Airflow
    cluster: Cluster
    stand_in: StandIn
    runs: dict[str, str]
    logs: Path

    def task(self, case: str) -> dict[str, Any]:
        """The case's task instance."""
        (found,) = self.airflow.tasks(case, self.runs[case])
        return found

    def job(self, case: str) -> Object | None:
        """The case's job."""
        return next((job for name, job in jobs(self.cluster).items() if name.startswith(case)), None)

    def await_state(self, case: str, *states: str, attempt: int = 1) -> None:
        """Wait until the task is in one of these states in this attempt."""
        self.await_that(
            lambda: self.task(case)["state"] in states and self.task(case)["try_number"] == attempt,
            lambda: f"{case} {states} in attempt {attempt}; it is {self.task(case)}",
        )

    def await_that(self, holds: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not in time: {what()}"
            self.airflow.check()
            time.sleep(0.5)

    def begun(self, case: str) -> str:
        """Wait until the task waits for its job; the job's uid."""
        state = "deferred" if case.startswith("deferred") else "running"
        self.await_state(case, state)
        self.await_that(lambda: self.job(case) is not None, lambda: f"a job of {case}")
        job = self.job(case)
        assert job is not None
        if case.startswith("deferred"):
            # Killed before its triggerer has begun with it, a trigger is never told (docs/explanation/critiques.md).
            log = f"dag_id={case}/**/*.trigger.*"
            self.await_that(lambda: any(self.logs.glob(log)), lambda: f"a trigger of {case}")
        return str(job["metadata"]["uid"])

    def mark(self, case: str, state: str) -> None:
        """As a user does on the task's page."""
        path = f"/dags/{case}/dagRuns/{self.runs[case]}/taskInstances/train"
        self.airflow.call("PATCH", path, {"new_state": state})

    def clear(self, case: str) -> None:
        """As a user does on the task's page."""
        body = {"dry_run": False, "dag_run_id": self.runs[case], "task_ids": ["train"], "only_failed": False}
        self.airflow.call("POST", f"/dags/{case}/clearTaskInstances", body | {"reset_dag_runs": True})

    def succeeds_with(self, case: str, uid: str, attempt: int) -> None:
        """The job lives on; when it ends, the attempt succeeds with it."""
        job = self.job(case)
        assert job is not None, f"the job of {case} was cancelled"
        assert job["metadata"]["uid"] == uid
        assert "deletionTimestamp" not in job["metadata"]
        self.stand_in.end(job["metadata"]["name"])
        self.await_state(case, "success", attempt=attempt)


@pytest.fixture(scope="module")
def live(server: ApiServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Everything started, all runs triggered."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "dags").mkdir()
    (folder / "dags" / "cases.py").write_text(DAGS)
    handle = server.cluster()
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "live-"}}
    cluster = handle.in_namespace(client.create(handle, manifest)["metadata"]["name"])
    extra = {"kube_config_path": str(server.kubeconfig), "namespace": cluster.namespace}
    env = {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": extra}),
        "AIRFLOW__CORE__PARALLELISM": "4",
    }
    with running(StandIn(cluster)) as stand_in, Airflow(folder / "home", folder / "dags", env) as airflow:
        for case in CASES:
            airflow.await_dag(case)
        runs = {case: airflow.trigger(case, {}) for case in CASES}
        yield Live(airflow, cluster, stand_in, runs, folder / "home" / "logs")


@pytest.mark.parametrize("case", ["deferred-killed", "deferred-marked-success", "sync-killed"])
def test_a_killed_task_takes_its_job_along(live: Live, case: str) -> None:
    """In the triggerer as in the worker; a task that a user declares successful is killed as well."""
    live.begun(case)

    live.mark(case, "success" if case.endswith("success") else "failed")

    live.await_that(lambda: live.job(case) is None, lambda: f"{case}: the job is orphaned")


@pytest.mark.parametrize("case", ["deferred-cleared", "sync-cleared"])
def test_a_cleared_task_goes_on_with_its_job(live: Live, case: str) -> None:
    """Airflow kills the first attempt after the second may have begun; the job outlives that."""
    uid = live.begun(case)

    live.clear(case)

    live.await_state(case, "deferred" if case.startswith("deferred") else "running", attempt=2)
    time.sleep(8)  # on_kill of the first attempt comes seconds later
    live.succeeds_with(case, uid, attempt=2)


def test_a_lost_worker_is_replaced_and_the_job_goes_on(live: Live) -> None:
    """The task's process dies without a word; the retry finds the job."""
    uid = live.begun("sync-lost")

    os.kill(live.task("sync-lost")["pid"], signal.SIGKILL)

    live.await_state("sync-lost", "running", attempt=2)
    live.succeeds_with("sync-lost", uid, attempt=2)


def test_a_deferred_task_that_is_out_of_time_leaves_nothing(live: Live) -> None:
    """The trigger says so, and the worker cancels."""
    live.await_state("deferred-out-of-time", "failed")

    assert live.job("deferred-out-of-time") is None


def test_a_restart_of_the_triggerer_passes_unnoticed(live: Live) -> None:
    """The job lives, and the task goes on waiting in the new triggerer."""
    uid = live.begun("deferred-moved")
    children = live.airflow._children
    old = next(child for child in children if child.name == "triggerer")

    old.terminate()
    old.reap()
    log = Path(old.log)
    children[children.index(old)] = Child(
        "triggerer", live.airflow._command("triggerer"), live.airflow._env, log
    )

    time.sleep(10)  # long enough for a wrong on_kill
    live.succeeds_with("deferred-moved", uid, attempt=1)
