"""Operators that change a running job: each makes one ScalePlan and waits until it is carried out. And one that asks for a plan."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from edl_workflows.operators.base import StageOperator
from edl_workflows.operators.rendered import given_or_none, rendered_map


class _PlanOperator(StageOperator):
    """An operator that makes a ScalePlan.

    Returns (XCom) a small dict: ``name`` (the plan's), ``namespace``, ``uid``, ``job``, ``phase``, ``checkpoint`` (``uri``, ``step``), and of a
    migration ``resumedStep`` and ``stallSeconds``.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        step_timeout_seconds: limit of each step of the plan; a migration that exceeds it is rolled back.
        kwargs: as `StageOperator`. A plan that is killed after its first step ends by itself, in the new or the old state.
    """

    template_fields: Sequence[str] = (
        "job",
        "namespace",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )
    ui_color = "#dbe7f5"

    def __init__(self, *, job: str, step_timeout_seconds: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.step_timeout_seconds = step_timeout_seconds

    def request_values(self) -> dict[str, Any]:
        """Which job, and how patiently."""
        return {"job": self.job, "step_timeout_seconds": self.step_timeout_seconds}


class ScaleElasticJobOperator(_PlanOperator):
    """Change counts or sizes of a running job's roles.

    Args:
        kind: of the job; one of another kind is scaled by its spec, and takes counts only.
        replicas: role → count, or → ``{"replicas": count, "resource": {"cpu": …, "memory": …, "gpu": …, "gpuType": …}}``; or
            the map's text, as a template renders it: JSON, Python or YAML.
        kwargs: as every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "scale"
    template_fields: Sequence[str] = (
        "job", "namespace", "replicas", "kubernetes_conn_id", "config_file", "cluster_context",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"replicas": "json"}

    def __init__(self, *, replicas: Mapping[str, Any] | str, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replicas = replicas
        self.kind = kind

    def request_values(self) -> dict[str, Any]:
        """With the wanted state; a bare count is short for one without a size."""
        replicas = {
            role: wanted if isinstance(wanted, Mapping) else {"replicas": wanted}
            for role, wanted in rendered_map(self.replicas, "replicas").items()
        }
        return {**super().request_values(), "kind": self.kind, "replicas": replicas}


class ApplyPlanOperator(_PlanOperator):
    """Carry out what a `PlanScaleOperator` planned, in one ScalePlan: counts, sizes and migrations, with the reasons.

    Autoscaling of the job is switched off, as by every operator that asks for numbers. A plan that changes nothing is done at
    once.

    Args:
        plan: as ``plan.output["plan"]``, or its text (JSON, Python or YAML), which a person may have edited.
        kwargs: as every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "apply-plan"
    template_fields: Sequence[str] = (
        "job", "namespace", "plan", "kubernetes_conn_id", "config_file", "cluster_context",
    )  # fmt: skip
    template_fields_renderers: ClassVar[dict[str, str]] = {"plan": "json"}

    def __init__(self, *, plan: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def request_values(self) -> dict[str, Any]:
        """With the plan."""
        return {**super().request_values(), "plan": rendered_map(self.plan, "plan")}


class PlanScaleOperator(StageOperator):
    """Ask what a job's own optimizer would change now (``optimizeMode: single-job`` or ``cluster``). Nothing is changed.

    Returns (XCom) a small dict: ``name``, ``namespace``, ``uid``, ``job``, ``phase``, ``step`` and ``plan``: ``replicas`` (role →
    ``{"replicas": …, "resource": {…}}``), ``migrate`` (pods to replace), ``reasons``, ``notes``, ``optimizer``, ``stage``, and
    ``empty``, whether nothing would change. `ApplyPlanOperator` carries the plan out.

    Args:
        job: name of the job, as ``submit.output["name"]``.
        kind: of the job. Others than ElasticJob have no plan of their own, which is an error.
        wait_for_change: wait for a plan that changes something; else the job's first plan is taken.
        kwargs: as `StageOperator`.
    """

    stage_name: ClassVar[str] = "plan-scale"
    template_fields: Sequence[str] = _PlanOperator.template_fields
    ui_color = "#dbe7f5"

    def __init__(
        self, *, job: str, kind: str = "ElasticJob", wait_for_change: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.kind = kind
        self.wait_for_change = wait_for_change

    def request_values(self) -> dict[str, Any]:
        """Which job, and whether any plan will do."""
        return {"name": self.job, "kind": self.kind, "wait_for_change": self.wait_for_change}


class CheckpointElasticJobOperator(_PlanOperator):
    """Have a running job save a checkpoint now, and wait until it is complete."""

    stage_name: ClassVar[str] = "checkpoint"


class MigrateParameterServersOperator(_PlanOperator):
    """Move a running job to other parameter servers: checkpoint, new servers, restart from the checkpoint, verify.

    Training goes on while the new servers start and stands still only for the switch. If anything fails the job goes on with
    its old servers, and the task fails.

    Args:
        replicas: how many servers there shall be; default: as many as now.
        migrate: rank → ``{"cpu": …, "memory": …, "gpu": …, "gpuType": …}``: servers to replace by ones of this size;
            or the map's text, as a template renders it: JSON, Python or YAML.
        resource: size of servers that are added; likewise a map or its text.
        until: the phase of the plan to wait for: "Succeeded", or "Restarting", when the new servers are ready.
        kind: of the job. One of another kind has no plan: its controller ends all pods, which save what they can, and begins
            anew with the new servers.
        kwargs: as every operator that changes a running job.
    """

    stage_name: ClassVar[str] = "migrate-ps"
    template_fields: Sequence[str] = (
        "job", "namespace", "replicas", "migrate", "resource", "kubernetes_conn_id", "config_file", "cluster_context",
    )  # fmt: skip
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

    def request_values(self) -> dict[str, Any]:
        """With the wanted servers."""
        maps = {name: given_or_none(getattr(self, name)) for name in ("migrate", "resource")}
        wanted = {
            "kind": self.kind,
            "replicas": given_or_none(self.replicas),
            **{name: value and rendered_map(value, name) for name, value in maps.items()},
            "until": self.until,
        }
        return {**super().request_values(), **wanted}
