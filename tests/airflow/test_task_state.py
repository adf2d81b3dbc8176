"""What Airflow's own API answers about tasks that were cleared and about runs that were deleted: `on_kill`
tells them apart by it."""

from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, task

from edl_workflows.airflow.hooks.task_state import DELETED, ENDED_STATES, task_state
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW

pytestmark = IN_AIRFLOW


def empty_run(dag_id: str) -> Any:
    """A run of a DAG with one task and two mapped ones, which has ended."""
    with DAG(dag_id, schedule=None) as dag:

        @task
        def plain() -> None: ...

        @task
        def mapped(_one: int) -> None: ...

        plain()
        mapped.expand(_one=[1, 2])
    return dags.run(dag)


def ask(dag_id: str, run_id: str) -> dict[str, str | None]:
    """What `task_state` says in a worker about the run's task instances."""
    with DAG(f"asks-about-{dag_id}", schedule=None) as dag:

        @task(multiple_outputs=False)  # Airflow 3.0 has no XCom that is None
        def asks() -> dict[str, str | None]:
            instances = {"plain": ("plain", -1), "mapped": ("mapped", 1), "beyond": ("mapped", 7)}
            return {
                name: task_state(
                    SimpleNamespace(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index)
                )
                for name, (task_id, index) in instances.items()
            }

        asks()
    return dict(dags.result(dags.run(dag), "asks"))


def clear(run: Any) -> None:
    """As a user does on the run's page."""
    from airflow.models.taskinstance import clear_task_instances
    from airflow.utils.session import create_session

    with create_session() as session:
        clear_task_instances(list(run.get_task_instances(session=session)), session)


def delete(run: Any) -> None:
    """As a user does on the run's page."""
    from airflow.utils.session import create_session

    with create_session() as session:
        session.delete(session.merge(run))


def test_a_finished_task_has_its_state(airflow_db: None) -> None:
    """Each instance of a mapped task has its own state. An index that the mapping does not have counts as
    deleted."""
    run = empty_run("finished")

    assert ask("finished", run.run_id) == {"plain": "success", "mapped": "success", "beyond": DELETED}


def test_a_cleared_task_has_no_state_yet(airflow_db: None) -> None:
    """A cleared task has no state, which does not count as ended, since its next attempt continues with the
    object."""
    run = empty_run("cleared")
    clear(run)

    told = ask("cleared", run.run_id)

    assert (told["plain"], told["mapped"]) == (None, None)
    assert None not in ENDED_STATES


def test_a_task_of_a_deleted_run_has_ended(airflow_db: None) -> None:
    """A task of a deleted run counts as ended, since no later attempt will continue with its object."""
    run = empty_run("deleted")
    delete(run)

    told = ask("deleted", run.run_id)

    assert set(told.values()) == {DELETED}
    assert DELETED in ENDED_STATES
