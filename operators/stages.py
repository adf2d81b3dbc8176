"""The operators of the stages that act on a job. `operators.job` submits one.

Generated from the descriptions of the stages by `python -m edl_workflows.airflow.stage_operators --write`;
`make lint` checks it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from edl_workflows.operators.base import StageOperator, WhenFinished
from edl_workflows.operators.cluster import CLUSTER_FIELDS
from edl_workflows.operators.stage_bases import CancelTask, ChangeTask, DeletionTask, ScaleTask


class CancelJobOperator(CancelTask):
    """End a job that a given pipeline created, if it has not ended.

    The pipeline of an operator is the run of its task. Use the operator as the teardown of a submit that
    does not wait: ``CancelJobOperator(task_id="cancel").as_teardown(setups=submit)``. It waits until the
    job's pods are gone. A job that has ended is kept for inspection. A job that another run or a person
    created is left alone.

    Args:
        name: name of the job. A teardown leaves it out to end what its setups created, even if a setup
            failed after it had created a job and so has no result.
        kind: kind of the job, as in its manifest.
        action: "delete" the job, or "suspend" it: its data position and checkpoints stay.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "cancel"
    template_fields: Sequence[str] = ("name", *CLUSTER_FIELDS)

    def __init__(
        self,
        *,
        name: str = "",
        kind: str = "ElasticJob",
        action: Literal["delete", "suspend"] = "delete",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind
        self.action = action


class ScaleJobOperator(ScaleTask):
    """Change how many nodes a running job has. A change of parameter servers checkpoints and migrates them.

    If the operator's task is killed after the plan's first step, the plan still continues until it is
    completed or rolled back.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: time limit of each step; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task
            (default), "fail" it without retries, or let it "succeed".
        kind: kind of the job. Jobs of other kinds than ElasticJob are scaled by an update of their spec.
        replicas: role → ``{"replicas": count, "resource": {"cpu": …, "memory": …, "gpu": …, "gpuType":
            …}}``; for the operator also role → count. Also as text: JSON, Python or YAML.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "scale"
    template_fields: Sequence[str] = ("job", "replicas", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"replicas": "json"}

    def __init__(
        self,
        *,
        job: str,
        step_timeout_seconds: int | None = None,
        if_finished: WhenFinished = "skip",
        kind: str = "ElasticJob",
        replicas: Mapping[str, Any] | str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.step_timeout_seconds = step_timeout_seconds
        self.if_finished = if_finished
        self.kind = kind
        self.replicas = replicas


class CheckpointJobOperator(ChangeTask):
    """Ask a running job for a checkpoint now.

    If the operator's task is killed after the plan's first step, the plan still continues until it is
    completed or rolled back.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: time limit of each step; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task
            (default), "fail" it without retries, or let it "succeed".
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "checkpoint"
    template_fields: Sequence[str] = ("job", *CLUSTER_FIELDS)

    def __init__(
        self,
        *,
        job: str,
        step_timeout_seconds: int | None = None,
        if_finished: WhenFinished = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.step_timeout_seconds = step_timeout_seconds
        self.if_finished = if_finished


class MigrateParameterServersOperator(ChangeTask):
    """Move a running job to other parameter servers: checkpoint, migrate, restart, verify.

    Training continues while the new servers start, and pauses only for the switch. If anything fails, the
    job continues with its old servers and the task fails.

    If the operator's task is killed after the plan's first step, the plan still continues until it is
    completed or rolled back.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: time limit of each step; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task
            (default), "fail" it without retries, or let it "succeed".
        kind: kind of the job. Jobs of other kinds than ElasticJob have no ScalePlan: their controller ends
            all pods, which save what they can, and restarts the job with the new servers.
        replicas: number of servers; None for the current number.
        resource: size of added servers; of all servers if the kind has one template for them. Also as
            text: JSON, Python or YAML.
        migrate: rank → ``{"cpu": …, "memory": …, "gpu": …, "gpuType": …}``: servers to replace by servers
            of this size. A resource that is left out stays unchanged. Also as text: JSON, Python or YAML.
        until: phase of the plan to wait for: "Succeeded", or "Restarting", when the new servers are ready.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "migrate-ps"
    template_fields: Sequence[str] = ("job", "replicas", "resource", "migrate", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"resource": "json", "migrate": "json"}

    def __init__(
        self,
        *,
        job: str,
        step_timeout_seconds: int | None = None,
        if_finished: WhenFinished = "skip",
        kind: str = "ElasticJob",
        replicas: int | str | None = None,
        resource: Mapping[str, Any] | str | None = None,
        migrate: Mapping[int | str, Mapping[str, Any]] | str | None = None,
        until: str = "Succeeded",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.step_timeout_seconds = step_timeout_seconds
        self.if_finished = if_finished
        self.kind = kind
        self.replicas = replicas
        self.resource = resource
        self.migrate = migrate
        self.until = until


class PlanScaleOperator(ChangeTask):
    """Read what a job's optimizer would change now; nothing is changed.

    Its own optimizer makes the plan (``optimizeMode: single-job`` or ``cluster``). `ApplyPlanOperator`
    applies it.

    Returns (XCom) a small dict: ``name``, ``namespace``, ``uid``, ``job``, ``phase``, ``step`` and
    ``plan``: ``replicas`` (role → ``{"replicas": …, "resource": {…}}``), ``migrate`` (pods to replace),
    ``reasons``, ``notes``, ``optimizer``, ``stage``, and ``empty``, whether nothing would change.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        kind: kind of the job. Jobs of other kinds than ElasticJob have no plans of an optimizer, so they
            cause an error.
        wait_for_change: wait for a plan that changes something; else the first plan is taken, even if it
            is empty.
        if_finished: what to do if the job succeeds before there is a plan: "skip" the task (default),
            "fail" it without retries, or let it "succeed" with an empty plan.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "plan-scale"
    template_fields: Sequence[str] = ("job", *CLUSTER_FIELDS)

    def __init__(
        self,
        *,
        job: str,
        kind: str = "ElasticJob",
        wait_for_change: bool = False,
        if_finished: WhenFinished = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.kind = kind
        self.wait_for_change = wait_for_change
        self.if_finished = if_finished


class ApplyPlanOperator(ChangeTask):
    """Apply a plan of the stage plan-scale.

    It is applied in one ScalePlan: counts, sizes and migrations, with the reasons. Like every operator
    that sets counts, this disables autoscaling of the job. An empty plan succeeds at once.

    If the operator's task is killed after the plan's first step, the plan still continues until it is
    completed or rolled back.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: time limit of each step; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task
            (default), "fail" it without retries, or let it "succeed".
        plan: the output ``plan`` of the stage ``plan-scale`` (``plan.output["plan"]``), possibly edited by
            a person. Also as text: JSON, Python or YAML.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "apply-plan"
    template_fields: Sequence[str] = ("job", "plan", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"plan": "json"}

    def __init__(
        self,
        *,
        job: str,
        step_timeout_seconds: int | None = None,
        if_finished: WhenFinished = "skip",
        plan: Mapping[str, Any] | str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.step_timeout_seconds = step_timeout_seconds
        self.if_finished = if_finished
        self.plan = plan


class SuspendJobOperator(StageOperator):
    """Release all pods of a job; its checkpoints and data position stay.

    The stage waits until the job is Suspended and its pods are gone. The operator's result is that of
    `SubmitJobOperator`.

    Args:
        name: name of the job, as ``submit.output["name"]``.
        kind: kind of the job, as in its manifest.
        if_finished: what to do if the job succeeds first: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "suspend"
    template_fields: Sequence[str] = ("name", *CLUSTER_FIELDS)

    def __init__(
        self, *, name: str, kind: str = "ElasticJob", if_finished: WhenFinished = "skip", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind
        self.if_finished = if_finished


class ResumeJobOperator(StageOperator):
    """Resume a suspended job from its newest checkpoint.

    The stage waits until the job is Running and its first node is ready.

    Args:
        name: name of the job, as ``submit.output["name"]``.
        kind: kind of the job, as in its manifest.
        if_finished: what to do if the job has succeeded: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "resume"
    template_fields: Sequence[str] = ("name", *CLUSTER_FIELDS)

    def __init__(
        self, *, name: str, kind: str = "ElasticJob", if_finished: WhenFinished = "skip", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind
        self.if_finished = if_finished


class DeleteJobOperator(DeletionTask):
    """Delete a job and all its pods.

    The stage deletes a job whoever created it, and waits until all its pods are gone. A job that does not
    exist counts as deleted.

    As a teardown the operator also removes a job that has ended:
    ``DeleteJobOperator(task_id="delete").as_teardown(setups=submit)``.

    Args:
        name: name of the job. A teardown leaves it out to end what its setups created, even if a setup
            failed after it had created a job and so has no result.
        kind: kind of the job, as in its manifest.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "delete"
    template_fields: Sequence[str] = ("name", *CLUSTER_FIELDS)

    def __init__(self, *, name: str = "", kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind


class AutoscaleJobOperator(StageOperator):
    """Enable or disable autoscaling of a job, by the cluster's autoscaler or by an ElasticJob's own master.

    Args:
        name: name of the job, as ``submit.output["name"]``.
        kind: kind of the job, as in its manifest.
        bounds: "true" (within the bounds of the spec), "false" (disabled), or bounds such as "2-8".
        if_finished: what to do if the job has succeeded: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "autoscale"
    template_fields: Sequence[str] = ("name", "bounds", *CLUSTER_FIELDS)

    def __init__(
        self,
        *,
        name: str,
        kind: str = "ElasticJob",
        bounds: str = "true",
        if_finished: WhenFinished = "skip",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind
        self.bounds = bounds
        self.if_finished = if_finished
