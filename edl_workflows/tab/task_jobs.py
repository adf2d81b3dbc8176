"""Finds the jobs and plans that the tasks of a DAG run work on, in Airflow's database, and decides who may
see them.

An XCom names the object. A user who may write XComs could name any object, so the XCom alone gives no access.
Either the object was created by a DAG that the user may see, or no DAG created it and the task's arguments
name it, and name its namespace unless that is the connection's. A deleted job has no owner any more: a task
of the same run must have created it. The connection's id is read from the arguments, too, but a
kubeconfig is not: it may name a program to run, and DAG authors may run programs only in workers.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from edl_workflows.exceptions import ForbiddenError
from edl_workflows.hooks.elastic_job import ConnectionSettings
from edl_workflows.hooks.task_object import OBJECT_KEY, TaskObject
from edl_workflows.hooks.task_owner import TaskOwner
from edl_workflows.kube.resources import Object
from edl_workflows.stages.identity import OWNER_ANNOTATION, StageIdentity
from edl_workflows.stages.ownership import annotation_of
from edl_workflows.tab.document import TaskReference

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

    def has(self, task: TaskReference) -> bool:
        """Whether a task instance of the run is selected."""
        return self.task_id is None or (self.task_id, self.map_index) == (task.task_id, task.map_index)


@dataclass(frozen=True)
class TaskWork:
    """What a task instance works on.

    Attributes:
        dag_id, run_id: the task's DAG and run.
        target: the job or plan.
        arguments: the rendered template fields, by name.
        run: what the tasks of the run work on, this one included; without runs of their own.
    """

    dag_id: str
    run_id: str
    task: TaskReference
    target: TaskObject
    arguments: Mapping[str, Any] = field(default_factory=dict)
    run: tuple["TaskWork", ...] = ()

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
    from sqlalchemy import and_, select

    def of_run(model: Any) -> list[Any]:
        return [model.dag_id == selection.dag_id, model.run_id == selection.run_id]

    chosen = and_(XComModel.task_id == selection.task_id, XComModel.map_index == selection.map_index)
    wanted = select(XComModel).where(XComModel.key == OBJECT_KEY, *of_run(XComModel))
    fields = select(Rendered.task_id, Rendered.map_index, Rendered.rendered_fields).where(*of_run(Rendered))
    with create_session() as session:
        rows = session.scalars(wanted.order_by(chosen.desc(), XComModel.timestamp.desc()).limit(MAX_TASKS))
        pushed = [(row.task_id, row.map_index, row.value) for row in rows]
        keys = {(task_id, map_index) for task_id, map_index, _ in pushed}
        rendered = {
            (task_id, map_index): values
            for task_id, map_index, values in session.execute(fields)
            if (task_id, map_index) in keys and isinstance(values, dict)
        }
    run = tuple(
        TaskWork(
            selection.dag_id,
            selection.run_id,
            TaskReference(task_id=task_id, map_index=map_index),
            target,
            rendered.get((task_id, map_index), {}),
        )
        for task_id, map_index, value in pushed
        if (target := TaskObject.read(value)) is not None
    )
    return [replace(work, run=run) for work in run if selection.has(work.task)]


def _texts(value: Any) -> Iterator[str]:
    """The texts in rendered arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _texts(below)


def dag_of_job(
    found: Object | None, name: str, work: TaskWork, engine: str, own_namespace: str
) -> str | None:
    """The DAG whose access rights apply to a job; None if the task gives nobody access to it.

    Args:
        found: the job; None if it was deleted.
        name: name of the job.
        work: the task instance whose XCom names the job.
        engine: the prefix of this Airflow's owner annotations.
        own_namespace: the connection's namespace, for tasks that name none.
    """
    if found is None:
        same = (one for one in work.run if one.target == work.target)
        return work.dag_id if any(_created(one, name, engine, own_namespace) for one in same) else None
    owner = TaskOwner.parse(annotation_of(found, OWNER_ANNOTATION))
    if owner is not None and owner.engine == engine:
        return owner.dag_id
    named = name in _texts(work.arguments) and _in_namespace(work, own_namespace)
    return work.dag_id if named else None


def _created(work: TaskWork, name: str, engine: str, own_namespace: str) -> bool:
    """Whether a task created the job that it works on: the job's name is derived from the task, or is that of
    the task's manifest. To wait for a job is not enough: another DAG may have created it."""
    task = TaskOwner(engine, work.dag_id, work.run_id, work.task.task_id, work.task.map_index)
    if StageIdentity(owner=str(task)).names(name):
        return True
    return _of_manifest(work.arguments.get("manifest"), name) and _in_namespace(work, own_namespace)


def _of_manifest(manifest: object, name: str) -> bool:
    """Whether a rendered manifest, which may be text, has this name."""
    if isinstance(manifest, str):
        return re.search(rf"^\s*name: *[\"']?{re.escape(name)}[\"']? *$", manifest, re.MULTILINE) is not None
    metadata = manifest.get("metadata") if isinstance(manifest, dict) else None
    return isinstance(metadata, dict) and metadata.get("name") == name


def _in_namespace(work: TaskWork, own_namespace: str) -> bool:
    """Whether the job's namespace is the connection's, or the task's arguments name it."""
    return work.target.namespace in (own_namespace, *_texts(work.arguments))


def connection_of(work: TaskWork) -> ConnectionSettings | None:
    """The connection of a task; None if Airflow no longer stores the task's arguments in a readable form.

    Raises:
        ForbiddenError: the task names a kubeconfig itself.
    """
    try:
        return work.connection
    except ValidationError:
        return None
