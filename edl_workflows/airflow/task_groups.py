"""Task groups: all tasks on one job, and frequent combinations of operators."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import chain, count
from pathlib import PurePath
from typing import Any, Literal, Self, TypeVar, cast

from airflow.sdk import BaseOperator, TaskGroup

from edl_workflows.airflow.hooks.airflow_versions import TriggerRule
from edl_workflows.operators.cluster import ClusterTask
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.job import SubmitJobOperator
from edl_workflows.operators.stages import (
    ApplyPlanOperator,
    CancelJobOperator,
    CheckpointJobOperator,
    MigrateParameterServersOperator,
    PlanScaleOperator,
    ScaleJobOperator,
)
from edl_workflows.operators.watcher import FailMarkedRunOperator
from edl_workflows.sensors.elastic_job import ScalePlanSensor
from edl_workflows.sensors.job import JobSensor

T = TypeVar("T", bound=BaseOperator)

STAGE_ARGUMENTS = frozenset(
    ("namespace", "kubernetes_conn_id", "config_file", "in_cluster", "cluster_context", "deferrable")
)
"""Arguments of the tasks that work on a job, but not of all operators."""
POKE_SECONDS = 10.0
"""Interval between two pokes of a sensor that is not deferred. Airflow's default of a minute is long for
training steps."""


class elastic_job(TaskGroup):  # noqa: N801 - a context manager, named like those of contextlib
    """A job and all tasks on it, from its submission to its end.

    ``submit`` creates the job and does not wait. Then the tasks of the ``with`` block run, in the order given
    by ``>>``; any other operators may be among them. Then ``trained`` waits until the job has succeeded, even
    if earlier tasks were skipped because the job finished early. Finally ``cancel``, a teardown, ends the job
    if it has not ended, so that no job is left behind when a task fails or a user marks the run, and
    ``watcher``, another teardown, fails if the run was marked failed, since Airflow would let it succeed.

    The methods `wait`, `scale`, `migrate`, `migrate_in_steps`, `checkpoint`, `plan` and `apply` add a task to
    the group. Their further arguments, including ``task_id``, are those of the operator or sensor.

    Args:
        group_id: name of the group, and prefix of the tasks' ids.
        manifest: the job, as for `SubmitJobOperator`.
        kind: kind of the job.
        completion_timeout: time limit of ``trained``, from its start; by default Airflow's default for
            sensors.
        queue_timeout: how long the job may wait for pods or quota before it runs for the first time, counted
            from the start of each task that waits for it: ``trained`` and those of `wait`.
        on_kill_action: "delete" a job that has not ended, or "suspend" it: its data position and checkpoints
            stay.
        prefix_group_id: whether the tasks' ids begin with the group's.
        common: arguments of all tasks: ``namespace``, ``kubernetes_conn_id``, ``deferrable``, ``retries`` …
    """

    def __init__(
        self,
        group_id: str = "training",
        *,
        manifest: dict[str, Any] | str | PurePath,
        kind: str = "ElasticJob",
        completion_timeout: timedelta | None = None,
        queue_timeout: timedelta | None = None,
        on_kill_action: Literal["delete", "suspend"] = "delete",
        prefix_group_id: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(group_id=group_id, prefix_group_id=prefix_group_id)
        self._kind = kind
        self._queue_timeout = queue_timeout
        self._common = common
        self.submit = self._add(
            SubmitElasticJobOperator if kind == "ElasticJob" else SubmitJobOperator,
            "submit",
            manifest=manifest,
            wait_for_completion=False,
            on_kill_action=on_kill_action,
        )
        limit: dict[str, Any] = {} if completion_timeout is None else {"timeout": completion_timeout}
        self.trained = self.wait(task_id="trained", **limit)
        self.cancel = self._add(CancelJobOperator, "cancel", kind=kind, action=on_kill_action).as_teardown(
            setups=self.submit
        )
        self.watcher = self._add(FailMarkedRunOperator, "watcher").as_teardown(
            setups=self.submit, on_failure_fail_dagrun=True
        )

    @property
    def name(self) -> str:
        """The job's name, as a template for arguments of other operators that work on the job."""
        # Not `submit.output`: it would make the task a direct downstream task of the setup, which Airflow
        # allows only with the trigger rule all_success. The index is that of a mapped group.
        submit = self._full_id("submit")
        return f"{{{{ ti.xcom_pull(task_ids='{submit}', map_indexes=ti.map_index)['name'] }}}}"

    @property
    def output(self) -> Any:
        """The outputs of the job after its success, for example ``job.output["checkpoint"]``."""
        return self.trained.output

    def wait(
        self,
        *,
        step: int | str | None = None,
        phases: Iterable[str] | str | None = None,
        condition: str | None = None,
        task_id: str = "wait",
        **kwargs: Any,
    ) -> JobSensor:
        """Wait for a training step, a phase or a condition, by default for success. The task is a
        `JobSensor`."""
        goal = {"step": step, "phases": phases, "condition": condition}
        common = {"kind": self._kind, "poke_interval": POKE_SECONDS, "queue_timeout": self._queue_timeout}
        options = {**common, **goal, **kwargs}
        return self._add(JobSensor, task_id, name=self.name, **options)

    def scale(
        self, replicas: Mapping[str, Any] | str, *, task_id: str = "scale", **kwargs: Any
    ) -> ScaleJobOperator:
        """Change counts or sizes of roles, as `ScaleJobOperator`."""
        options = {"kind": self._kind, **kwargs}
        return self._add(ScaleJobOperator, task_id, job=self.name, replicas=replicas, **options)

    def migrate(self, *, task_id: str = "migrate", **kwargs: Any) -> MigrateParameterServersOperator:
        """Move to other parameter servers, as `MigrateParameterServersOperator`."""
        options = {"kind": self._kind, **kwargs}
        return self._add(MigrateParameterServersOperator, task_id, job=self.name, **options)

    def migrate_in_steps(self, group_id: str = "migrate", **kwargs: Any) -> TaskGroup:
        """Move to other parameter servers in three tasks, as `checkpoint_migrate_restart`."""
        options = {**self._common, "trigger_rule": TriggerRule.ALL_SUCCESS, **kwargs}
        return checkpoint_migrate_restart(group_id, job=self.name, **options)

    def checkpoint(self, *, task_id: str = "checkpoint", **kwargs: Any) -> CheckpointJobOperator:
        """Save a checkpoint now, as `CheckpointJobOperator`."""
        return self._add(CheckpointJobOperator, task_id, job=self.name, **kwargs)

    def plan(self, *, task_id: str = "plan", **kwargs: Any) -> PlanScaleOperator:
        """Read what the job's optimizer would change now, as `PlanScaleOperator`."""
        return self._add(PlanScaleOperator, task_id, job=self.name, **kwargs)

    def apply(
        self, plan: Mapping[str, Any] | str, *, task_id: str = "apply", **kwargs: Any
    ) -> ApplyPlanOperator:
        """Apply the output of `plan`, as `ApplyPlanOperator`."""
        return self._add(ApplyPlanOperator, task_id, job=self.name, plan=plan, **kwargs)

    def __enter__(self) -> Self:
        """Begin the block: tasks that are created in it belong to the group."""
        super().__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Put the tasks of the block between ``submit`` and ``trained``."""
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        tasks = {task.task_id: task for task in self.iter_tasks()}
        own = {task.task_id for task in (self.submit, self.trained, self.cancel, self.watcher)}
        between = {name: task for name, task in tasks.items() if name not in own}
        for task in between.values():
            if task.upstream_task_ids.isdisjoint(tasks):
                self.submit >> task
                if task.trigger_rule == self.dag.default_args.get("trigger_rule"):
                    # The only rule that Airflow allows after a setup.
                    task.trigger_rule = TriggerRule.ALL_SUCCESS
            if task.downstream_task_ids.isdisjoint(tasks):
                task >> self.trained
        if between:
            self.trained.trigger_rule = TriggerRule.NONE_FAILED
        else:
            self.submit >> self.trained
        self.trained >> self.cancel >> self.watcher

    def _full_id(self, task_id: str) -> str:
        return str(self.child_id(task_id))  # type: ignore[no-untyped-call]

    def _add(self, operator: type[T], task_id: str, **arguments: Any) -> T:
        """Add a task. If its id is already used, a number is appended, as Airflow's decorators do."""
        ids = chain([task_id], (f"{task_id}__{number}" for number in count(1)))
        free = next(name for name in ids if self._full_id(name) not in self.dag.task_ids)
        common = dict(self._common)
        if not issubclass(operator, ClusterTask):
            common = {name: value for name, value in common.items() if name not in STAGE_ARGUMENTS}
        if not issubclass(operator, SubmitJobOperator):
            # A rule of the group, or of the DAG's default_args, concerns the tasks before the group.
            common["trigger_rule"] = TriggerRule.ALL_SUCCESS
        options = {**common, **arguments}
        return operator(task_id=free, task_group=self, dag=self.dag, **options)


def checkpoint_migrate_restart(
    group_id: str = "checkpoint_migrate_restart",
    *,
    job: str,
    replicas: int | str | None = None,
    migrate: Mapping[int | str, Mapping[str, Any]] | str | None = None,
    resource: Mapping[str, Any] | str | None = None,
    **common: Any,
) -> TaskGroup:
    """A migration of parameter servers as three tasks.

    ``checkpoint`` asks the job for a checkpoint while training continues. ``migrate`` begins the migration
    and ends when the new servers are ready. ``restart`` ends when training continues on the new servers from
    the switch checkpoint. If the migration fails, one of the last two tasks fails, and the job continues on
    its old servers.

    Args:
        group_id: prefix of the tasks' ids.
        job: name of the job.
        replicas: wanted number of servers. This and the next two arguments are those of
            `MigrateParameterServersOperator`.
        migrate: servers to replace.
        resource: size of servers that are added.
        common: arguments of all three tasks: ``namespace``, ``kubernetes_conn_id``, ``deferrable``,
            ``retries`` …
    """
    with TaskGroup(group_id) as group:
        checkpoint = CheckpointJobOperator(task_id="checkpoint", job=job, **common)
        migration = MigrateParameterServersOperator(
            task_id="migrate",
            job=job,
            replicas=replicas,
            migrate=migrate,
            resource=resource,
            until="Restarting",
            **common,
        )
        restart = ScalePlanSensor(
            task_id="restart", name=cast("Any", migration.output)["name"], poke_interval=2, **common
        )
        checkpoint >> migration >> restart
    return group
