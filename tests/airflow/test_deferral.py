"""What an operator does when Airflow itself ends its deferral, without an event of the trigger."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edl_workflows.airflow.hooks import kills
from edl_workflows.airflow.hooks.airflow_versions import TaskDeferralError, TaskDeferred
from edl_workflows.core.exceptions import JobDisappearedError, JobFailedError, StageTimeoutError
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow.support import IN_AIRFLOW, elastic_job, jobs

pytestmark = IN_AIRFLOW


@dataclass
class TaskInstance:
    """What a worker knows of the attempt."""

    try_number: int = 1
    max_tries: int = 1
    dag_id: str = "dag"
    run_id: str = "run"
    task_id: str = "task"
    map_index: int = -1
    start_date: datetime = field(default_factory=lambda: datetime.now(UTC))

    def xcom_push(self, key: str, value: Any) -> None:
        """Nobody reads it here."""


@dataclass
class Store:
    """Airflow's task state store: JSON that survives attempts."""

    values: dict[str, str] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """None if it was never set."""
        return json.loads(self.values.get(key, "null"))

    def set(self, key: str, value: Any) -> None:
        """As JSON."""
        self.values[key] = json.dumps(value)


def context(store: Store, **attempt: Any) -> Any:
    """Of one attempt."""
    return {"ti": TaskInstance(**attempt), "task_state_store": store, "outlet_events": {}}


def operator(**arguments: Any) -> SubmitElasticJobOperator:
    """As a worker makes it anew for each leg of the task."""
    return SubmitElasticJobOperator(
        task_id="task", manifest=elastic_job("mnist"), deferrable=True, retries=1, **arguments
    )


def deferred(store: Store, **arguments: Any) -> TaskDeferred:
    """The first leg."""
    with pytest.raises(TaskDeferred) as raised:
        operator(**arguments).execute(context(store))
    return raised.value


def test_the_deadline_is_the_triggers_and_airflows_comes_after_it(connection: None, cluster: Cluster) -> None:
    """The trigger's deadline counts from the task's start, and Airflow's own time-out comes after it. The
    shorter time-out counts."""
    limits = {"completion_timeout": timedelta(hours=1), "execution_timeout": timedelta(minutes=10)}

    left = deferred(Store(), **limits)

    assert left.trigger.serialize()[1]["deadline"] == pytest.approx(time.time() + 600, abs=30)
    assert left.timeout.total_seconds() == pytest.approx(660, abs=30)


@pytest.mark.parametrize(("timeout", "execution_timeout"), [(3600, 600), (600, 3600), (600, None)])
def test_the_smaller_limit_of_a_sensor_counts(
    connection: None, cluster: Cluster, timeout: float, execution_timeout: float | None
) -> None:
    """Airflow does not apply ``execution_timeout`` while a task is deferred, so the trigger does."""
    limit = None if execution_timeout is None else timedelta(seconds=execution_timeout)
    client.create(cluster, elastic_job("mnist"))
    sensor = ElasticJobSensor(
        task_id="task", name="mnist", deferrable=True, timeout=timeout, execution_timeout=limit
    )

    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context(Store()))

    assert raised.value.trigger.serialize()[1]["deadline"] == pytest.approx(time.time() + 600, abs=30)
    assert raised.value.timeout is not None
    assert raised.value.timeout.total_seconds() == pytest.approx(660, abs=30)


def test_without_a_limit_there_is_none(connection: None, cluster: Cluster) -> None:
    """Without a limit there is no time-out, since training may take weeks."""
    left = deferred(Store())

    assert left.trigger.serialize()[1]["deadline"] is None
    assert left.timeout is None


def test_airflows_timeout_cancels(connection: None, cluster: Cluster) -> None:
    """If the task's time-out passed while no triggerer ran, the worker that resumes the task cancels
    the job."""
    store = Store()
    deferred(store)

    with pytest.raises(StageTimeoutError, match="mnist"):
        operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context(store))
    assert not jobs(cluster)


def test_a_job_that_succeeded_while_no_triggerer_ran(connection: None, cluster: Cluster) -> None:
    """The task succeeds with the job's result, although no triggerer watched the job."""
    store = Store()
    deferred(store)
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Succeeded"})

    told = operator().resume_execution("__fail__", {"error": "Trigger timeout"}, context(store))

    assert told["phase"] == "Succeeded"


def test_the_event_of_an_earlier_attempt_is_not_taken(
    connection: None, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow 3.0 resumes a retry with the event of the attempt before it. The retry begins anew: it replaces
    the failed job, and defers."""
    store = Store()
    first = deferred(store).trigger
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Failed"})
    event = asyncio.run(anext(first.run())).payload

    with pytest.raises(JobFailedError):
        operator().execute_complete(context(store), event)
    with pytest.raises(TaskDeferred):
        operator().execute_complete(context(store, try_number=2), event)
    (job,) = jobs(cluster)
    assert "status" not in job


@pytest.mark.parametrize(("state", "lives"), [("failed", False), ("running", True)])
def test_a_kill_before_the_job_was_made(
    connection: None, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, state: str, lives: bool
) -> None:
    """After Airflow's signal handler has returned, the task runs on for some seconds. A job that it then
    creates is deleted, unless the task's state says that it still runs."""
    monkeypatch.setattr(kills, "task_state", lambda _ti: state)
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: "running")
    task = operator()
    task.on_kill()

    with pytest.raises((TaskDeferred, JobDisappearedError)):
        task.execute(context(Store()))
    assert ("mnist" in jobs(cluster)) is lives


@pytest.mark.parametrize(
    ("attempt", "lives"), [(1, True), (2, False)], ids=["retries are left", "last attempt"]
)
def test_an_accident_after_the_job_was_made(
    connection: None, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, attempt: int, lives: bool
) -> None:
    """If the task fails after it has created the job, the next attempt continues with the job. Without a next
    attempt the job is deleted."""
    store = Store()
    monkeypatch.setattr(store, "set", lambda _key, _value: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        operator().execute(context(store, try_number=attempt))
    assert ("mnist" in jobs(cluster)) is lives


@pytest.mark.parametrize(
    ("attempt", "lives"), [(1, True), (2, False)], ids=["retries are left", "last attempt"]
)
def test_a_trigger_that_crashed(connection: None, cluster: Cluster, attempt: int, lives: bool) -> None:
    """If a trigger crashes, the next attempt continues with the job. Without a next attempt the job is
    cancelled."""
    store = Store()
    for number in range(1, attempt + 1):
        with pytest.raises(TaskDeferred):
            operator().execute(context(store, try_number=number))

    with pytest.raises(TaskDeferralError):
        operator().resume_execution(
            "__fail__", {"error": "Trigger failure"}, context(store, try_number=attempt)
        )
    assert ("mnist" in jobs(cluster)) is lives


def test_state_of_another_version_is_no_obstacle(connection: None, cluster: Cluster) -> None:
    """If the stored state has the format of another version, the deterministic name still finds the job."""
    store = Store()
    deferred(store)
    uid = jobs(cluster)["mnist"]["metadata"]["uid"]
    store.set("edl_stage", {"handle": {"shape": "of tomorrow"}, "delivered": False})

    with pytest.raises(TaskDeferred):
        operator().execute(context(store, try_number=2))
    assert jobs(cluster)["mnist"]["metadata"]["uid"] == uid
