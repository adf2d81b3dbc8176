"""``@task.elastic`` in Airflow itself: a function of a DAG becomes the program of a job."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.program import PROGRAM_KEY, TrainingProgram
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, Object, Scope
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, jobs
from tests.local_cluster import Settings
from tests.local_cluster import cluster as local_cluster

pytestmark = [*IN_AIRFLOW, pytest.mark.usefixtures("connection")]

EXAMPLE = Path(__file__).resolve().parents[2] / "dags" / "example_sweep.py"

SCALE = 3
"""A name of this module, which no pod has."""


def programs(cluster: Cluster) -> dict[str, TrainingProgram]:
    """The programs that travelled, by the name of their job."""
    found = client.list_objects(cluster, Scope(CONFIG_MAPS, cluster.namespace)).items
    return {
        one["metadata"]["ownerReferences"][0]["name"]: TrainingProgram.model_validate_json(
            one["data"][PROGRAM_KEY]
        )
        for one in found
        if PROGRAM_KEY in (one.get("data") or {})
    }


def worker(job: Object) -> dict[str, Any]:
    """The first container of the job's workers."""
    template = job["spec"]["replicaSpecs"]["worker"]["template"]
    return dict(template["spec"]["containers"][0])


def request_of(trained: Any) -> dict[str, Any]:
    """What the task of a call would ask for."""
    values: dict[str, Any] = trained.operator.request_values()
    return values


def test_a_function_is_the_program_of_a_job(cluster: Cluster, stand_in: StandIn) -> None:
    """The job has the function's source and its arguments, including results of earlier tasks. Options reach
    the pods, and outputs reach the next task."""
    with DAG("function", schedule=None) as dag:

        @task
        def choose() -> float:
            return 0.5

        @task.elastic(
            workers="{{ 1 + 1 }}",
            image="train:1",
            env={"LEVEL": "{{ dag.dag_id }}"},
            requests={"cpu": "1"},
            template={"spec": {"containers": [{"name": "main"}], "nodeSelector": {"pool": "training"}}},
            deferrable=False,
        )
        def train(rate: float, *, epochs: int = 2) -> dict[str, float]:
            import math

            return {"loss": math.exp(-rate * epochs)}

        @task
        def publish(name: str, result: dict[str, float]) -> None:
            assert (name, result) == (next(iter(jobs(cluster))), {"loss": 0.25})

        trained: Any = train(choose(), epochs=3)  # type: ignore[arg-type]  # a result of Airflow's
        publish(trained["name"], trained["result"])

    stand_in.ends, stand_in.result = "Succeeded", '{"loss": 0.25}'
    run = dags.run(dag)

    assert run.state == "success"
    [(name, job)] = jobs(cluster).items()
    assert job["spec"]["replicaSpecs"]["worker"]["replicas"] == 2
    assert worker(job)["image"] == "train:1"
    assert {"name": "LEVEL", "value": "function"} in worker(job)["env"]
    assert worker(job)["resources"]["requests"] == {"cpu": "1"}
    assert job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["nodeSelector"] == {"pool": "training"}
    program = programs(cluster)[name]
    text = program.files[program.main]
    assert "def train(" in text
    assert "@task" not in text
    assert json.dumps({"rate": 0.5, "epochs": 3}) in text.replace("\\", "")


def test_a_function_is_mapped_over_configurations(cluster: Cluster, stand_in: StandIn) -> None:
    """Each configuration gives a job and a program of its own."""
    with DAG("mapped-function", schedule=None) as dag:

        @task.elastic(image="train:1", deferrable=False)
        def train(rate: float, epochs: int) -> float:
            return rate * epochs

        train.partial(epochs=2).expand(rate=[0.1, 0.2])

    stand_in.ends = "Succeeded"
    run = dags.run(dag)

    assert run.state == "success"
    texts = [program.files[program.main].replace("\\", "") for program in programs(cluster).values()]
    for rate in (0.1, 0.2):
        assert sum(json.dumps({"rate": rate, "epochs": 2}) in text for text in texts) == 1
    assert len(texts) == len(jobs(cluster)) == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "workers that are no number": ({"workers": "many"}, "workers: a whole number is required"),
    "a maximum below the number of workers": ({"workers": 3, "max_workers": 2}, "raise the maximum"),
    "a template that is no map": ({"template": "[1]"}, "template: a map is required"),
}


@pytest.mark.parametrize("row", BAD)
def test_bad_options_are_named(row: str) -> None:
    """Wrong options are refused before anything is created; the error names the option."""
    options, message = BAD[row]

    @task.elastic(task_id="train", **options)
    def train(rate: float) -> None: ...

    with pytest.raises(InvalidError, match=message):
        request_of(train(1.0))


def test_a_function_with_names_of_its_module_is_refused() -> None:
    """A function that uses names of its module is an error that lists them and says what to do."""

    @task.elastic(task_id="train")
    def train(rate: float) -> float:
        return rate * SCALE

    with pytest.raises(InvalidError, match="uses SCALE of the module around it"):
        request_of(train(1.0))


def test_a_function_with_any_number_of_arguments_is_refused() -> None:
    """A function with ``*args`` or ``**kwargs`` is rejected, since arguments are passed by name."""

    @task.elastic(task_id="train")
    def train(*rates: float) -> None: ...

    with pytest.raises(InvalidError, match=r"it can't have \*rates"):
        request_of(train(1.0, 2.0))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_trains_its_function(
    airflow_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the example with everything real, three jobs train the function, and the best result reaches the
    last task."""
    from airflow.dag_processing.dagbag import DagBag

    with local_cluster(tmp_path, Settings(controller=True)) as found:
        extra = {"kube_config_path": str(found.kubeconfig), "namespace": "default"}
        text = json.dumps({"conn_type": "kubernetes", "extra": extra})
        monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)
        monkeypatch.setenv("AIRFLOW_VAR_EDL_PYTHON", sys.executable)
        dag = DagBag(str(EXAMPLE)).dags["example_sweep"]
        run = dags.run(dag)
        names = set(jobs(found.client()))

    assert run.state == "success"
    assert len(names) == 3
    best = dags.result(run, "choose_best")
    assert best["rate"] == 0.5
    assert best["accuracy"] > 0.85
