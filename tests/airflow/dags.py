"""Running a DAG that a test built, in this process: Airflow wants its serialised form in the database
first."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import DAG


def run(dag: "DAG", **arguments: Any) -> Any:
    """``dag.test()``; the run that it made."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.serialization.definitions.dag import SerializedDAG
    from airflow.serialization.serialized_objects import LazyDeserializedDAG

    manager: Any = DagBundlesManager
    manager().sync_bundles_to_db()
    lazy = LazyDeserializedDAG.from_dag(dag)
    SerializedDAG.bulk_write_to_db("dags-folder", None, [lazy])
    SerializedDagModel.write_dag(lazy, bundle_name="dags-folder")
    return dag.test(**arguments)


def result(run_: Any, task_id: str) -> Any:
    """What a task returned."""
    return run_.get_task_instance(task_id).xcom_pull(task_ids=task_id)


def states(run_: Any) -> dict[str, str]:
    """Of all tasks."""
    return {ti.task_id: str(ti.state) for ti in run_.get_task_instances()}
