"""Resizing a DIJob: which of its tasks is elastic, within what bounds, and the edit of its spec. Pure.

Everything that resizes a DIJob uses this module: ``edl scale`` and the stage (`scale`), the DI server, the
allocator.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.jobs.actions import RoleChange, SpecEdit
from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.di_job.model import MAX_REPLICAS, DIJob, DIJobSpec, DITaskType, Task
from edl_workflows.core.kubernetes import demand


def elastic_task(spec: DIJobSpec, name: str | None = None) -> Task:
    """The task that a request for another number of replicas is about.

    Args:
        spec: the job's.
        name: the task's name. None: the job's only task, else its collector.

    Raises:
        ManifestError: there is no such task, or several and no collector.
    """
    elastic = _default_elastic(spec) if name is None else spec.task(name)
    if elastic is not None:
        return elastic
    has = ", ".join(task.title for task in spec.tasks)
    if name is not None:
        raise ManifestError(
            "change of a DIJob", [Problem("task", f"the job has no task {name!r}; it has {has}")]
        )
    message = f"the job has several tasks and no collector: say which of {has}"
    raise ManifestError("change of a DIJob", [Problem("task", message)])


def replica_bounds(job: DIJob) -> tuple[int, int]:
    """How many replicas, of all tasks together, the job may have: at least and at most.

    Only the elastic task can be resized. A job of several tasks without a collector has no elastic task, so
    both bounds are its present size.
    """
    task = _default_elastic(job.spec)
    total = sum(each.replicas for each in job.spec.tasks)
    if task is None:
        return total, total
    fixed_replicas = total - task.replicas
    low, high = task_bounds(task)
    return fixed_replicas + low, min(fixed_replicas + high, MAX_REPLICAS)


def task_bounds(task: Task) -> tuple[int, int]:
    """How many replicas a task may have: at least and at most."""
    return task.min_replicas or 1, task.max_replicas or MAX_REPLICAS


def tasks_by_rank(spec: DIJobSpec) -> list[Task]:
    """The tasks in the order of their ranks: the order of the spec, but with the elastic task last, so that
    resizing it changes no rank of another task.
    """
    last = _default_elastic(spec)
    return [task for task in spec.tasks if task is not last] + ([last] if last is not None else [])


def task_sizes(job: DIJob) -> list[tuple[Task, int]]:
    """The tasks in the order of ranks, each with its replicas.

    In a preemptible job, the elastic task gets what the other tasks leave of the allocation. Nodes beyond the
    job's bounds are not used. If the other tasks leave nothing, no task has any replicas.
    """
    order = tasks_by_rank(job.spec)
    if not job.spec.preemptible:
        return [(task, task.replicas) for task in order]
    fixed = [(task, task.replicas) for task in order[:-1]]
    rest = min(len(job.status.allocation), replica_bounds(job)[1]) - sum(count for _, count in fixed)
    least = 1 if _default_elastic(job.spec) else order[-1].replicas
    return [*fixed, (order[-1], rest)] if rest >= least else [(task, 0) for task in order]


def resize_patch(job: DIJob, task: str, replicas: int) -> dict[str, Any]:
    """The merge patch of ``spec`` that gives a task this number of replicas. A merge patch replaces the whole
    list of tasks, so send it with the job's ``resourceVersion``.

    Raises:
        ManifestError: there is no such task, or its bounds forbid it.
    """
    return {"tasks": _patched(job, {elastic_task(job.spec, task).title: RoleChange(replicas)})}


def scale(job: DIJob, role_changes: Mapping[str, RoleChange]) -> SpecEdit:
    """The edit that gives tasks these replicas or resources; other tasks stay as they are.

    Raises:
        ManifestError: the job has no such task, or its bounds forbid it; or it is preemptible, so that its
            allocator decides about its replicas.
    """
    problems = [
        Problem(
            f"replicas.{name}",
            "the job is preemptible: its allocator decides; change minReplicas or maxReplicas",
        )
        for name, change in role_changes.items()
        if job.spec.preemptible and change.replicas is not None
    ]
    if problems:
        raise ManifestError(f"change of DIJob {job.key}", problems)
    tasks = _patched(job, role_changes)
    nodes = (
        [count for _, count in task_sizes(job)] if job.spec.preemptible else [t["replicas"] for t in tasks]
    )
    return SpecEdit({"tasks": tasks}, sum(nodes))


def elastic_role(job: DIJob) -> ElasticRole | None:
    """The job's elastic task, bounded by its minReplicas and maxReplicas; None if the job has no such task,
    or is preemptible, so that the allocator decides.
    """
    task = _default_elastic(job.spec)
    if task is None or job.spec.preemptible:
        return None
    low, high = task_bounds(task)
    spec, bounded = task.template["spec"], task.max_replicas is not None
    return ElasticRole(
        task.title, low, high, task.replicas, replica_requests(task, {}), spec, bounded=bounded
    )


def replica_requests(task: Task, defaults: Mapping[str, str]) -> dict[str, float]:
    """The resources that the pod of a preemptible job's replica requests, including all its containers.

    Args:
        task: the replica's.
        defaults: requests of the task's main container for resources that it does not name
            (`InstallationSettings.di_job_resources`).
    """
    main = task.container

    def of(container: Mapping[str, Any]) -> dict[str, float]:
        own = demand.container_requests(container)
        if container is not main:
            return own
        return own | demand.parse_amounts(missing_requests(container.get("resources") or {}, defaults))

    return demand.pod_requests(task.template["spec"], of)


def missing_requests(resources: Mapping[str, Any], defaults: Mapping[str, str]) -> dict[str, str]:
    """The defaults for resources of which a container has neither a request nor a limit (a limit without a
    request counts as the request).
    """
    specified = {*(resources.get("limits") or {}), *(resources.get("requests") or {})}
    return {name: amount for name, amount in defaults.items() if name not in specified}


def _default_elastic(spec: DIJobSpec) -> Task | None:
    if len(spec.tasks) == 1:
        return spec.tasks[0]
    return next((task for task in spec.tasks if task.type is DITaskType.COLLECTOR), None)


def _patched(job: DIJob, role_changes: Mapping[str, RoleChange]) -> list[dict[str, Any]]:
    """The spec's new list of tasks."""
    problems = list(_problems(job.spec.tasks, role_changes))
    if problems:
        raise ManifestError(f"change of DIJob {job.key}", problems)
    return [_changed(task, role_changes.get(task.title, RoleChange())) for task in job.spec.tasks]


def _problems(tasks: Sequence[Task], role_changes: Mapping[str, RoleChange]) -> list[Problem]:
    by_title = {task.title: task for task in tasks}
    problems = []
    for name, change in role_changes.items():
        path = f"replicas.{name}"
        if name not in by_title:
            problems.append(Problem(path, f"the job has no such task; it has {', '.join(sorted(by_title))}"))
            continue
        low, high = task_bounds(by_title[name])
        if change.replicas is not None and not low <= change.replicas <= high:
            message = f"{change.replicas} is outside of the task's bounds: at least {low}, at most {high}"
            problems.append(Problem(path, message))
    return problems


def _changed(task: Task, change: RoleChange) -> dict[str, Any]:
    made = copy.deepcopy(task).to_dict()
    made["template"] = copy.deepcopy(task.template)
    if change.replicas is not None:
        made["replicas"] = change.replicas
    if change.resources:
        changed = task.model_copy(update={"template": made["template"]}).container
        own = changed.get("resources") or {}
        changed["resources"] = own | {
            part: (own.get(part) or {}) | dict(change.resources) for part in ("requests", "limits")
        }
    return made
