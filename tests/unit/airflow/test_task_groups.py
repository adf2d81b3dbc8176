"""The group `elastic_job` when its DAG file is parsed."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TaskGroup

from edl_workflows.airflow.decorators import elastic_task
from edl_workflows.airflow.task_groups import elastic_job
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import CancelJobOperator, DeleteJobOperator
from edl_workflows.sensors.job import JobSensor

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")


def validate(dag: Any) -> None:
    """Raise an error if Airflow would refuse the file."""
    dag.validate_setup_teardown()


@pytest.mark.parametrize("rule", ["none_failed", "all_done", "none_failed_min_one_success"])
def test_a_trigger_rule_of_the_dag_breaks_no_file(rule: str) -> None:
    """Airflow allows only all_success after a setup. A rule in the DAG's ``default_args`` decides when the
    group begins; inside, the group decides."""
    with DAG("rules", schedule=None, default_args={"trigger_rule": rule}) as dag:
        with elastic_job(manifest={}) as job:
            own = EmptyOperator(task_id="own")
            job.wait(step=1)
            job.migrate_in_steps("moved", replicas=2) >> job.scale({"worker": 2})
        after = EmptyOperator(task_id="after")
        job >> after
        with elastic_job("alone", manifest={}):
            pass

    validate(dag)
    assert job.submit.trigger_rule == after.trigger_rule == rule
    assert own.trigger_rule == "all_success"
    assert job.trained.trigger_rule == "none_failed"
    assert job.cancel.trigger_rule == job.watcher.trigger_rule == "all_done"


def test_a_trigger_rule_of_the_group_is_the_one_of_its_beginning() -> None:
    """The group itself may begin by another rule than its DAG's tasks."""
    with DAG("rule", schedule=None) as dag, elastic_job(manifest={}, trigger_rule="all_done") as job:
        job.wait(step=1)
        job.migrate_in_steps(replicas=2)

    validate(dag)
    assert job.submit.trigger_rule == "all_done"


@pytest.mark.parametrize("operator", [CancelJobOperator, DeleteJobOperator])
def test_a_teardown_runs_whatever_happened_upstream(operator: Any) -> None:
    """A submit may fail after it has created its job, so a failed or skipped setup does not skip the
    teardown."""
    with DAG("teardown", schedule=None):
        submit = SubmitElasticJobOperator(task_id="submit", manifest={}, wait_for_completion=False)
        end = operator(task_id="end").as_teardown(setups=submit)
        output: Any = submit.output
        named = operator(task_id="named", name=output["name"]).as_teardown(setups=submit)

    assert (end.is_teardown, end.trigger_rule, end.name) == (True, "all_done", "")
    assert named.trigger_rule == "all_done_setup_success", "there is no name if the setup failed"


def test_only_the_watcher_can_fail_the_run() -> None:
    """A failed `cancel` does not turn a run red, and `trained` remains the task by which Airflow judges the
    group."""
    with DAG("watched", schedule=None), elastic_job(manifest={}, namespace="ns", retries=3) as job:
        pass

    assert job.watcher.on_failure_fail_dagrun
    assert not job.cancel.on_failure_fail_dagrun
    assert job.trained.downstream_task_ids == {job.cancel.task_id}
    assert job.watcher.retries == 3


def test_what_can_be_repeated_is_retried_by_default() -> None:
    """Airflow may fail a task for reasons of its own. A wait and a teardown do no harm when they are
    repeated, so they are; a submit may train anew, so it is not. What the user says comes first."""
    with DAG("retries", schedule=None), elastic_job(manifest={}) as job:
        pass
    with DAG("told", schedule=None, default_args={"retries": 0}), elastic_job(manifest={}) as told:
        pass

    assert (job.trained.retries, job.cancel.retries, job.submit.retries) == (2, 2, 0)
    assert job.trained.retry_delay == timedelta(seconds=10)
    assert (told.trained.retries, told.cancel.retries) == (0, 0)


@pytest.mark.parametrize(
    ("defaults", "own", "expected"),
    [
        ({}, {}, (2, 10)),
        ({"retries": 0}, {}, (0, 300)),
        ({"retries": 3, "retry_delay": timedelta(seconds=7)}, {}, (3, 7)),
        ({}, {"retries": 1}, (1, 300)),
        ({}, {"retry_delay": 20}, (2, 20)),
        ({}, {"default_args": {"retries": 4}}, (4, 300)),
    ],
)
def test_a_mapped_task_has_the_same_retries(
    defaults: dict[str, Any], own: dict[str, Any], expected: tuple[int, int]
) -> None:
    """The scheduler reads the retries of a mapped task before any instance is made."""
    with DAG("mapped", schedule=None, default_args=defaults):
        plain = JobSensor(task_id="plain", kind="ElasticJob", name="a", **own)
        mapped: Any = JobSensor.partial(task_id="mapped", kind="ElasticJob", **own).expand(name=["a", "b"])
        submit: Any = SubmitElasticJobOperator.partial(task_id="submit").expand(manifest=[{}])

    for task in (plain, mapped):
        assert (task.retries, task.retry_delay) == (expected[0], timedelta(seconds=expected[1]))
    assert submit.retries == defaults.get("retries", 0), "as often as Airflow says"


def test_a_group_gives_its_retries_to_a_mapped_task() -> None:
    """The default arguments of a task group are above those of its DAG."""
    defaults: Any = {"retries": 5}
    with (
        DAG("grouped", schedule=None, default_args={"retries": 0}),
        TaskGroup("group", default_args=defaults),
    ):
        mapped: Any = JobSensor.partial(task_id="mapped", kind="ElasticJob").expand(name=["a"])

    assert mapped.retries == 5


def test_a_path_is_read_when_the_file_is_parsed(tmp_path: Path) -> None:
    """A `Path` is any file, with templates like a text. One that is absent fails while the DAG file is
    parsed, and not at night."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text("metadata: {name: '{{ ds_nodash }}'}\n# see other.yaml")

    with DAG("paths", schedule=None):
        with elastic_job(manifest=manifest) as job:
            pass

        def train() -> None: ...

        decorated: Any = elastic_task(template=manifest)(train)()

    for text in (job.submit.manifest, decorated.operator.template):
        assert text.startswith("metadata: {name: '{{ ds_nodash }}'}")
        assert not text.endswith(tuple(job.submit.template_ext))
    with DAG("absent", schedule=None), pytest.raises(FileNotFoundError, match="absent"):
        SubmitElasticJobOperator(task_id="submit", manifest=tmp_path / "absent.yaml")
