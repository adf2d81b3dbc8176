"""What the tests of all stages read of one stage: `STAGE_CASES` has an entry for each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edl_workflows import operators, sensors
from tests.airflow.support import elastic_job

if TYPE_CHECKING:
    from edl_workflows.operators.base import StageTask

JOB = "mnist"
"""The job that each stage here works on."""
Outcomes = tuple[str, str, str, str]
"""What a task comes to with a job that is running, has succeeded, has failed or is gone."""
WAITS, SUCCEEDS, SKIPPED, REPLACED = "waits", "succeeds", "is skipped", "a new job trains"
FOR_GOOD, RETRIED, UNREACHABLE = "fails for good", "fails", "–"
"""Unreachable: the job that the attempt before waited for had ended."""


@dataclass(frozen=True)
class TaskCase:
    """A stage as a task of Airflow.

    Attributes:
        name: as the table in ``docs/how-to/write-a-dag.md`` calls it.
        make: makes the task.
        retried: what an attempt comes to if the one before still waited; None for a stage that never waits.
        cleared: the same if the one before had succeeded.
        goal: the job's phase when the task's goal is reached.
    """

    name: str
    make: "Callable[..., StageTask]"
    retried: Outcomes | None = None
    cleared: Outcomes | None = None
    goal: str = "Running"

    @property
    def reruns(self) -> dict[str, Outcomes]:
        """The rows of the table: what happened to the task → the outcomes."""
        outcomes = {"retried": self.retried, "cleared": self.cleared}
        return {action: each for action, each in outcomes.items() if each is not None}


@dataclass(frozen=True)
class StageCases:
    """The cases of one stage.

    Attributes:
        change: a request to change `JOB`, or to plan a change; None for a stage that begins, watches or ends
            a job.
        tasks: its tasks of Airflow; none for a stage that no test runs again.
        inputs: values for the inputs of its Argo step; those without a default need one, apart from the
            name of the job.
        command: whether the command line has it.
    """

    change: Mapping[str, Any] | None
    tasks: tuple[TaskCase, ...]
    inputs: Mapping[str, str] = field(default_factory=dict)
    command: bool = True


PLAN_RETRIED: Outcomes = (WAITS, WAITS, WAITS, RETRIED)
"""The controller ends a plan whose job has ended. The task is then skipped, or fails."""
PLAN_CLEARED: Outcomes = (WAITS, SUCCEEDS, SUCCEEDS, RETRIED)
CHANGE_WAITS: Outcomes = (WAITS, SKIPPED, FOR_GOOD, RETRIED)
CHANGE_SUCCEEDS: Outcomes = (SUCCEEDS, SKIPPED, FOR_GOOD, RETRIED)
ALWAYS_SUCCEEDS: Outcomes = (SUCCEEDS, SUCCEEDS, SUCCEEDS, SUCCEEDS)
THREE_WORKERS = {"worker": {"replicas": 3}}

STAGE_CASES: dict[str, StageCases] = {
    "submit": StageCases(
        change=None,
        tasks=(
            TaskCase(
                "submit",
                lambda **common: operators.SubmitElasticJobOperator(manifest=elastic_job(JOB), **common),
                retried=(WAITS, SUCCEEDS, REPLACED, REPLACED),
                cleared=(UNREACHABLE, REPLACED, UNREACHABLE, REPLACED),
                goal="Succeeded",
            ),
        ),
        inputs={"spec": "replicaSpecs: {worker: {replicas: 1}}"},
    ),
    "wait": StageCases(
        change=None,
        tasks=(
            TaskCase(
                "wait",
                lambda **common: sensors.ElasticJobSensor(name=JOB, **common),
                retried=(WAITS, SUCCEEDS, FOR_GOOD, WAITS),
                cleared=(UNREACHABLE, SUCCEEDS, UNREACHABLE, WAITS),
                goal="Succeeded",
            ),
            TaskCase(
                "wait for a step",
                lambda **common: sensors.ElasticJobSensor(name=JOB, step=200, **common),
                retried=(WAITS, SKIPPED, FOR_GOOD, WAITS),
                cleared=(WAITS, SKIPPED, FOR_GOOD, WAITS),
            ),
        ),
        inputs={"phases": "Running,Failed", "step": "50"},
    ),
    "wait-plan": StageCases(change=None, tasks=(), command=False),
    "collect": StageCases(change=None, tasks=(), command=False),
    "cancel": StageCases(
        change=None,
        tasks=(
            TaskCase(
                "cancel",
                lambda **common: operators.CancelJobOperator(name=JOB, **common),
                cleared=ALWAYS_SUCCEEDS,
            ),
        ),
        inputs={"policy": "suspend"},
        command=False,
    ),
    "scale": StageCases(
        change={"job": JOB, "replicas": THREE_WORKERS},
        tasks=(
            TaskCase(
                "scale",
                lambda **common: operators.ScaleJobOperator(job=JOB, replicas={"worker": 3}, **common),
                retried=PLAN_RETRIED,
                cleared=PLAN_CLEARED,
            ),
        ),
        inputs={"replicas": "{worker: {replicas: 3}}", "step-timeout-seconds": "30"},
    ),
    "checkpoint": StageCases(
        change={"job": JOB},
        tasks=(
            TaskCase(
                "checkpoint",
                lambda **common: operators.CheckpointJobOperator(job=JOB, **common),
                retried=PLAN_RETRIED,
                cleared=PLAN_CLEARED,
            ),
        ),
        inputs={"step-timeout-seconds": "30"},
    ),
    "migrate-ps": StageCases(
        change={"job": JOB, "replicas": 3},
        tasks=(
            TaskCase(
                "migrate",
                lambda **common: operators.MigrateParameterServersOperator(
                    job=JOB, migrate={0: {"cpu": "2"}}, **common
                ),
                retried=PLAN_RETRIED,
                cleared=PLAN_CLEARED,
            ),
        ),
        inputs={
            "replicas": "3",
            "resource": "{cpu: '2'}",
            "migrate": "{0: {cpu: '2'}}",
            "step-timeout-seconds": "30",
        },
    ),
    "plan-scale": StageCases(
        change={"name": JOB},
        tasks=(
            TaskCase(
                "plan",
                lambda **common: operators.PlanScaleOperator(job=JOB, wait_for_change=True, **common),
                retried=CHANGE_WAITS,
                cleared=CHANGE_SUCCEEDS,
            ),
        ),
        command=False,
    ),
    "apply-plan": StageCases(
        change={"job": JOB, "plan": {"replicas": THREE_WORKERS}},
        tasks=(
            TaskCase(
                "apply",
                lambda **common: operators.ApplyPlanOperator(
                    job=JOB, plan={"replicas": THREE_WORKERS}, **common
                ),
                retried=PLAN_RETRIED,
                cleared=PLAN_CLEARED,
            ),
        ),
        inputs={
            "plan": '{"replicas": {"worker": {"replicas": 3}}, "migrate": [], "empty": false}',
            "step-timeout-seconds": "30",
        },
        command=False,
    ),
    "suspend": StageCases(
        change={"name": JOB},
        tasks=(
            TaskCase(
                "suspend",
                lambda **common: operators.SuspendJobOperator(name=JOB, **common),
                retried=CHANGE_WAITS,
                cleared=CHANGE_WAITS,
                goal="Suspended",
            ),
        ),
    ),
    "resume": StageCases(
        change={"name": JOB},
        tasks=(
            TaskCase(
                "resume",
                lambda **common: operators.ResumeJobOperator(name=JOB, **common),
                retried=CHANGE_WAITS,
            ),
        ),
    ),
    "delete": StageCases(
        change=None,
        tasks=(
            TaskCase(
                "delete",
                lambda **common: operators.DeleteJobOperator(name=JOB, **common),
                cleared=ALWAYS_SUCCEEDS,
            ),
        ),
    ),
    "autoscale": StageCases(
        change={"name": JOB},
        tasks=(
            TaskCase(
                "autoscale",
                lambda **common: operators.AutoscaleJobOperator(name=JOB, **common),
                cleared=CHANGE_SUCCEEDS,
            ),
        ),
        inputs={"bounds": "2-8"},
    ),
}
