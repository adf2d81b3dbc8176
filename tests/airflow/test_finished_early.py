"""What tasks come to when the job ends before them: a job that succeeds early is no error, and a job that has
failed for good is not retried."""

from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from edl_workflows.operators.base import WhenFinished
from edl_workflows.operators.stages import CheckpointJobOperator, ScaleJobOperator, SuspendJobOperator
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.sensors.elastic_job import ElasticJobSensor, ScalePlanSensor
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, elastic_job, eventually, jobs, plans

pytestmark = IN_AIRFLOW

MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
RETRY_ONCE: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(0)}
STATES: dict[WhenFinished, str] = {"skip": "skipped", "fail": "failed", "succeed": "success"}


def ended(cluster: Cluster, phase: str) -> None:
    """The job mnist, which has ended at step 100."""
    client.create(cluster, elastic_job("mnist", phase))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == phase, "the job's end")


@pytest.mark.parametrize("choice", STATES)
def test_a_job_that_succeeded_early_is_no_error(
    choice: WhenFinished, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """If the job succeeded early, each change and wait is skipped, fails without retries, or succeeds, as the
    caller chose. A goal that was reached before succeeds."""
    ended(cluster, "Succeeded")
    with DAG(f"early-{choice}", schedule=None) as dag:
        common: dict[str, Any] = {"if_finished": choice, **RETRY_ONCE}
        ElasticJobSensor(task_id="step", name="mnist", step=10**9, deferrable=True, timeout=60, **common)
        ScaleJobOperator(task_id="scale", job="mnist", replicas={"worker": 3}, **common)
        CheckpointJobOperator(task_id="checkpoint", job="mnist", deferrable=True, **common)
        SuspendJobOperator(task_id="suspend", name="mnist", wait_for_completion=False, **common)
        ElasticJobSensor(task_id="reached", name="mnist", step=100, timeout=60, **common)

    run = dags.run(dag)

    states = dags.states(run)
    assert states.pop("reached") == "success"
    assert set(states.values()) == {STATES[choice]}
    assert {ti.try_number for ti in run.get_task_instances()} == {1}
    assert not plans(cluster)


def test_a_job_that_succeeds_during_the_change(connection: None, cluster: Cluster, stand_in: StandIn) -> None:
    """If the job succeeds while the task waits for its plan or its goal, the trigger skips the task."""
    stand_in.fail, stand_in.failure = True, "JobFinished"
    client.create(cluster, elastic_job("mnist"))
    with DAG("early-during", schedule=None) as dag:
        scale = ScaleJobOperator(
            task_id="scale", job="mnist", replicas={"worker": 3}, deferrable=True, **RETRY_ONCE
        )
        checkpoint = CheckpointJobOperator(task_id="checkpoint", job="mnist", wait_for_completion=False)
        name: Any = checkpoint.output["name"]  # type: ignore[index]
        follow = ScalePlanSensor(task_id="follow", name=name, timeout=60, deferrable=True)
        [scale, checkpoint >> follow]

    run = dags.run(dag)

    assert dags.states(run) == {"scale": "skipped", "checkpoint": "success", "follow": "skipped"}


@MODES
def test_a_job_that_has_failed_is_not_waited_for_again(
    deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """A job that has failed fails its task without a retry, which would find the same job. With ``soft_fail``
    a sensor is skipped instead."""
    ended(cluster, "Failed")
    with DAG(f"failed-{deferrable}", schedule=None) as dag:
        ElasticJobSensor(task_id="wait", name="mnist", deferrable=deferrable, timeout=60, **RETRY_ONCE)
        ElasticJobSensor(
            task_id="soft", name="mnist", deferrable=deferrable, timeout=60, soft_fail=True, **RETRY_ONCE
        )
        ScaleJobOperator(
            task_id="scale", job="mnist", replicas={"worker": 3}, deferrable=deferrable, **RETRY_ONCE
        )

    run = dags.run(dag)

    states = dags.states(run)
    assert states.pop("soft") == "skipped"
    assert set(states.values()) == {"failed"}
    assert {ti.try_number for ti in run.get_task_instances()} == {1}
