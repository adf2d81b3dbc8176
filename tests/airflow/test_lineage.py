"""What OpenLineage is told of tasks and of their jobs, by Airflow's provider and a transport that writes a
file."""

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from airflow.listeners.listener import get_listener_manager as core_listeners
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
from airflow.sdk import DAG
from packaging.version import Version

from edl_workflows.airflow.hooks import kills
from edl_workflows.airflow.task_groups import elastic_job as job_group
from edl_workflows.core.kubernetes.names import DATA_ANNOTATION
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import CheckpointJobOperator, DeleteJobOperator
from edl_workflows.pipelines.stages import driver
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.airflow import dags
from tests.airflow.lineage_events import read_events
from tests.airflow.support import IN_AIRFLOW, StandIn, elastic_job, jobs
from tests.airflow.test_deferral import Store, TaskInstance, deferred

try:
    from airflow.sdk.listener import get_listener_manager
except ImportError:  # before 3.2: one manager for all
    get_listener_manager = core_listeners  # type: ignore[assignment]

PROVIDER = Version(version("apache-airflow-providers-openlineage"))
pytestmark = [
    *IN_AIRFLOW,
    pytest.mark.skipif(Version("2.20") > PROVIDER, reason="Airflow 3.0 pins a provider that is too old"),
]

MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
DATA = [("s3://data", "digits/train"), ("file", "/mnt/digits")]

Read = Callable[[str], list[dict[str, Any]]]
"""The events of one OpenLineage job, in order."""


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    """Airflow's OpenLineage provider is turned on for tasks. Both managers of listeners have loaded plugins
    before: a scheduler's listener would start a pool of processes."""
    manager = get_listener_manager()
    core_listeners()
    file = tmp_path / "events"
    transport = {"type": "file", "log_file_path": str(file), "append": False}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "test")
    _forget_settings()
    listener = get_openlineage_listener()
    monkeypatch.setattr(listener, "adapter", OpenLineageAdapter())
    manager.add_listener(listener)  # type: ignore[no-untyped-call]
    yield lambda name: [event for event in read_events(file) if event["job"]["name"] == name]
    manager.pm.unregister(listener)
    # Where one manager serves all, as before 3.2, the listener tells of runs of DAGs by a pool of processes.
    if (pool := listener._executor) is not None:
        pool.shutdown()
        listener._executor = None
    monkeypatch.undo()
    _forget_settings()


def _forget_settings() -> None:
    for found in vars(conf).values():
        if hasattr(found, "cache_clear"):
            found.cache_clear()


def with_data(ends: str) -> dict[str, Any]:
    """A job whose manifest names its data."""
    job = elastic_job("mnist", ends)
    job["metadata"]["annotations"][DATA_ANNOTATION] = "s3://key:secret@data/digits/train, /mnt/digits"
    return job


def types_of(found: list[dict[str, Any]]) -> list[str]:
    """The types of events."""
    return [event["eventType"] for event in found]


def named(data_sets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Namespaces and names of data sets."""
    return [(one["namespace"], one["name"]) for one in data_sets]


@MODES
def test_a_job_is_a_run_below_its_tasks_run(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn, events: Read
) -> None:
    """The job's run has the job's uid as its id. Task and job name the data that was read, without secrets of
    its URI, and the checkpoint that was written."""
    with DAG(f"lineage-{deferrable}", schedule=None) as dag:
        SubmitElasticJobOperator(task_id="train", manifest=with_data("Succeeded"), deferrable=deferrable)

    dags.run(dag)

    task, job = events(f"{dag.dag_id}.train"), events(f"{dag.dag_id}.train.elasticjob")
    uid = jobs(cluster)["mnist"]["metadata"]["uid"]
    assert types_of(job) == ["START", "COMPLETE"]
    assert {event["run"]["runId"] for event in job} == {uid}
    parents = [event["run"]["facets"]["parent"] for event in job]
    assert {parent["run"]["runId"] for parent in parents} == {task[0]["run"]["runId"]}
    assert {parent["job"]["name"] for parent in parents} == {f"{dag.dag_id}.train"}
    assert {parent["root"]["job"]["name"] for parent in parents} == {dag.dag_id}
    for event in (*task, *job):
        assert named(event["inputs"]) == DATA
        assert named(event["outputs"]) == [("file", "/ck/100")] * (event["eventType"] == "COMPLETE")
    version = job[-1]["outputs"][0]["facets"]["version"]
    assert version["datasetVersion"] == "step 100"
    assert (types_of(task)[0], types_of(task)[-1]) == ("START", "COMPLETE")
    assert len({event["run"]["runId"] for event in task}) == 1


@MODES
def test_a_failed_job_says_why(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn, events: Read
) -> None:
    """The run of a failed job has the job's message, and the job of the retry is another run."""
    ends = "{{ 'Failed' if ti.try_number == 1 else 'Succeeded' }}"
    with DAG(f"lineage-failed-{deferrable}", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="train",
            manifest=elastic_job("mnist", ends),
            deferrable=deferrable,
            retries=1,
            retry_delay=timedelta(0),
        )

    dags.run(dag)

    task, job = events(f"{dag.dag_id}.train"), events(f"{dag.dag_id}.train.elasticjob")
    assert types_of(job) == ["START", "FAIL", "START", "COMPLETE"]
    runs = [event["run"]["runId"] for event in job]
    assert (runs[0], runs[2]) == (runs[1], runs[3])
    assert runs[0] != runs[2]
    failed = next(event for event in task if event["eventType"] == "FAIL")
    for event in (failed, job[1]):
        assert "the test ended it" in event["run"]["facets"]["errorMessage"]["message"]


def test_an_attempt_that_continues_with_a_job_continues_its_run(
    connection: None,
    cluster: Cluster,
    stand_in: StandIn,
    events: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run of the job stays the same, below the run of the attempt that waits for it."""
    wait = driver.wait_for_goal
    lost: list[str] = []

    def lose_the_first(*args: Any, **kwargs: Any) -> Any:
        if not lost:
            lost.append("lost")
            raise OSError("the worker's disk is full")
        stand_in.end("mnist")
        return wait(*args, **kwargs)

    monkeypatch.setattr(driver, "wait_for_goal", lose_the_first)
    with DAG("lineage-again", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="train",
            manifest=elastic_job("mnist"),
            deferrable=False,
            retries=1,
            retry_delay=timedelta(0),
        )

    dags.run(dag)

    job = events("lineage-again.train.elasticjob")
    assert types_of(job) == ["START", "RUNNING", "COMPLETE"]
    assert {event["run"]["runId"] for event in job} == {jobs(cluster)["mnist"]["metadata"]["uid"]}
    first, second, last = (event["run"]["facets"]["parent"]["run"]["runId"] for event in job)
    assert first != second == last


def test_a_cleared_task_continues_the_run_of_a_job_that_it_did_not_wait_for(
    connection: None, cluster: Cluster, stand_in: StandIn, events: Read
) -> None:
    """The job still runs when its task is cleared: its run goes on, and does not start again."""
    with DAG("lineage-cleared", schedule=None) as dag:
        SubmitElasticJobOperator(task_id="train", manifest=elastic_job("mnist"), wait_for_completion=False)
    run = dags.begin(dag, "train")
    dags.clear(dag, run, "train")

    states = dags.go_on(dag, run)

    assert states["run"] == "success"
    job = events("lineage-cleared.train.elasticjob")
    assert types_of(job) == ["START", "RUNNING"]
    assert {event["run"]["runId"] for event in job} == {jobs(cluster)["mnist"]["metadata"]["uid"]}


def test_the_run_of_a_job_that_is_cancelled_ends(
    connection: None, cluster: Cluster, stand_in: StandIn, events: Read
) -> None:
    """The run of a cancelled job ends, whether a time-out, the teardown of a group or a task cancelled it."""
    client.create(cluster, elastic_job("by-hand"))
    with DAG("lineage-cancelled", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="late",
            manifest=elastic_job("late"),
            completion_timeout=timedelta(seconds=2),
            deferrable=True,
        )
        with job_group("group", manifest=elastic_job("grouped"), deferrable=False) as job:
            job.wait(step=10**9, poke_interval=0.2, timeout=1)
        SubmitElasticJobOperator(
            task_id="left", manifest=elastic_job("left"), wait_for_completion=False
        ) >> DeleteJobOperator(task_id="delete", name="left")
        DeleteJobOperator(task_id="delete-other", name="by-hand")

    dags.run(dag)

    assert not jobs(cluster)
    for name in ("late", "group.submit", "left"):
        found = events(f"lineage-cancelled.{name}.elasticjob")
        assert types_of(found) == ["START", "ABORT"], name
        assert len({event["run"]["runId"] for event in found}) == 1


def test_the_triggerer_ends_the_run_of_a_job_that_it_cancels(
    connection: None, cluster: Cluster, events: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a user marks the deferred task as failed, the triggerer cancels the job and ends its run."""
    trigger: Any = deferred(Store()).trigger
    trigger.task_instance = TaskInstance()
    uid = jobs(cluster)["mnist"]["metadata"]["uid"]
    monkeypatch.setattr(kills, "task_state", lambda _ti: "failed")
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: "running")

    asyncio.run(trigger.on_kill())

    assert not jobs(cluster)
    [event] = events("dag.task.elasticjob")
    assert (event["eventType"], event["run"]["runId"]) == ("ABORT", uid)


def test_a_group_has_one_run_for_its_job(
    connection: None, cluster: Cluster, stand_in: StandIn, events: Read
) -> None:
    """The task that submits starts the job's run, and the task that waits ends it. A plan is no run."""
    with DAG("lineage-group", schedule=None) as dag:
        with job_group("group", manifest=elastic_job("mnist"), deferrable=True) as job:
            CheckpointJobOperator(task_id="save", job=job.name) >> DeleteJobOperator(
                task_id="other", name="other"
            )
        job.trained.on_execute_callback = [lambda _context: stand_in.end("mnist")]

    run = dags.run(dag)

    assert dags.states(run)["group.trained"] == "success"
    found = events("lineage-group.group.submit.elasticjob")
    assert types_of(found) == ["START", "COMPLETE"]
    assert {event["run"]["runId"] for event in found} == {jobs(cluster)["mnist"]["metadata"]["uid"]}
    saved = [event for event in events("lineage-group.group.save") if event["eventType"] == "COMPLETE"]
    assert named(saved[0]["outputs"]) == [("file", "/ck/120")]


def test_a_transport_that_fails_does_not_fail_the_task(
    connection: None,
    cluster: Cluster,
    stand_in: StandIn,
    events: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the transport fails, lineage is lost, but the job is not."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise OSError("no route to the lineage service")

    monkeypatch.setattr(get_openlineage_listener().adapter, "emit", refuse)
    with DAG("lineage-lost", schedule=None) as dag:
        SubmitElasticJobOperator(task_id="train", manifest=elastic_job("mnist", "Succeeded"))

    assert dags.states(dags.run(dag)) == {"train": "success"}
    assert not events("lineage-lost.train.elasticjob")
