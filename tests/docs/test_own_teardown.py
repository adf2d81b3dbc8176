"""The DAG with a teardown of its own of how-to/write-a-dag.md."""

from datetime import UTC, datetime

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from edl_workflows.operators import (
    CancelJobOperator,
    FailMarkedRunOperator,
    SubmitElasticJobOperator,
)


def test_a_teardown_of_ones_own_has_a_watcher_behind_it() -> None:
    """The watcher is the last teardown of `submit`, behind `cancel`; only it may fail the run."""
    with DAG("own-teardown", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
        submit = SubmitElasticJobOperator(task_id="submit", manifest={"kind": "ElasticJob"})
        train = EmptyOperator(task_id="train")
        cancel = CancelJobOperator(task_id="cancel").as_teardown(setups=submit)
        watcher = FailMarkedRunOperator(task_id="watcher").as_teardown(
            setups=submit, on_failure_fail_dagrun=True
        )
        submit >> train >> cancel >> watcher

    assert submit.is_setup
    assert cancel.is_teardown
    assert watcher.is_teardown
    assert watcher.on_failure_fail_dagrun
    assert watcher.upstream_task_ids == {"cancel", "submit"}
