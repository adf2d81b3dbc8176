"""Operators on whole jobs: submit an ElasticJob; suspend, resume, cancel and delete one of any kind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edl_workflows.hooks.task_owner import TaskOwner
from edl_workflows.operators.base import StageOperator
from edl_workflows.operators.job import SubmitJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.stages.goals import Handle


class SubmitElasticJobOperator(SubmitJobOperator):
    """Create an ElasticJob and wait until it has succeeded; all as `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "ElasticJob"


class _JobOperator(StageOperator):
    """An operator on a job that is there.

    Args:
        name: the job's, as ``submit.output["name"]``.
        kind: of the job.
        kwargs: as `StageOperator`.
    """

    template_fields: Sequence[str] = (
        "name",
        "namespace",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )

    def __init__(self, *, name: str, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind

    def request_values(self) -> dict[str, Any]:
        """Which job."""
        return {"name": self.name, "kind": self.kind}


class SuspendElasticJobOperator(_JobOperator):
    """Take a job's pods away, keep its data position and checkpoints, and wait until it is Suspended.

    Arguments and result as `SubmitJobOperator`, with the job's ``name`` in place of a manifest.
    """

    stage_name: ClassVar[str] = "suspend"


class ResumeElasticJobOperator(_JobOperator):
    """Let a suspended job go on from its newest checkpoint, and wait until it is Running."""

    stage_name: ClassVar[str] = "resume"


class AutoscaleJobOperator(_JobOperator):
    """Let the cluster's autoscaler, or an ElasticJob's own master, change a job's replicas, or no longer.

    Args:
        bounds: "true" (as far as the job's spec allows, the default), "false" (not at all), or bounds such as "2-8". Templated.
        kwargs: as `SuspendElasticJobOperator`.
    """

    stage_name: ClassVar[str] = "autoscale"
    template_fields: Sequence[str] = (*_JobOperator.template_fields, "bounds")

    def __init__(self, *, bounds: str = "true", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bounds = bounds

    def request_values(self) -> dict[str, Any]:
        """Which job, and how far."""
        return {**super().request_values(), "bounds": self.bounds}


class CancelJobOperator(_JobOperator):
    """End a job that a task of this run made, if it still goes on, and wait until its pods are gone.

    The teardown of a submit that does not wait: ``cancel.as_teardown(setups=submit)``. A job that has ended stays, to be looked at;
    one that another run or a person made is left alone.

    Args:
        action: "delete" the job, or "suspend" it: its data position and checkpoints stay.
        kwargs: as `SuspendElasticJobOperator`.
    """

    stage_name: ClassVar[str] = "cancel"
    _made_by = ""

    def __init__(self, *, action: Literal["delete", "suspend"] = "delete", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action = action

    def begin(self, context: "Context") -> "Handle":
        """With the marks of this run's tasks."""
        owner = TaskOwner.parse(self.identity(context).owner)
        assert owner is not None, "an operator's own mark names its task instance"
        self._made_by = owner.run
        return super().begin(context)

    def request_values(self) -> dict[str, Any]:
        """Which job, if it is this run's, and what becomes of it."""
        return {**super().request_values(), "owner": self._made_by, "action": self.action}


class DeleteElasticJobOperator(_JobOperator):
    """Delete a job, whoever made it, and wait until all its pods are gone. One that is not there is as good as deleted.

    As a teardown that also removes a job that has ended: ``delete.as_teardown(setups=submit)``.
    """

    stage_name: ClassVar[str] = "delete"
