"""Every operator and sensor in both modes, run by Airflow itself against a real API server."""

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.triggers.base import BaseTrigger

from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import (
    ApplyPlanOperator,
    CheckpointJobOperator,
    DeleteJobOperator,
    MigrateParameterServersOperator,
    PlanScaleOperator,
    ResumeJobOperator,
    ScaleJobOperator,
    SuspendJobOperator,
)
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, create_ps_pod, elastic_job

pytestmark = IN_AIRFLOW

RANK = 0 if hasattr(BaseTrigger, "on_kill") else "0"
"""Before 3.3, Airflow refuses a templated map whose keys are numbers."""

ROWS: dict[str, tuple[Callable[..., BaseOperator], dict[str, Any]]] = {
    "submit": (
        lambda **kw: SubmitElasticJobOperator(manifest=elastic_job("new", ends="Succeeded"), **kw),
        {"name": "new", "phase": "Succeeded", "step": 100},
    ),
    "scale": (
        lambda **kw: ScaleJobOperator(job="mnist", replicas={"worker": 3}, **kw),
        {"job": "mnist", "phase": "Succeeded"},
    ),
    "plan": (
        lambda **kw: PlanScaleOperator(job="mnist", wait_for_change=True, **kw),
        {"job": "mnist", "phase": "Running"},
    ),
    "apply": (
        lambda **kw: ApplyPlanOperator(job="mnist", plan={"replicas": {"worker": {"replicas": 3}}}, **kw),
        {"job": "mnist", "phase": "Succeeded"},
    ),
    "checkpoint": (
        lambda **kw: CheckpointJobOperator(job="mnist", **kw),
        {"checkpoint": {"uri": "/ck/120", "step": 120}},
    ),
    "migrate": (
        lambda **kw: MigrateParameterServersOperator(
            job="mnist", replicas="{{ 1 + 2 }}", migrate={RANK: {"cpu": "2"}}, **kw
        ),
        {"phase": "Succeeded", "resumedStep": 121, "stallSeconds": 0.5},
    ),
    "suspend": (lambda **kw: SuspendJobOperator(name="mnist", **kw), {"phase": "Suspended"}),
    "resume": (lambda **kw: ResumeJobOperator(name="mnist", **kw), {"phase": "Running"}),
    "delete": (lambda **kw: DeleteJobOperator(name="mnist", **kw), {"name": "mnist"}),
    "sensor": (
        lambda **kw: ElasticJobSensor(name="mnist", phases=["Running"], step=100, poke_interval=0.2, **kw),
        {"phase": "Running", "step": 100},
    ),
}


PLANNED = {"stage": "job_stage_running", "replicaResourceSpecs": {"worker": {"replicas": 3}}}


@pytest.mark.parametrize("deferrable", [False, True], ids=["sync", "deferrable"])
@pytest.mark.parametrize("name", ROWS)
def test_each_operator_in_both_modes(
    name: str, deferrable: bool, connection: None, cluster: Cluster, stand_in: StandIn
) -> None:
    """Each operator ends in the same state with the same outputs in both modes."""
    client.create(cluster, elastic_job("mnist"))
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"autoscaling": PLANNED})
    create_ps_pod(cluster, "mnist", node_id=0, rank=0)
    make, expected = ROWS[name]
    with DAG(f"{name}-{deferrable}", schedule=None) as dag:
        make(task_id="task", deferrable=deferrable)

    run = dags.run(dag)

    assert dags.states(run) == {"task": "success"}
    result = dags.result(run, "task")
    assert expected == {key: result[key] for key in expected}
