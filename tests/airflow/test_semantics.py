"""What operators do beyond the plain way: retries, time-outs, wrong input, mapping, outlets, the task
group."""

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task_group

from edl_workflows.airflow.task_groups import checkpoint_migrate_restart
from edl_workflows.airflow.task_groups import elastic_job as job_group
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import CancelJobOperator, MigrateParameterServersOperator
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, elastic_job, jobs, plans

pytestmark = IN_AIRFLOW

MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
SOON = timedelta(seconds=2)
LATER = timedelta(seconds=120)
RETRY_ONCE: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}


def tries(run: Any, task_id: str = "task") -> int:
    """How many attempts a task took."""
    return int(run.get_task_instance(task_id).try_number)


@MODES
def test_a_retry_replaces_a_failed_job(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """The second attempt does not fail because of the failed job of the first one, but replaces it."""
    ends = "{{ 'Failed' if ti.try_number == 1 else 'Succeeded' }}"
    with DAG(f"retry-{deferrable}", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task", manifest=elastic_job(None, ends), deferrable=deferrable, **RETRY_ONCE
        )

    run = dags.run(dag)

    assert (dags.states(run), tries(run)) == ({"task": "success"}, 2)
    assert len(jobs(cluster)) == 1


@MODES
def test_a_timeout_cancels(deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn) -> None:
    """If the task times out, its job is deleted."""
    with DAG(f"timeout-{deferrable}", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task", manifest=elastic_job("mnist"), deferrable=deferrable, completion_timeout=SOON
        )

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed"}
    assert not jobs(cluster)


@MODES
def test_a_job_that_stays_queued_is_cancelled(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """If a job stays queued, the task that owns it fails and cancels it. The waits of a group cancel nothing
    themselves, and leave the job to the teardown."""
    stand_in.idle = True
    with DAG(f"queue-timeout-{deferrable}", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task", manifest=elastic_job("mnist"), deferrable=deferrable, queue_timeout=SOON
        )
        with job_group(manifest=elastic_job("grouped"), deferrable=deferrable, queue_timeout=SOON) as job:
            job.wait(step=10, poke_interval=0.2, soft_fail=True)
        job.trained.poke_interval = 0.2

    run = dags.run(dag)

    states = dags.states(run)
    assert (states["task"], states["training.wait"]) == ("failed", "skipped")
    assert (states["training.trained"], states["training.cancel"]) == ("failed", "success")
    assert not jobs(cluster)


def test_execution_timeout_cancels_too(connection: None, cluster: Cluster, stand_in: StandIn) -> None:
    """Airflow's execution time-out, which interrupts a wait in the worker, cancels the job, too."""
    with DAG("execution-timeout", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task", manifest=elastic_job("mnist"), deferrable=False, execution_timeout=SOON
        )

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed"}
    assert not jobs(cluster)


def test_a_time_out_amid_the_beginning_leaves_nothing_behind(
    connection: None, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Airflow's time-out comes when the job was created but the task does not know it yet, the job is
    deleted."""
    create = client.create

    def struck_then(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        signal.raise_signal(signal.SIGALRM)
        return made

    monkeypatch.setattr(client, "create", struck_then)
    with DAG("time-out-amid-beginning", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task", manifest=elastic_job("mnist"), deferrable=False, execution_timeout=LATER
        )

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed"}
    assert not jobs(cluster)


def test_a_time_out_amid_a_cancel_does_not_stop_it(
    connection: None, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's time-out and the stage's own count from the task's start. If Airflow's comes while the stage
    cancels its job, the cancellation is completed."""
    cancel = ownership.cancel_object
    begun: list[Handle] = []

    def struck_at_first(cluster: Cluster, handle: Handle, action: ownership.CancelAction) -> bool:
        begun.append(handle)
        if len(begun) == 1:
            signal.raise_signal(signal.SIGALRM)
        return cancel(cluster, handle, action)

    monkeypatch.setattr(ownership, "cancel_object", struck_at_first)
    with DAG("time-out-amid-cancel", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task",
            manifest=elastic_job("mnist"),
            deferrable=False,
            completion_timeout=SOON,
            execution_timeout=LATER,
        )

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed"}
    assert not jobs(cluster)
    assert len(begun) == 2


@MODES
def test_a_sensor_that_is_out_of_time_fails_and_cancels_nothing(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """A sensor that times out fails and does not cancel the job, which it does not own."""
    client.create(cluster, elastic_job("mnist"))
    with DAG(f"sensor-{deferrable}", schedule=None) as dag:
        ElasticJobSensor(task_id="task", name="mnist", deferrable=deferrable, timeout=1, poke_interval=0.2)
        ElasticJobSensor(
            task_id="soft", name="mnist", deferrable=deferrable, timeout=1, poke_interval=0.2, soft_fail=True
        )

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed", "soft": "skipped"}
    assert set(jobs(cluster)) == {"mnist"}


WRONG: dict[str, Callable[[], Any]] = {
    "unknown field": lambda: SubmitElasticJobOperator(
        task_id="task", manifest=elastic_job("a") | {"spce": {}}, **RETRY_ONCE
    ),
    "no YAML": lambda: SubmitElasticJobOperator(task_id="task", manifest="{", **RETRY_ONCE),
    "foreign object": lambda: SubmitElasticJobOperator(
        task_id="task", manifest=elastic_job("mnist"), **RETRY_ONCE
    ),
    "nothing to migrate": lambda: MigrateParameterServersOperator(task_id="task", job="mnist", **RETRY_ONCE),
    "absent connection": lambda: SubmitElasticJobOperator(
        task_id="task", manifest=elastic_job("a"), kubernetes_conn_id="absent", **RETRY_ONCE
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_retry_cannot_mend_is_not_retried(case: str, connection: None, cluster: Cluster) -> None:
    """Wrong input fails the task after one attempt with one clear error, and nothing is created."""
    client.create(cluster, elastic_job("mnist"))
    with DAG(f"wrong-{case.replace(' ', '-')}", schedule=None) as dag:
        WRONG[case]()

    run = dags.run(dag)

    assert (dags.states(run), tries(run)) == ({"task": "failed"}, 1)
    assert set(jobs(cluster)) == {"mnist"}
    assert not plans(cluster)


def test_outlets_get_the_outputs_as_metrics(connection: None, cluster: Cluster, stand_in: StandIn) -> None:
    """The asset event has the step and the checkpoint, so that a DAG that the asset triggers can read
    them."""
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with DAG("outlets", schedule=None) as dag:
        SubmitElasticJobOperator(
            task_id="task",
            manifest=elastic_job("mnist", "Succeeded"),
            outlets=[Asset("model")],
            deferrable=True,
        )

    dags.run(dag)

    with create_session() as session:
        event = session.scalars(select(AssetEvent).where(AssetEvent.source_dag_id == "outlets")).one()
        assert (event.extra["step"], event.extra["checkpoint"]["uri"]) == (100, "/ck/100")


@MODES
def test_the_teardown_ends_the_runs_own_job(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """If a run fails while its job trains, the teardown deletes the job; jobs of others and jobs that have
    ended stay."""
    client.create(cluster, elastic_job("by-hand"))
    with DAG(f"teardown-{deferrable}", schedule=None) as dag:
        for name, ends in {"trains": "", "ended": "Succeeded"}.items():
            submit = SubmitElasticJobOperator(
                task_id=name, manifest=elastic_job(name, ends), wait_for_completion=False
            )
            step = ElasticJobSensor(
                task_id=f"{name}-on",
                name=name,
                step=10**9 if not ends else None,
                timeout=3,
                poke_interval=0.2,
            )
            cancel = CancelJobOperator(task_id=f"{name}-off", name=name, deferrable=deferrable)
            submit >> step >> cancel.as_teardown(setups=submit)
        CancelJobOperator(task_id="foreign", name="by-hand", deferrable=deferrable)
        CancelJobOperator(task_id="absent", name="absent", deferrable=deferrable)

    run = dags.run(dag)

    states = dags.states(run)
    assert states.pop("trains-on") == "failed"
    assert set(states.values()) == {"success"}
    assert set(jobs(cluster)) == {"by-hand", "ended"}


@pytest.mark.parametrize("is_mapped", [False, True], ids=["plain", "mapped"])
@MODES
def test_a_submit_that_failed_after_its_work_leaves_no_job(
    deferrable: bool,
    is_mapped: bool,
    connection: None,
    cluster: Cluster,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow may fail a submit that has created its job, as when its worker is lost. The teardown runs in
    spite of that, and finds the job without the submit's result; jobs of other tasks of the run stay."""
    monkeypatch.setattr(SubmitElasticJobOperator, "_cancel", lambda _self: None)  # as if it were killed
    monkeypatch.setattr(SubmitElasticJobOperator, "deliver", lambda _self, _context, _outputs: 1 / 0)
    with DAG(f"lost-submit-{deferrable}-{is_mapped}", schedule=None) as dag:

        @task_group(prefix_group_id=False)
        def train(_name: str) -> None:
            with job_group(manifest=elastic_job("lost"), deferrable=deferrable):
                pass

        if is_mapped:
            train.expand(_name=["only"])
        else:
            train("only")
        SubmitElasticJobOperator(task_id="other", manifest=elastic_job("other"), wait_for_completion=False)

    run = dags.run(dag)

    states = dags.states(run)
    assert (states["training.submit"], states["training.trained"]) == ("failed", "upstream_failed")
    assert (states["training.cancel"], states["training.watcher"]) == ("success", "success")
    assert set(jobs(cluster)) == {"other"}


@MODES
def test_execution_timeout_limits_a_sensor(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """The smaller of a sensor's two limits counts, deferred or not, and the sensor is not retried."""
    client.create(cluster, elastic_job("mnist"))
    options: dict[str, Any] = {"name": "mnist", "deferrable": deferrable, "poke_interval": 30}
    with DAG(f"sensor-execution-timeout-{deferrable}", schedule=None) as dag:
        ElasticJobSensor(task_id="task", execution_timeout=SOON, **options)
        ElasticJobSensor(task_id="soft", execution_timeout=SOON, soft_fail=True, **options)

    run = dags.run(dag)

    assert dags.states(run) == {"task": "failed", "soft": "skipped"}
    assert tries(run) == 1
    assert set(jobs(cluster)) == {"mnist"}


def test_mapped_tasks_have_a_job_each(connection: None, cluster: Cluster, stand_in: StandIn) -> None:
    """Each mapped task has a job of its own."""
    manifests = [elastic_job(None, "Succeeded"), elastic_job(None, "Succeeded")]
    with DAG("mapped", schedule=None) as dag:
        SubmitElasticJobOperator.partial(task_id="task").expand(manifest=manifests)

    run = dags.run(dag)

    assert {str(ti.state) for ti in run.get_task_instances()} == {"success"}
    assert len(jobs(cluster)) == 2


def test_the_group_shows_a_migration_in_three_tasks(
    connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """The group creates two plans, one for the checkpoint and one for the migration, which two tasks
    follow."""
    client.create(cluster, elastic_job("mnist"))
    with DAG("group", schedule=None) as dag:
        checkpoint_migrate_restart(job="mnist", replicas=3, deferrable=True)

    run = dags.run(dag)

    steps = ("checkpoint", "migrate", "restart")
    assert dags.states(run) == {f"checkpoint_migrate_restart.{step}": "success" for step in steps}
    assert dags.result(run, "checkpoint_migrate_restart.restart")["resumedStep"] == 121
    assert len(plans(cluster)) == 2
