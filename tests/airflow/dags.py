"""Running a DAG that a test built, in this process: Airflow wants its serialised form in the database
first."""

from datetime import UTC, datetime
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG


def run(dag: "DAG", **arguments: Any) -> Any:
    """``dag.test()``; the run that it made."""
    write(dag)
    return dag.test(**arguments)


def write(dag: "DAG") -> None:
    """Write the serialised form into the database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization import serialized_objects

    try:
        from airflow.serialization.definitions import dag as home
    except ImportError:
        home = serialized_objects  # type: ignore[misc]
    serialized_dag: Any = home.SerializedDAG
    manager: Any = DagBundlesManager
    manager().sync_bundles_to_db()
    dag.relative_fileloc = "test.py"  # callbacks name the file
    lazy_dag: Any = serialized_objects.LazyDeserializedDAG
    if hasattr(lazy_dag, "from_dag"):
        lazy = lazy_dag.from_dag(dag)
    else:  # before 3.1
        lazy = lazy_dag(data=serialized_dag.to_dict(dag))
    serialized_dag.bulk_write_to_db("dags-folder", None, [lazy])
    SerializedDagModel.write_dag(lazy, bundle_name="dags-folder")


def begin(dag: "DAG", last: str) -> str:
    """Start a run and leave it when a task has ended; the run's id."""
    write(dag)
    run_id = f"manual__{dag.dag_id}"
    create_run(dag, run_id)
    go_on(dag, run_id, last)
    return run_id


def create_run(dag: "DAG", run_id: str) -> None:
    """A run none of whose tasks has begun, of a DAG that has been written."""
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        stored(dag, session).create_dagrun(
            run_id=run_id,
            run_after=datetime.now(UTC),
            run_type=DagRunType.MANUAL,
            triggered_by=DagRunTriggeredByType.TEST,
            state="running",
            session=session,
        )


def find_run(dag_id: str, run_id: str, session: Any) -> Any:
    """A run in the database."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    return session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).one()


def stored(dag: "DAG", session: Any) -> Any:
    """The DAG as the scheduler and the API server read it."""
    try:
        from airflow.models.dagbag import DBDagBag
    except ImportError:  # before 3.1
        from airflow.models.serialized_dag import SerializedDagModel

        return SerializedDagModel.get_dag(dag.dag_id, session=session)
    return DBDagBag().get_latest_version_of_dag(dag.dag_id, session=session)


def go_on(dag: "DAG", run_id: str, last: str = "") -> dict[str, str]:
    """Run the tasks of a run that are due, as ``dag.test()`` does, until the run or the task `last` has
    ended; the states of the run (as ``run``) and its tasks, and which callback the run's end calls (as
    ``callback``; absent if the DAG has none)."""
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.session import create_session

    with create_session() as session:
        while True:
            session.expire_all()
            found = find_run(dag.dag_id, run_id, session)  # a task that ran here has closed the session
            found.dag = stored(dag, session)
            due, callback = found.update_state(session=session, execute_callbacks=False)
            ended = {ti.task_id: str(ti.state) for ti in found.get_task_instances(session=session)}
            if callback is not None:
                ended["callback"] = "failed" if callback.is_failure_callback else "success"
            if found.state not in ("running", "queued") or ended.get(last) in ("success", "failed"):
                return {**ended, "run": str(found.state)}
            for ti in due:
                ti.try_number += 1
                ti.state = "scheduled"
            session.commit()
            for ti in due:
                run_task: Any = _run_task
                task: Any = dag.task_dict[ti.task_id]
                if "task" in signature(_run_task).parameters:
                    run_task(ti=ti, task=task, run_triggerer=True)
                else:  # before 3.1
                    ti.task = task
                    run_task(ti=ti, run_triggerer=True)


def clear(dag: "DAG", run_id: str, task_id: str, *, downstream: bool = True) -> None:
    """Clear a task as its page does, with the setups and teardowns that Airflow adds; "" for the whole
    run."""
    from airflow.utils.session import create_session

    with create_session() as session:
        whole = stored(dag, session)
        chosen = [task_id] if task_id else list(whole.task_dict)
        part = whole.partial_subset(task_ids=chosen, include_downstream=downstream, include_upstream=False)
        whole.clear(task_ids=list(part.task_dict), run_id=run_id, dag_run_state="running", session=session)


def mark_run(dag: "DAG", run_id: str, state: str) -> None:
    """Mark a run failed or succeeded, as its page does."""
    from airflow.api.common import mark_tasks
    from airflow.utils.session import create_session

    mark = {
        "failed": mark_tasks.set_dag_run_state_to_failed,
        "success": mark_tasks.set_dag_run_state_to_success,
    }
    with create_session() as session:
        mark[state](dag=stored(dag, session), run_id=run_id, commit=True, session=session)


def mark_task(dag: "DAG", run_id: str, task_id: str, state: str) -> None:
    """Mark a task failed or succeeded, as its page does."""
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        stored(dag, session).set_task_instance_state(
            task_id=task_id, run_id=run_id, state=TaskInstanceState(state), session=session
        )


def set_state(dag: "DAG", run_id: str, task_id: str, state: str | None) -> None:
    """Set the state of all instances of a task, as a scheduler or a worker does."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        task = (TaskInstance.dag_id == dag.dag_id, TaskInstance.run_id == run_id)
        session.execute(
            update(TaskInstance).where(*task, TaskInstance.task_id == task_id).values(state=state)
        )


def delete_run(dag: "DAG", run_id: str) -> None:
    """Delete a run, as its page does."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == dag.dag_id, DagRun.run_id == run_id))


def result(run_: Any, task_id: str) -> Any:
    """What a task returned."""
    return run_.get_task_instance(task_id).xcom_pull(task_ids=task_id)


def states(run_: Any) -> dict[str, str]:
    """Of all tasks."""
    return {ti.task_id: str(ti.state) for ti in run_.get_task_instances()}
