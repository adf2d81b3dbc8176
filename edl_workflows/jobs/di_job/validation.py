"""What is wrong with a DIJob beyond its single fields. Pure functions that return problems; the models raise
them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import validation
from edl_workflows.jobs.objects import Metadata

if TYPE_CHECKING:
    from edl_workflows.jobs.di_job.model import DIJobSpec, Task

MAX_REPLICAS = 10_000
"""Of a task, and of a job."""
MAX_TASKS = 64
MAX_NAME = 63 - len("di-")
"""The job's service is named ``di-<job>``, and holds 63 characters."""
MAX_TASK_NAME = 63 - len("j--0")
"""A pod's name is its host's, too: ``<job>-<task>-<index>`` holds 63 characters."""

_POD_NAME_PART = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")


def name(metadata: Metadata) -> list[Problem]:
    """The job's name becomes part of its service's name and a label's value."""
    return validation.job_name(metadata, MAX_NAME, prefix="di-")


def pod_names(metadata: Metadata, spec: "DIJobSpec") -> list[Problem]:
    """Names of pods are names of hosts, which hold 63 characters; and no two tasks may want the same."""
    job = metadata.name or (metadata.generate_name or "") + "x" * validation.GENERATED_SUFFIX
    problems = []
    for index, task in enumerate(spec.tasks):
        longest = f"{job}-{task.title}-{task.replicas - 1}"
        if len(longest) > 63:
            message = f"pods would be named like {longest!r} ({len(longest)} characters, at most 63): shorten it or the job's name"
            problems.append(Problem(f"spec.tasks.{index}.name", message))
    return problems


def tasks(spec: "DIJobSpec") -> list[Problem]:
    """Which tasks go together, their names and bounds, and the parts of the templates that the pods are built
    on.
    """
    problems = [*_doubles(spec)]
    for index, task in enumerate(spec.tasks):
        problems += [
            Problem(f"tasks.{index}.{problem.path}", problem.message)
            for problem in (*_name(task), *_bounds(task))
        ]
        problems += [
            Problem(f"tasks.{index}.template.{problem.path}", problem.message)
            for problem in (*validation.template(task.template), *_doubled_volumes(spec, task))
        ]
    if (total := sum(task.replicas for task in spec.tasks)) > MAX_REPLICAS:
        problems.append(
            Problem("tasks", f"have {total} replicas together, at most {MAX_REPLICAS} are possible")
        )
    return problems


def volumes(given: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Each volume has a name of its own."""
    names = [volume.get("name") for volume in given]
    missing = [
        Problem(f"volumes.{index}.name", "required field is missing")
        for index, volume in enumerate(names)
        if not volume or not isinstance(volume, str)
    ]
    twice = [one for one, count in Counter(map(str, names)).items() if count > 1 and one != "None"]
    return missing + [Problem("volumes", f"there is more than one volume named {one!r}") for one in twice]


def _doubled_volumes(spec: "DIJobSpec", task: "Task") -> list[Problem]:
    """Volumes of a template that the job has, too."""
    pod = task.template.get("spec")
    own = pod.get("volumes") if isinstance(pod, Mapping) else None
    shared = {volume.get("name") for volume in spec.volumes}
    names = (
        [one.get("name") for one in own or () if isinstance(one, Mapping)] if isinstance(own, list) else []
    )
    message = "is in spec.volumes, too; every pod has those, so keep one of the two"
    return [Problem("spec.volumes", f"{name!r} {message}") for name in names if name in shared]


def _doubles(spec: "DIJobSpec") -> list[Problem]:
    types: dict[str, int] = {}
    names: dict[str, int] = {}
    problems = []
    for index, task in enumerate(spec.tasks):
        if task.type in types and task.type != "none":
            message = (
                f"tasks.{types[task.type]} is the job's {task.type} already; a job has one, with replicas"
            )
            problems.append(Problem(f"tasks.{index}.type", message))
        elif task.title in names:
            message = f"{task.title!r} is the name of tasks.{names[task.title]}, too; names must differ"
            problems.append(Problem(f"tasks.{index}.name", message))
        types.setdefault(task.type, index)
        names.setdefault(task.title, index)
    return problems


def _name(task: "Task") -> list[Problem]:
    if not task.name and task.type == "none":
        return [Problem("name", "a task of type none needs one")]
    if not _POD_NAME_PART.match(task.title):
        return [Problem("name", f"{task.name!r} must be lower-case letters, digits and '-'")]
    return []


def _bounds(task: "Task") -> list[Problem]:
    low, high = task.min_replicas or 1, task.max_replicas or MAX_REPLICAS
    if low > high:
        return [Problem("minReplicas", f"is {low}, but maxReplicas is {high}")]
    if task.replicas < low:
        return [Problem("replicas", f"is {task.replicas}, but minReplicas is {low}")]
    if task.replicas > high:
        return [Problem("replicas", f"is {task.replicas}, but maxReplicas is {high}")]
    return []
