"""What becomes of a job when its run is cleared, marked or deleted: nothing is left behind, and no green run
turns red. The table in ``docs/how-to/write-a-dag.md`` has the same rows."""

from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk import DAG

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
STOPPED: dict[str, str] = {
    "mark the run failed": "teardown",
    "mark the run succeeded": "teardown",
    "mark `trained` failed": "teardown",
    "mark `trained` succeeded": "teardown",
    "mark `scale` failed": "teardown",
    "mark `submit` failed": "reaper",
    "delete the run": "reaper",
}
"""What is done while the job runs, and what ends the job."""


def pipeline(name: str, ends: str = "") -> DAG:
    """A job that is waited for, scaled and waited for again."""
    with DAG(name, schedule=None) as dag:
        with job_group(manifest=elastic_job("mnist", ends), deferrable=False) as job:
            job.wait(step=50, poke_interval=0.2) >> job.scale({"worker": 3})
        job.trained.poke_interval = 0.2
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

    assert states.pop("run") == "success"
    assert set(states.values()) <= {"success", "skipped"}, states
    assert states["training.trained"] == "success"
    assert jobs(cluster)["mnist"]["status"]["phase"] == "Succeeded"
    assert (uid(cluster) == before) is (expected == REUSED)


@pytest.mark.parametrize("row", STOPPED)
def test_what_is_stopped_leaves_no_job(row: str, cluster: Cluster, stand_in: StandIn) -> None:
    """The teardown ends the job of a stopped run. If there is no teardown any more, the reaper does."""
    dag = pipeline(f"stopped-{list(STOPPED).index(row)}")
    run_id = dags.begin(dag, "training.scale")
    assert uid(cluster)
    _, subject, *words = row.split(" ")

    if row == "delete the run":
        dags.delete_run(dag, run_id)
    elif subject.startswith("`"):
        task_id = f"training.{subject.strip('`')}"
        dags.mark_task(dag, run_id, task_id, "failed" if words[-1] == "failed" else "success")
        dags.go_on(dag, run_id)
    else:
        dags.mark_run(dag, run_id, "failed" if words[-1] == "failed" else "success")
        dags.go_on(dag, run_id)
    if STOPPED[row] == "reaper":
        assert uid(cluster)
        with DAG(f"reap-{dag.dag_id}", schedule=None) as reaper:
            first = ReapOrphanedJobsOperator(task_id="first", report_only=False, grace=timedelta(0))
            first >> ReapOrphanedJobsOperator(task_id="second", report_only=False, grace=timedelta(0))
        dags.run(reaper)

    eventually(lambda: not uid(cluster), "the end of the job")


def test_the_page_has_the_same_rows() -> None:
    """The table of the documentation has the same rows as this test."""
    page = PAGE.read_text()
    results = {REUSED: "the finished job is used again", ANEW: "a new job trains"}

    for row, (_, _, state, expected) in CLEARED.items():
        done, _, _ = row.partition(", job")
        told = "the same job goes on" if state == "running" else results[expected]
        assert f"| {done} | {state} | {told} |" in page, row
    for row, ender in STOPPED.items():
        assert f"| {row} | running | the {ender} ends it |" in page, row
