"""Finds the jobs and plans that the tasks of a DAG run work on, in Airflow's database, and decides who may
see them.

An XCom names the object. A user who may write XComs could name any object, so the XCom alone gives no access.
Either the object was created by a DAG that the user may see, or no DAG created it and the task's arguments
name it, and name its namespace unless that is the connection's. A deleted job no longer has an owner, so it
is shown only for the task whose manifest names it, or from which its name is derived. The connection's id is
read from the arguments, too, but a kubeconfig is not: it may name a program to run, and DAG authors may run
programs only in workers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings
from edl_workflows.airflow.hooks.task_object import OBJECT_KEY, TaskObject
from edl_workflows.airflow.hooks.task_owner import TaskOwner
from edl_workflows.airflow.tab.document import TaskReference
from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION, StageIdentity
from edl_workflows.pipelines.waiting.ownership import annotation_of
from edl_workflows.runtime.kube.resources import Object

MAX_TASKS = 100
"""Most task instances of a run that are read."""
_CONNECTION_FIELDS = ("kubernetes_conn_id", "cluster_context")


@dataclass(frozen=True)
class TaskSelection:
    """Task instances of a DAG run.

    Attributes:
        task_id: one task; None for all tasks of the run.
        map_index: of the task; -1 if it is not mapped.
    """

    dag_id: str
    run_id: str
    task_id: str | None = None
    map_index: int = -1


@dataclass(frozen=True)
class TaskWork:
    """What a task instance works on.

    Attributes:
        dag_id, run_id: the task's DAG and run.
        target: the job or plan.
        arguments: the rendered template fields, by name.
    """

    dag_id: str
    run_id: str
    task: TaskReference
    target: TaskObject
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def connection(self) -> ConnectionSettings:
        """The connection to the cluster.

        Raises:
            ForbiddenError: the task names a kubeconfig itself.
            ValidationError: an argument is not text.
        """
        if self.arguments.get("config_file"):
            raise ForbiddenError(
                "the task names a kubeconfig itself (config_file), which Airflow's API server does not load; "
                "the tab reads the clusters of connections"
            )
        given = {key: self.arguments[key] for key in _CONNECTION_FIELDS if key in self.arguments}
        return ConnectionSettings.model_validate(given)


def find_work(selection: TaskSelection) -> list[TaskWork]:
    """What the selected task instances work on, latest first. Blocks.

    XComs are read as the JSON that tasks store. Airflow's own deserialization would build objects of classes
    that an XCom names, and import their modules, in the API server.
    """
    from airflow.models.renderedtifields import RenderedTaskInstanceFields as Rendered
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import Select, select

    def of_selection(model: Any) -> list[Any]:
        conditions = [model.dag_id == selection.dag_id, model.run_id == selection.run_id]
        if selection.task_id is None:
            return conditions
        return [*conditions, model.task_id == selection.task_id, model.map_index == selection.map_index]

    newest = XComModel.timestamp.desc()
    xcom_query: Select[Any] = select(XComModel).where(XComModel.key == OBJECT_KEY, *of_selection(XComModel))
    fields = select(Rendered.task_id, Rendered.map_index, Rendered.rendered_fields)
    with create_session() as session:
        pushed = [
            (xcom.task_id, xcom.map_index, xcom.value)
            for xcom in session.scalars(xcom_query.order_by(newest).limit(MAX_TASKS))
        ]
        keys = {(task_id, map_index) for task_id, map_index, _ in pushed}
        rendered = {
            (task_id, map_index): values
            for task_id, map_index, values in session.execute(fields.where(*of_selection(Rendered)))
            if (task_id, map_index) in keys and isinstance(values, dict)
        }
    return [
        TaskWork(
            selection.dag_id,
            selection.run_id,
            TaskReference(task_id=task_id, map_index=map_index),
            target,
            rendered.get((task_id, map_index), {}),
        )
        for task_id, map_index, value in pushed
        if (target := TaskObject.read(value)) is not None
    ]


def _texts(value: Any) -> Iterator[str]:
    """The texts in rendered arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _texts(below)


def dag_of_job(
    manifest: Object | None, name: str, work: TaskWork, engine: str, own_namespace: str
) -> str | None:
    """The DAG whose access rights apply to a job; None if the task gives nobody access to it.

    Args:
        manifest: the job; None if it was deleted.
        name: name of the job.
        work: the task instance whose XCom names the job.
        engine: the prefix of this Airflow's owner annotations.
        own_namespace: the connection's namespace, for tasks that name none.
    """
    owner = TaskOwner.parse(annotation_of(manifest, OWNER_ANNOTATION)) if manifest is not None else None
    if owner is not None and owner.engine == engine:
        return owner.dag_id
    task = TaskOwner(engine, work.dag_id, work.run_id, work.task.task_id, work.task.map_index)
    if manifest is None and StageIdentity(owner=str(task)).names(name):
        return work.dag_id
    given = set(_texts(work.arguments))
    named = _submits(work, name) if manifest is None else name in given
    return work.dag_id if named and work.target.namespace in (own_namespace, *given) else None


def _submits(work: TaskWork, name: str) -> bool:
    """Whether the task submits a job of this name. One that only waits for a job, or changes it, may work on
    that of another DAG."""
    manifest = work.arguments.get("manifest")
    metadata = manifest.get("metadata") if isinstance(manifest, dict) else None
    return isinstance(metadata, dict) and metadata.get("name") == name


def connection_of(work: TaskWork) -> ConnectionSettings | None:
    """The connection of a task; None if Airflow no longer stores the task's arguments in a readable form.

    Raises:
        ForbiddenError: the task names a kubeconfig itself.
    """
    try:
        return work.connection
    except ValidationError:
        return None
