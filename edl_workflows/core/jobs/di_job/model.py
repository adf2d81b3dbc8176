"""DIJob's spec and status, ``diengine.opendilab.org/v2alpha1``.

Beyond upstream's fields: ``suspend``, and a task's ``minReplicas`` and ``maxReplicas``.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs import validation
from edl_workflows.core.jobs.status import Job, JobStatus, KindPhase, ReplicaCounts
from edl_workflows.core.kubernetes.objects import (
    FINAL_PHASES,
    Metadata,
    Model,
    TimeToLive,
    WholePodTemplate,
    cel_rules,
    job_name_rules,
    raise_problems,
)

MAX_REPLICAS = 10_000
"""Limit of a task, and of a whole job."""
MAX_TASKS = 64
MAX_NAME = 63 - len("di-")
"""The job's service is named ``di-<job>``; a service's name has at most 63 characters."""
MAX_TASK_NAME = 63 - len("j--0")
"""A pod's name is also its host name: ``<job>-<task>-<index>`` has at most 63 characters."""

_POD_NAME_PART = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")


MAIN_CONTAINER = "di-container"
"""Name of the container that runs the task. If a template has no such container, the first one runs the
task."""


class DIJobPhase(KindPhase):
    """Where a job is. Succeeded and Failed are final."""

    PENDING = "Pending"
    STARTING = "Starting"
    RESTARTING = "Restarting"
    RESCHEDULING = "Rescheduling"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class DITaskType(StrEnum):
    """What a task does in reinforcement learning. A job has at most one task of each but ``none``."""

    LEARNER = "learner"
    COLLECTOR = "collector"
    EVALUATOR = "evaluator"
    NONE = "none"


def main_container(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The container of a PodSpec that a task is about."""
    containers: list[dict[str, Any]] = spec["containers"]
    return next((c for c in containers if c.get("name") == MAIN_CONTAINER), containers[0])


class Task(Model):
    """One task: pods of one template.

    Attributes:
        replicas: how many pods. Of a preemptible job's elastic task (the only one, else the collector): how
            many at most, where it has no maxReplicas.
        type: what it does.
        name: default: the type. A task of type none needs one.
        template: the pods'. Its container di-container, else its first, is the task.
        min_replicas: at least so many, when others than the user change replicas; default 1.
        max_replicas: at most so many; default 10,000.
    """

    model_config = cel_rules(
        ("self.type != 'none' || (has(self.name) && self.name != '')", "name: a task of type none needs one"),
        (
            "!has(self.minReplicas) || self.minReplicas <= self.replicas",
            "replicas: must be at least minReplicas",
        ),
        (
            "!has(self.maxReplicas) || self.maxReplicas >= self.replicas",
            "replicas: must be at most maxReplicas",
        ),
    )
    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS)
    type: DITaskType
    name: str = Field(default="", max_length=MAX_TASK_NAME)
    template: WholePodTemplate = Field(default_factory=dict)
    min_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)
    max_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS)

    @property
    def title(self) -> str:
        """Its name, given or by default."""
        return self.name or str(self.type)

    @property
    def container(self) -> dict[str, Any]:
        """The container that the task is about."""
        return main_container(self.template["spec"])


_TITLE = "(has({0}.name) && {0}.name != '' ? {0}.name : {0}.type)"
"""CEL: a task's `Task.title`."""


class DIJobSpec(Model):
    """What the user asks for.

    Attributes:
        priority: high goes before normal when a preemptible job is placed.
        clean_pod_policy: what becomes of the pods when the job ends: Running deletes those that still run,
            All deletes every pod, None leaves all.
        preemptible: status.allocation says how many replicas there are and on which nodes, and may change
            while the job runs.
        backoff_limit: how many restarts after failures the job survives; null: any number.
        volumes: added to every pod's.
        tasks: what there is to run.
        suspend: no pods while true.
        ttl_seconds_after_finished: how long after its end the job is deleted, with its pods; left out: it
            stays until somebody deletes it.
    """

    model_config = cel_rules(
        (
            (
                "['learner', 'collector', 'evaluator'].all(kind, "
                "self.tasks.filter(t, t.type == kind).size() <= 1)"
            ),
            "tasks: at most one task of each of the types learner, collector and evaluator",
        ),
        (
            f"self.tasks.all(a, self.tasks.exists_one(b, {_TITLE.format('a')} == {_TITLE.format('b')}))",
            "tasks: names must differ; a task without one is named after its type",
        ),
    )
    priority: Literal["normal", "high"] = "normal"
    clean_pod_policy: Literal["Running", "All", "None"] = "Running"
    preemptible: bool = False
    backoff_limit: int | None = Field(default=3, ge=0)
    volumes: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    tasks: list[Task] = Field(min_length=1, max_length=MAX_TASKS)
    suspend: bool = False
    ttl_seconds_after_finished: TimeToLive | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*_find_task_problems(self), *_find_volume_problems(self.volumes)])
        return self

    def task(self, title: str) -> Task | None:
        """The task of this name."""
        return next((task for task in self.tasks if task.title == title), None)


class TaskCounts(ReplicaCounts):
    """Counters of one task.

    Attributes:
        completed: indices of replicas that have succeeded; kept after their pods are gone.
        ranks: rank of each replica, by index; a replica keeps its rank as long as it exists.
    """

    completed: list[int] = Field(default_factory=list)
    ranks: list[int] = Field(default_factory=list)


class DIJobStatus(JobStatus):
    """What is. The controller writes it, but for two fields.

    Attributes:
        replicas: how many pods the job is to have; of a preemptible job the length of its allocation.
        ready_replicas: how many of them are ready.
        restarts: how often pods were replaced after failures.
        reschedules: how often pods came, went or moved for another reason: other replicas, another
            allocation, lost pods.
        generation: grows whenever all pods are made anew, of a changed allocation or after a suspension; what
            carries an earlier one is stale.
        token_digest: what the DI server knows of the token of the job's programs (SHA-224).
        task_status: task → phase of pods → how many; absent once the job has ended.
        allocation: a node's name for each replica, in the order of ranks; the allocator writes it.
        profilings: what the job's programs report of their training; the DI server writes it.
        completion_timestamp: when the job ended; completionTime in upstream's spelling.
    """

    phase: DIJobPhase | None = None
    replica_statuses: dict[str, TaskCounts] = Field(default_factory=dict)
    replicas: int = 0
    ready_replicas: int = 0
    restarts: int = 0
    reschedules: int = 0
    generation: int = 0
    token_digest: str = ""
    task_status: dict[str, dict[str, int]] | None = None
    allocation: list[str] = Field(default_factory=list)
    profilings: dict[str, Any] = Field(default_factory=dict)
    completion_timestamp: datetime | None = None


class DIJob(Job):
    """A reinforcement learning job of DI-engine: learner, collectors, evaluator, each told of the others."""

    model_config = cel_rules(
        *job_name_rules(MAX_NAME, letter_first=False),
        FINAL_PHASES,
    )
    api_version: Literal["diengine.opendilab.org/v2alpha1"] = "diengine.opendilab.org/v2alpha1"
    kind: Literal["DIJob"] = "DIJob"
    spec: DIJobSpec
    status: DIJobStatus = Field(default_factory=DIJobStatus)

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which it stays after its end."""
        return self.spec.ttl_seconds_after_finished

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems(
            [
                *validation.job_name(self.metadata, MAX_NAME, prefix="di-"),
                *_find_pod_name_problems(self.metadata, self.spec),
            ]
        )
        return self


def _find_pod_name_problems(metadata: Metadata, spec: DIJobSpec) -> list[Problem]:
    """A pod's name is also its host name, which has at most 63 characters."""
    job = metadata.name or (metadata.generate_name or "") + "x" * validation.GENERATED_SUFFIX
    problems = []
    for index, task in enumerate(spec.tasks):
        longest = f"{job}-{task.title}-{task.replicas - 1}"
        if len(longest) > 63:
            size = f"{len(longest)} characters, at most 63"
            message = f"pods would be named like {longest!r} ({size}): shorten it or the job's name"
            problems.append(Problem(f"spec.tasks.{index}.name", message))
    return problems


def _find_task_problems(spec: DIJobSpec) -> list[Problem]:
    """Problems of the tasks: combinations, names, bounds, and the parts of the templates that the pods are
    built from.
    """
    problems = [*_doubles(spec)]
    for index, task in enumerate(spec.tasks):
        problems += [
            Problem(f"tasks.{index}.{problem.path}", problem.message)
            for problem in (*_name(task), *_bounds(task))
        ]
        problems += [
            Problem(f"tasks.{index}.template.{problem.path}", problem.message)
            for problem in (*validation.template_problems(task.template), *_doubled_volumes(spec, task))
        ]
    if (total := sum(task.replicas for task in spec.tasks)) > MAX_REPLICAS:
        problems.append(
            Problem("tasks", f"have {total} replicas together, at most {MAX_REPLICAS} are possible")
        )
    return problems


def _find_volume_problems(given: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Each volume has a name of its own, and values of the right types."""
    names = [volume.get("name") for volume in given]
    missing = [
        Problem(f"volumes.{index}.name", "required field is missing")
        for index, volume in enumerate(names)
        if not volume or not isinstance(volume, str)
    ]
    twice = [name for name, count in Counter(map(str, names)).items() if count > 1 and name != "None"]
    doubled = [Problem("volumes", f"there is more than one volume named {name!r}") for name in twice]
    return missing + doubled + validation.part_problems("volumes", given, "Volume[]")


def _doubled_volumes(spec: DIJobSpec, task: Task) -> list[Problem]:
    """Volumes of a template that are also in the job's ``volumes``."""
    pod = task.template.get("spec")
    own = pod.get("volumes") if isinstance(pod, Mapping) else None
    shared = {volume.get("name") for volume in spec.volumes}
    names = (
        [str(volume.get("name")) for volume in own or () if isinstance(volume, Mapping)]
        if isinstance(own, list)
        else []
    )
    message = "is in spec.volumes, too; every pod has those, so keep one of the two"
    return [Problem("spec.volumes", f"{name!r} {message}") for name in names if name in shared]


def _doubles(spec: DIJobSpec) -> list[Problem]:
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


def _name(task: Task) -> list[Problem]:
    if not task.name and task.type == "none":
        return [Problem("name", "a task of type none needs one")]
    if not _POD_NAME_PART.match(task.title):
        return [Problem("name", f"{task.name!r} must be lower-case letters, digits and '-'")]
    return []


def _bounds(task: Task) -> list[Problem]:
    low, high = task.min_replicas or 1, task.max_replicas or MAX_REPLICAS
    if low > high:
        return [Problem("minReplicas", f"is {low}, but maxReplicas is {high}")]
    if task.replicas < low:
        return [Problem("replicas", f"is {task.replicas}, but minReplicas is {low}")]
    if task.replicas > high:
        return [Problem("replicas", f"is {task.replicas}, but maxReplicas is {high}")]
    return []
