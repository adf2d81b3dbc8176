"""Operators that change a running job with a ScalePlan and wait until it is complete; and one that reads a
plan."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from edl_workflows.operators.base import CLUSTER_FIELDS, StageOperator, WhenFinished
from edl_workflows.operators.rendered import rendered_map


class _PlanOperator(StageOperator):
    """An operator that creates a ScalePlan.

    Returns (XCom) a small dict: ``name`` (of the plan), ``namespace``, ``uid``, ``job``, ``phase``,
    ``checkpoint`` (``uri``, ``step``), and for a migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: time limit of each step of the plan; a migration that exceeds it is rolled back.
        if_finished: what to do if the job succeeds before the change is complete: "skip" the task (default),
            "fail" it without retries, or let it "succeed".
        kwargs: arguments of `StageOperator`. If the task is killed after the plan's first step, the plan
            still continues until it is completed or rolled back.
    """

    template_fields: Sequence[str] = ("job", *CLUSTER_FIELDS)
    ui_color = "#dbe7f5"

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


class ScaleElasticJobOperator(_PlanOperator):
    """Change counts or sizes of a running job's roles.

    Args:
        kind: kind of the job. Jobs of other kinds than ElasticJob are scaled by an update of their spec.
        replicas: role → count, or → ``{"replicas": count, "resource": {"cpu": …, "memory": …, "gpu": …,
            "gpuType": …}}``; or the text of the map that a template renders: JSON, Python or YAML.
        kwargs: arguments of every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "scale"
    template_fields: Sequence[str] = ("job", "replicas", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"replicas": "json"}

    def __init__(self, *, replicas: Mapping[str, Any] | str, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replicas = replicas
        self.kind = kind

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request. A plain number is a count without a size."""
        replicas = {
            role: change if isinstance(change, Mapping) else {"replicas": change}
            for role, change in rendered_map(self.replicas, "replicas").items()
        }
        return {**super().request_values(), "replicas": replicas}


class ApplyPlanOperator(_PlanOperator):
    """Apply the plan of a `PlanScaleOperator` in one ScalePlan: counts, sizes and migrations, with the
    reasons.

    Like every operator that sets counts, this disables autoscaling of the job. An empty plan succeeds at
    once.

    Args:
        plan: ``plan.output["plan"]``, or its text (JSON, Python or YAML), possibly edited by a person.
        kwargs: arguments of every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "apply-plan"
    template_fields: Sequence[str] = ("job", "plan", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"plan": "json"}

    def __init__(self, *, plan: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan


class PlanScaleOperator(StageOperator):
    """Read what a job's own optimizer would change now (``optimizeMode: single-job`` or ``cluster``).

    Nothing is changed; `ApplyPlanOperator` applies the plan.

    Returns (XCom) a small dict: ``name``, ``namespace``, ``uid``, ``job``, ``phase``, ``step`` and ``plan``:
    ``replicas`` (role → ``{"replicas": …, "resource": {…}}``), ``migrate`` (pods to replace), ``reasons``,
    ``notes``, ``optimizer``, ``stage``, and ``empty``, whether nothing would change.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        kind: kind of the job. Jobs of other kinds than ElasticJob have no plans of an optimizer, so they
            cause an error.
        wait_for_change: wait for a plan that changes something; otherwise the job's first plan is taken.
        if_finished: what to do if the job succeeds before there is a plan: "skip" the task (default), "fail"
            it without retries, or let it "succeed" with an empty plan.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "plan-scale"
    template_fields: Sequence[str] = _PlanOperator.template_fields
    ui_color = "#dbe7f5"

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


class CheckpointElasticJobOperator(_PlanOperator):
    """Make a running job save a checkpoint now, and wait until it is complete."""

    stage_name: ClassVar[str] = "checkpoint"


class MigrateParameterServersOperator(_PlanOperator):
    """Move a running job to other parameter servers: checkpoint, new servers, restart from the checkpoint,
    verify.

    Training continues while the new servers start, and pauses only for the switch. If anything fails, the job
    continues with its old servers and the task fails.

    Args:
        replicas: wanted number of servers; by default the current number.
        migrate: rank → ``{"cpu": …, "memory": …, "gpu": …, "gpuType": …}``: servers to replace by servers of
            this size; or the text of the map that a template renders: JSON, Python or YAML.
        resource: size of added servers; also a map or its text.
        until: phase of the plan to wait for: "Succeeded", or "Restarting", when the new servers are ready.
        kind: kind of the job. Jobs of other kinds than ElasticJob have no ScalePlan: their controller ends
            all pods, which save what they can, and restarts the job with the new servers.
        kwargs: arguments of every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "migrate-ps"
    template_fields: Sequence[str] = ("job", "replicas", "migrate", "resource", *CLUSTER_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {"migrate": "json", "resource": "json"}

    def __init__(
        self,
        *,
        replicas: int | str | None = None,
        migrate: Mapping[int | str, Mapping[str, Any]] | str | None = None,
        resource: Mapping[str, Any] | str | None = None,
        until: str = "Succeeded",
        kind: str = "ElasticJob",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.replicas = replicas
        self.migrate = migrate
        self.resource = resource
        self.until = until
