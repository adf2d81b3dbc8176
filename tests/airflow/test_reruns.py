"""What becomes of a job when its run is cleared, marked or deleted: nothing is left behind, and no green run
turns red. The table in ``docs/how-to/write-a-dag.md`` has the same rows."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task_group

from edl_workflows.airflow.task_groups import elastic_job as job_group
from edl_workflows.operators.reaper import ReapOrphanedJobsOperator
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, elastic_job, eventually, jobs

pytestmark = [
    *IN_AIRFLOW,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("connection", "named"),
]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "write-a-dag.md"
REUSED, ANEW, ENDED = "used again", "trained anew", "ended"

CLEARED: dict[str, tuple[str, bool, str, str]] = {
    "clear `trained`": ("training.trained", True, "succeeded", REUSED),
    "clear a change, with the tasks after it": ("training.scale", True, "succeeded", REUSED),
    "clear `submit` alone": ("training.submit", False, "succeeded", REUSED),
    "clear `submit`, with the tasks after it": ("training.submit", True, "succeeded", ANEW),
    "clear the run": ("", True, "succeeded", ANEW),
    "clear `trained`, job deleted": ("training.trained", True, "gone", ANEW),
    "clear the run, job failed": ("", True, "failed", ANEW),
    "clear `submit`, job running": ("training.submit", True, "running", REUSED),
    "clear a change, with the tasks after it, job running": ("training.scale", True, "running", REUSED),
}
"""What is done: the task that is cleared, whether with the tasks after it, the job's state, and the job
afterwards. Each run succeeds in the end."""
STOPPED: dict[str, tuple[str, str]] = {
    "mark the run failed": ("teardown", "failed"),
    "mark the run succeeded": ("teardown", "succeeded"),
    "mark `trained` failed": ("teardown", "failed"),
    "mark `trained` succeeded": ("teardown", "succeeded"),
    "mark `scale` failed": ("teardown", "failed"),
    "mark `submit` failed": ("teardown", "failed"),
    "delete the run": ("reaper", "deleted"),
}
"""What is done while the job runs, what ends the job, and how the run ends."""
STOPPED_WHERE_MAPPED = ("mark `trained` failed", "mark `submit` failed", "delete the run")
"""Rows that are also played with a mapped group; `SHAPES` has one for marked runs."""


def pipeline(name: str, ends: str = "") -> DAG:
    """A job that is waited for, scaled and waited for again, and a task after it."""
    with DAG(name, schedule=None, on_failure_callback=print, on_success_callback=print) as dag:
        with job_group(manifest=elastic_job("mnist", ends), deferrable=False) as job:
            job.wait(step=50, poke_interval=0.2) >> job.scale({"worker": 3})
        job.trained.poke_interval = 0.2
        job >> EmptyOperator(task_id="evaluate")
    return dag


def mapped_pipeline(name: str) -> DAG:
    """The same job in a mapped group."""
    with DAG(name, schedule=None, on_failure_callback=print, on_success_callback=print) as dag:

        @task_group
        def each(_name: str) -> None:
            with job_group(manifest=elastic_job("mnist"), deferrable=False) as job:
                job.wait(step=50, poke_interval=0.2) >> job.scale({"worker": 3})
            job.trained.poke_interval = 0.2

        each.expand(_name=["only"]) >> EmptyOperator(task_id="evaluate")
    return dag


def uid(cluster: Cluster) -> str:
    """The uid of the job; "" if there is none."""
    found = jobs(cluster).get("mnist")
    return str(found["metadata"]["uid"]) if found else ""


@pytest.mark.parametrize("row", CLEARED)
def test_what_is_cleared_runs_again(row: str, cluster: Cluster, stand_in: StandIn) -> None:
    """A cleared run succeeds with exactly one job, which is the old or a new one as the table says."""
    task_id, downstream, state, expected = CLEARED[row]
    ends = {"running": "", "failed": "{{ 'Failed' if ti.try_number == 1 else 'Succeeded' }}"}
    dag = pipeline(f"cleared-{list(CLEARED).index(row)}", ends.get(state, "Succeeded"))
    run_id = dags.begin(dag, "training.scale" if state == "running" else "")
    before = uid(cluster)
    if state == "gone":
        client.delete(cluster, ELASTIC_JOBS, "mnist")
        eventually(lambda: not uid(cluster), "the job's deletion")

    dags.clear(dag, run_id, task_id, downstream=downstream)
    if state == "running":
        dags.go_on(dag, run_id, "training.scale")
        stand_in.end("mnist")
    states = dags.go_on(dag, run_id)

    assert (states.pop("run"), states.pop("callback")) == ("success", "success")
    assert set(states.values()) <= {"success", "skipped"}, states
    assert states["training.trained"] == "success"
    assert jobs(cluster)["mnist"]["status"]["phase"] == "Succeeded"
    assert (uid(cluster) == before) is (expected == REUSED)


@pytest.mark.parametrize(
    ("row", "is_mapped"),
    [*((row, False) for row in STOPPED), *((row, True) for row in STOPPED_WHERE_MAPPED)],
)
def test_what_is_stopped_leaves_no_job(
    row: str, is_mapped: bool, cluster: Cluster, stand_in: StandIn
) -> None:
    """The teardown ends the job of a stopped run. If there is no teardown any more, the reaper does. The run
    ends as it was marked, or failed with its task, and the callback is the one of that end."""
    ender, expected = STOPPED[row]
    make, group = (mapped_pipeline, "each.training") if is_mapped else (pipeline, "training")
    dag = make(f"stopped-{list(STOPPED).index(row)}-{is_mapped}")
    run_id = dags.begin(dag, f"{group}.scale")
    assert uid(cluster)
    dags.set_state(dag, run_id, f"{group}.trained", "running")
    _, subject, *words = row.split(" ")

    states = {"run": "deleted"}
    if row == "delete the run":
        dags.delete_run(dag, run_id)
    elif subject.startswith("`"):
        task_id = f"{group}.{subject.strip('`')}"
        if words[-1] == "failed":  # the marked task was still running, so the ones after it had not begun
            dags.set_state(dag, run_id, f"{group}.trained", None)
        dags.mark_task(dag, run_id, task_id, "failed" if words[-1] == "failed" else "success")
        states = dags.go_on(dag, run_id)
    else:
        dags.mark_run(dag, run_id, "failed" if words[-1] == "failed" else "success")
        states = dags.go_on(dag, run_id)
    assert states["run"] == {"succeeded": "success"}.get(expected, expected)
    if expected != "deleted":
        assert states["callback"] == states["run"]
    if ender == "reaper":
        assert uid(cluster)
        with DAG(f"reap-{dag.dag_id}", schedule=None) as reaper:
            first = ReapOrphanedJobsOperator(task_id="first", report_only=False, grace=timedelta(0))
            first >> ReapOrphanedJobsOperator(task_id="second", report_only=False, grace=timedelta(0))
        dags.run(reaper)

    eventually(lambda: not uid(cluster), "the end of the job")


def wait_running(dag_id: str) -> DAG:
    """A wait of the group runs."""
    return pipeline(dag_id)


def whole_dag(dag_id: str) -> DAG:
    """The group is the whole DAG."""
    dag = DAG(dag_id, schedule=None, on_failure_callback=print, on_success_callback=print)
    with dag, job_group(manifest=elastic_job("mnist"), deferrable=False) as job:
        job.wait(step=50, poke_interval=0.2)
    return dag


def mapped(dag_id: str) -> DAG:
    """Three groups, made by mapping."""
    with DAG(dag_id, schedule=None, on_failure_callback=print, on_success_callback=print) as dag:

        @task_group
        def train(name: str) -> None:
            manifest = elastic_job(None)
            manifest["metadata"]["annotations"] = {"name": name}
            with job_group(manifest=manifest, deferrable=False) as job:
                job.wait(step=50, poke_interval=0.2)

        train.expand(name=["a", "b", "c"]) >> EmptyOperator(task_id="evaluate")
    return dag


def two_groups(dag_id: str) -> DAG:
    """One group after the other; the mark comes before the second has begun."""
    with DAG(dag_id, schedule=None, on_failure_callback=print, on_success_callback=print) as dag:
        with job_group("first", manifest=elastic_job("mnist"), deferrable=False) as first:
            first.wait(step=50, poke_interval=0.2)
        with job_group("second", manifest=elastic_job("second"), deferrable=False) as second:
            pass
        first >> second >> EmptyOperator(task_id="evaluate")
    return dag


SHAPES: dict[str, tuple[Callable[[str], DAG], str, str, str]] = {
    "wait": (wait_running, "training.submit", "training.wait", "running"),
    "deferred wait": (wait_running, "training.submit", "training.wait", "deferred"),
    "whole DAG": (whole_dag, "training.wait", "training.trained", "running"),
    "mapped": (mapped, "train.training.wait", "train.training.trained", "running"),
    "two groups": (two_groups, "first.wait", "first.trained", "deferred"),
}
"""The DAG, its last task that has ended, and the task that waits, in its state."""


@pytest.mark.parametrize("mark", ["failed", "success"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_marked_run_ends_as_it_was_marked(
    shape: str, mark: str, cluster: Cluster, stand_in: StandIn
) -> None:
    """Whatever the DAG looks like, a run that is marked failed is failed in the end and calls the callback of
    a failure, its jobs are gone, and `cancel` is green; likewise for a success."""
    make, ended, waiting, state = SHAPES[shape]
    dag = make(f"marked-{mark}-{list(SHAPES).index(shape)}")
    run_id = dags.begin(dag, ended)
    dags.set_state(dag, run_id, waiting, state)
    assert jobs(cluster)

    dags.mark_run(dag, run_id, mark)
    states = dags.go_on(dag, run_id)

    assert (states["run"], states["callback"]) == (mark, mark)
    assert {states[task_id] for task_id in dag.task_ids if task_id.endswith("cancel")} == {"success"}
    eventually(lambda: not jobs(cluster), "the end of the jobs")


def test_the_page_has_the_same_rows() -> None:
    """The table of the documentation has the same rows as this test."""
    page = PAGE.read_text()
    results = {REUSED: "the finished job is used again", ANEW: "a new job trains"}

    for row, (_, _, state, expected) in CLEARED.items():
        done, _, _ = row.partition(", job")
        told = "the same job goes on" if state == "running" else results[expected]
        assert f"| {done} | {state} | {told} |" in page, row
    for row, (ender, state) in STOPPED.items():
        assert f"| {row} | running | the {ender} ends it; the run: {state} |" in page, row
