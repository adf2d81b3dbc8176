"""The reaper, run by Airflow itself: what it asks Airflow is what Airflow really says, and it ends orphans
and nothing else."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from edl_workflows.airflow.hooks.task_owner import TaskOwner, engine_of
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.reaper import ReapOrphanedJobsOperator
from edl_workflows.pipelines.stages import submit
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, elastic_job, jobs

pytestmark = IN_AIRFLOW

STATES: dict[str, str | None] = {
    "failed": "failed",
    "kept": "failed",
    "paused": "failed",
    "cleared": None,
    "deferred": "deferred",
    "left": "success",
}
"""The tasks of the run whose jobs are looked at, and their states."""


@pytest.fixture(scope="module")
def run_id(airflow_db: None) -> str:
    """A run with a task in each of `STATES`, which succeeded as a whole."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with DAG("reaped", schedule=None) as dag:
        for task_id in STATES:
            EmptyOperator(task_id=task_id)
    run = dags.run(dag)
    with create_session() as session:
        for task_id, state in STATES.items():
            mine = (TaskInstance.run_id == run.run_id, TaskInstance.task_id == task_id)
            session.execute(update(TaskInstance).where(*mine).values(state=state))
    return str(run.run_id)


def begin(cluster: Cluster, name: str, run_id: str, installation: str = "prod", **marks: Any) -> None:
    """A job as the task of its name made it."""
    owner = TaskOwner(engine_of(installation), "reaped", run_id, name, -1)
    identity = StageIdentity(str(owner), **({"on_cancel": "delete", "lifetime": "task"} | marks))
    submit.begin_submit(cluster, submit.SubmitRequest(manifest=elastic_job(name)), identity)


@pytest.fixture
def begun(cluster: Cluster, run_id: str) -> set[str]:
    """The names of jobs of all sorts."""
    for name in ("failed", "cleared", "deferred"):
        begin(cluster, name, run_id)
    begin(cluster, "kept", run_id, on_cancel="keep")
    begin(cluster, "paused", run_id, on_cancel="suspend")
    begin(cluster, "left", run_id, lifetime="run")
    begin(cluster, "deleted-run", "manual__gone")
    begin(cluster, "foreign", "manual__gone", installation="staging")
    client.create(cluster, elastic_job("by-hand"))
    return set(jobs(cluster))


def reap(name: str, **arguments: Any) -> Any:
    """One run of the reaper; its result, or its state if it failed."""
    with DAG(f"reap-{name}", schedule=None) as dag:
        ReapOrphanedJobsOperator(task_id="reap", **({"grace": timedelta(0)} | arguments))
    run = dags.run(dag)
    return dags.result(run, "reap") if dags.states(run) == {"reap": "success"} else dags.states(run)["reap"]


def noted(cluster: Cluster) -> set[str]:
    """The jobs that carry the note of an orphan."""
    return {
        name for name, job in jobs(cluster).items() if names.GONE_ANNOTATION in job["metadata"]["annotations"]
    }


def test_a_report_changes_nothing(named: None, cluster: Cluster, begun: set[str]) -> None:
    """The report lists orphans with the reasons, and changes no object."""
    told = reap("report", report_only=True)

    why = {row["name"]: (row["verdict"], row["why"], row["done"]) for row in told["objects"]}
    assert told["counts"] == {"awaited": 2, "kept": 2, "orphaned": 3}
    assert why["failed"] == ("orphaned", "its task is failed", "would be noted")
    assert why["deleted-run"] == ("orphaned", "its run was deleted", "would be noted")
    assert why["left"][0] == "kept"
    assert (noted(cluster), set(jobs(cluster))) == (set(), begun)


def test_orphans_are_noted_and_then_ended_by_their_own_policy(
    named: None, cluster: Cluster, begun: set[str]
) -> None:
    """Jobs that a live task waits for, that are to be kept, or that others made are left alone; a third run
    finds nothing to do."""
    first = reap("first", report_only="False")
    assert (noted(cluster), set(jobs(cluster))) == ({"failed", "deleted-run", "paused"}, begun)
    second = reap("second", report_only=False)
    third = reap("third", report_only=False)

    assert set(jobs(cluster)) == begun - {"failed", "deleted-run"}
    assert jobs(cluster)["paused"]["spec"]["suspend"] is True
    assert [told["cancelled"] for told in (first, second, third)] == [0, 3, 0]


def test_the_grace_time_is_waited_for(named: None, cluster: Cluster, begun: set[str]) -> None:
    """Within the grace time, the reaper leaves an orphan alone, since the task's own cancellation may only be
    late."""
    for turn in ("a", "b"):
        told = reap(f"grace-{turn}", report_only=False, grace=timedelta(hours=1))

    assert set(jobs(cluster)) == begun
    assert {row["done"][:11] for row in told["objects"] if row["verdict"] == "orphaned"} == {"waits until"}


def test_an_adopted_job_is_no_orphan_any_more(
    named: None, cluster: Cluster, begun: set[str], run_id: str
) -> None:
    """An attempt that adopts the job removes the note, and so does a later run of the reaper that finds the
    task alive."""
    note = {"metadata": {"annotations": {names.GONE_ANNOTATION: "2026-01-01T00:00:00Z"}}}
    for name in ("cleared", "deleted-run"):
        client.patch(cluster, ELASTIC_JOBS, name, note)

    begin(cluster, "deleted-run", "manual__gone")  # a new run of the same id, in its first attempt as well
    assert noted(cluster) == {"cleared"}
    reap("looks", report_only=False)

    assert set(jobs(cluster)) == begun
    assert noted(cluster) == {"failed", "paused", "deleted-run"}


def test_an_airflow_without_a_name_cancels_what_it_has_noted(
    connection: None, cluster: Cluster, run_id: str
) -> None:
    """A run has exceeded its ``dagrun_timeout`` while no task waited for its job. By default, the reaper ends
    the job: its uid in the task's XCom shows that this very Airflow created it, and no other with the same
    DAG."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with DAG("leaves", schedule=None) as dag:
        SubmitElasticJobOperator(task_id="task", manifest=elastic_job("left"), wait_for_completion=False)
    run = dags.run(dag)
    with create_session() as session:
        session.execute(update(DagRun).where(DagRun.run_id == run.run_id).values(state="failed"))
    begin(cluster, "failed", run_id, installation="")

    for turn in ("a", "b"):
        reap(f"noted-{turn}")

    assert set(jobs(cluster)) == {"failed"}


def test_an_airflow_without_a_name_cancels_nothing_else(
    connection: None, cluster: Cluster, run_id: str
) -> None:
    """Another Airflow without a name and with the same DAG marks its jobs in the same way, so an Airflow
    without a name cancels no other jobs."""
    begin(cluster, "deleted-run", "manual__gone", installation="")
    begin(cluster, "failed", run_id, installation="")

    for turn in ("a", "b"):
        told = reap(f"unnamed-{turn}", report_only=False)

    assert set(jobs(cluster)) == {"deleted-run", "failed"}
    assert told["counts"] == {"unclear": 2}
    assert all("edl_installation" in row["why"] for row in told["objects"])


def test_too_many_orphans_are_left_alone(named: None, cluster: Cluster, begun: set[str]) -> None:
    """An Airflow that lost its database takes all jobs for orphans, so above a limit the reaper ends none and
    fails."""
    reap("before", report_only=False)

    assert reap("too-many", report_only=False, max_cancellations=2) == "failed"
    assert set(jobs(cluster)) == begun


@pytest.mark.parametrize("wrong", [{"report_only": "maybe"}, {"max_cancellations": "-1"}])
def test_wrong_arguments_are_refused(named: None, wrong: dict[str, Any]) -> None:
    """The error names the argument, before any request."""
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        ReapOrphanedJobsOperator(task_id="reap", **wrong).execute({})
