"""The example DAGs load, and the manifest beside them is a valid job once it is rendered."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
import yaml

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.operators.base import StageTask
from edl_workflows.operators.job import SubmitJobOperator
from edl_workflows.operators.stages import CancelJobOperator
from edl_workflows.operators.watcher import FailMarkedRunOperator
from tests.airflow.support import IN_AIRFLOW

pytestmark = IN_AIRFLOW

FOLDER = Path(__file__).resolve().parents[2] / "dags"


@pytest.fixture(scope="module")
def loaded(airflow_db: None) -> dict[str, Any]:
    """The DAGs by id."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(FOLDER))
    assert not bag.import_errors
    return dict(bag.dags)


def test_the_first_changes_its_job_and_ends_with_the_gate(loaded: dict[str, Any]) -> None:
    """The example submits, waits, scales, migrates in three visible steps, waits, evaluates and publishes."""
    tasks = loaded["example_elastic_training"].topological_sort()

    group = [f"more_parameter_servers.{step}" for step in ("checkpoint", "migrate", "restart")]
    assert [task.task_id for task in tasks if not task.is_teardown] == [
        "submit", "running", "scale_workers", *group, "trained", "evaluate", "publish",
    ]  # fmt: skip


def test_no_example_leaves_a_job_behind(loaded: dict[str, Any]) -> None:
    """A task that submits without waiting has a teardown, which runs after all tasks on the job and delays no
    other task."""
    begun = [
        task
        for dag in loaded.values()
        for task in dag.tasks
        if isinstance(task, SubmitJobOperator) and not task.wait_for_completion
    ]

    assert len(begun) >= 6
    for submit in begun:
        (teardown,) = [task for task in submit.downstream_list if isinstance(task, CancelJobOperator)]
        assert submit.is_setup
        assert teardown.is_teardown
        assert {type(task) for task in teardown.downstream_list} == {FailMarkedRunOperator}
        users = {
            task for task in submit.downstream_list if isinstance(task, StageTask) and task is not teardown
        }
        assert users <= set(teardown.get_flat_relatives(upstream=True))


def test_the_reaper_begins_when_somebody_unpauses_it(loaded: dict[str, Any]) -> None:
    """The reaper's DAG is paused at first, cancels unless a variable says otherwise, and its runs do not
    overlap."""
    dag = loaded["example_reap_orphans"]

    assert dag.is_paused_upon_creation
    assert dag.max_active_runs == 1
    assert dag.get_task("reap").report_only == "{{ var.value.get('edl_reap_report_only', 'false') }}"


def test_the_second_runs_for_what_the_first_publishes(loaded: dict[str, Any]) -> None:
    """The second DAG runs when the first publishes its asset, or when there is new data."""
    outlets = loaded["example_elastic_training"].get_task("publish").outlets
    condition = loaded["example_retrain_on_data"].timetable.asset_condition

    assert [asset.name for asset in outlets] == ["digits_model"]
    assert {asset.name for asset in condition.objects} == {"digits_model", "digits_data"}


MANIFESTS = sorted((FOLDER / "manifests").glob("*.yaml"))
HOSTILE = "x\"\n      securityContext: {privileged: true}\n# '}]{{ dag.folder }}"


def rendered(
    file: Path, params: Mapping[str, Any], variables: Mapping[str, str] | None = None, dag_id: str = "example"
) -> dict[str, Any]:
    """A manifest as a task of a DAG gets it."""
    context = {
        "var": SimpleNamespace(value=variables or {}),
        "dag": SimpleNamespace(folder=str(FOLDER), dag_id=dag_id),
        "run_id": "asset_triggered__2026-11-20T10:56:55+00:00-lrvW",
        "params": params,
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    manifest: dict[str, Any] = yaml.safe_load(environment.from_string(file.read_text()).render(context))
    return manifest


def scalars(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The scalars of a document with their paths."""
    if isinstance(document, dict | list) and document:
        items = document.items() if isinstance(document, dict) else enumerate(document)
        for key, value in items:
            yield from scalars(value, (*path, key))
    else:
        yield path, document


@pytest.mark.parametrize(
    ("dag_id", "file", "mode"),
    [
        ("example_elastic_training", "digits", "manual"),
        ("example_retrain_on_data", "digits", "manual"),
        ("example_planned_scaling", "digits", "single-job"),
        ("example_collective_training", "digits-allreduce", "manual"),
        ("example_torch_training", "digits-allreduce", "manual"),
    ],
)
def test_the_manifest_renders_to_a_valid_job(
    loaded: dict[str, Any], dag_id: str, file: str, mode: str, tmp_path: Path
) -> None:
    """The manifest takes its paths from Airflow variables. Checkpoints are in a folder per run that all pods
    see."""
    dag = loaded[dag_id]
    params = {name: param.value for name, param in dag.params.items() if hasattr(param, "value")}
    manifest = rendered(
        FOLDER / "manifests" / f"{file}.yaml",
        params or dag.params.dump(),
        {"edl_work_dir": str(tmp_path), "edl_python": "/usr/bin/python3"},
        dag_id,
    )
    manifest["metadata"]["name"] = "digits"
    job = ElasticJob.parse(manifest)

    assert job.spec.optimize_mode == mode
    pod = job.spec.replica_specs["worker"].template["spec"]
    folder = pod["volumes"][0]["hostPath"]["path"]
    assert folder == f"{tmp_path}/{dag_id}/asset_triggered__2026-11-20T10-56-55-00-00-lrvW"
    assert f"--checkpoint-dir={folder}" in pod["containers"][0]["command"]
    assert pod["containers"][0]["volumeMounts"][0]["mountPath"] == folder


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_a_parameter_is_one_scalar_of_the_manifest(file: Path) -> None:
    """Whatever the triggerer of a DAG chooses for a parameter, it is the value of one scalar, and adds or
    changes no other field."""
    names = sorted(set(re.findall(r"params\.(\w+)", file.read_text())))
    harmless = {name: f"harmless-{name}" for name in names}
    plain = dict(scalars(rendered(file, harmless)))

    for name, value in harmless.items():
        found = dict(scalars(rendered(file, {**harmless, name: HOSTILE})))

        expected = {
            path: text.replace(value, HOSTILE) if isinstance(text, str) else text
            for path, text in plain.items()
        }
        assert expected != plain, f"{name} does not reach the manifest"
        assert found == expected


def test_workers_join_a_collective_job_while_it_trains(loaded: dict[str, Any]) -> None:
    """The example submits, waits, scales, waits and evaluates. There are never more workers than mini-batches
    in a step."""
    dag = loaded["example_collective_training"]
    tasks = {task.task_id: task for task in dag.topological_sort()}

    steps = ["submit", "running", "more_workers", "trained", "evaluate"]
    assert [name for name, task in tasks.items() if not task.is_teardown] == steps
    assert tasks["more_workers"].replicas["worker"] <= dag.params["max_workers"]


def test_nothing_is_changed_without_an_approval(loaded: dict[str, Any]) -> None:
    """The example plans, checks whether the plan is worth a question, asks, and applies it. Training
    continues whatever becomes of the plan."""
    tasks = {task.task_id: task for task in loaded["example_planned_scaling"].topological_sort()}

    assert list(tasks) == ["submit", "plan", "worthwhile", "approve", "apply", "trained", "cancel", "watcher"]
    assert tasks["approve"].defaults == ["Reject"]
    assert tasks["trained"].trigger_rule == "none_failed"


def test_the_training_job_is_scaled_while_it_trains(loaded: dict[str, Any]) -> None:
    """The example submits a job, waits until it runs, scales it and waits for its end. The manifest beside it
    is valid."""
    tasks = loaded["example_training_job"].topological_sort()

    assert [task.task_id for task in tasks] == ["submit", "running", "scale", "trained", "cancel", "watcher"]
    manifest = yaml.safe_load((FOLDER / "manifests" / "trainingjob-digits.yaml").read_text())
    low, high = TrainingJob.parse(manifest).spec.trainer.bounds
    assert low <= tasks[2].replicas["trainer"] <= high


def test_a_night_is_judged_before_and_after_its_model_is_published(loaded: dict[str, Any]) -> None:
    """One night runs at a time. The gate comes before publication and the check with later clicks before a
    rollback; publication and rollback write the same asset."""
    dag = loaded["example_nightly_recommender"]
    tasks = {task.task_id: task for task in dag.topological_sort()}

    assert (dag.max_active_runs, dag.is_paused_upon_creation) == (1, True)
    order = ["train", "judge", "publish", "export_later_clicks", "judge_later", "roll_back"]
    assert [name for name in tasks if name in order] == order
    assert [asset.name for name in ("publish", "roll_back") for asset in tasks[name].outlets] == [
        "recommender_model",
        "recommender_model",
    ]


def test_fine_tuning_runs_for_the_model_that_another_example_publishes(loaded: dict[str, Any]) -> None:
    """The DAG is scheduled by the asset of the published model."""
    outlets = loaded["example_torch_training"].get_task("publish").outlets

    assert loaded["example_fine_tuning"].timetable.asset_condition == outlets[0]


def test_rivals_are_trained_in_jobs_of_their_own(loaded: dict[str, Any]) -> None:
    """Training is mapped over the configurations, and the task that promotes gets both results."""
    dag = loaded["example_champion_challenger"]

    assert dag.get_task("train").is_mapped
    assert dag.get_task("promote").upstream_task_ids == {"train"}
