"""The demo's pipeline, run by Airflow's services against a real cluster by its kubeconfig, with TensorFlow in
pods."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.training import Place, place, stored_state
from tests.demo.airflow import Airflow
from tests.demo.run import EVALUATE_TASK, TRAIN_DAG
from tests.e2e.records import RECORDS, TRAINING

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(900),
]

PARAMS = {"ps": 1, "workers": 1, "epochs": 45, "step_delay": 0.3, "warm_up_steps": 10}
RUN_SECONDS = 700.0


@pytest.fixture
def here(request: pytest.FixtureRequest, bed: Bed, cluster: Cluster, namespace: str) -> Iterator[Place]:
    """A controller, and a folder that pods and Airflow's workers see at the same path."""
    with place(request, bed, cluster.in_namespace(namespace)) as running:
        yield running


def test_the_example_pipeline_on_a_real_cluster(here: Place, tmp_path: Path) -> None:
    """Every task succeeds on 1 to 3 servers and 1 to 3 workers in pods, all data is consumed, the migration
    loses no step that was checkpointed, and the model that `evaluate` reads from the shared folder passes its
    gate."""
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(TRAINING.parent / f"{TRAIN_DAG}.py", dags)
    shutil.copytree(TRAINING.parent / "manifests", dags / "manifests")
    with Airflow(tmp_path / "airflow", dags, environment(here)) as airflow:
        airflow.await_dag(TRAIN_DAG)
        run = airflow.trigger(TRAIN_DAG, PARAMS)
        states = await_end(airflow, run)
        assert set(states.values()) == {"success"}, failures(tmp_path / "airflow", states)
        metrics = airflow.result(TRAIN_DAG, run, EVALUATE_TASK)

    (job,) = [ElasticJob.parse(item) for item in listed(here.cluster, resources.ELASTIC_JOBS)]
    (dataset,) = stored_state(here.cluster, job.metadata.name).shards.snapshot().datasets
    plans = [ScalePlan.parse(item) for item in listed(here.cluster, resources.SCALE_PLANS)]
    assert metrics["accuracy"] >= 0.93
    assert metrics["checkpoint"].startswith(str(here.folder))
    assert job.status.phase is ElasticJobPhase.SUCCEEDED
    assert dataset.position.records_done == PARAMS["epochs"] * RECORDS
    manual = [plan.status for plan in plans if not plan.auto]
    assert [status.phase for status in manual] == [ScalePlanPhase.SUCCEEDED] * 3  # scale, checkpoint, migrate
    (migration,) = [status for status in manual if status.resumed_step is not None]
    assert migration.checkpoint is not None
    assert migration.resumed_step is not None
    assert migration.resumed_step > migration.checkpoint.step
    print(f"migration of 1 to 3 servers by the pipeline: stall {migration.stall_seconds} s")


def environment(here: Place) -> dict[str, str]:
    """Airflow's connection and variables, as the example's documentation names them."""
    extra = {"kube_config_path": str(here.bed.kubeconfig), "namespace": here.cluster.namespace}
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": extra}),
        "AIRFLOW_VAR_EDL_IMAGE": here.bed.image,
        "AIRFLOW_VAR_EDL_PYTHON": here.bed.python,
        "AIRFLOW_VAR_EDL_TRAINING_DIR": str(TRAINING),
        "AIRFLOW_VAR_EDL_WORK_DIR": str(here.folder),
    }


def await_end(airflow: Airflow, run: str) -> dict[str, str]:
    """Wait until the run has ended; the state of each of its tasks."""
    deadline = time.monotonic() + RUN_SECONDS
    while True:
        airflow.check()
        (found,) = [one for one in airflow.runs(TRAIN_DAG) if one["dag_run_id"] == run]
        states = {task["task_id"]: str(task["state"]) for task in airflow.tasks(TRAIN_DAG, run)}
        if found["state"] in ("success", "failed"):
            return states
        assert time.monotonic() < deadline, f"not ended within {RUN_SECONDS:.0f} s: {states}"
        time.sleep(1)


def failures(home: Path, states: dict[str, str]) -> str:
    """The end of what the failed tasks logged."""
    logs = sorted((home / "logs").glob("**/*.log"))
    failed = [task for task, state in states.items() if state == "failed"]
    told = [
        f"{log}\n{log.read_text()[-4000:]}" for log in logs if any(f"task_id={t}" in str(log) for t in failed)
    ]
    return "\n".join([str(states), *told])


def listed(cluster: Cluster, kind: ApiResource) -> list[resources.Object]:
    """The namespace's objects of a kind."""
    return client.list_objects(cluster, resources.Scope(kind, cluster.namespace)).items
