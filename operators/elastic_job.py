"""Operators on whole jobs: submit an ElasticJob; suspend, resume, cancel and delete a job of any kind."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edl_workflows.airflow.hooks.task_owner import TaskOwner
from edl_workflows.operators.base import CLUSTER_FIELDS, StageOperator, WhenFinished
from edl_workflows.operators.job import SubmitJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.pipelines.waiting.goals import Handle


class SubmitElasticJobOperator(SubmitJobOperator):
    """Create an ElasticJob and wait until it has succeeded. Arguments and result are those of
    `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "ElasticJob"


class _JobOperator(StageOperator):
    """An operator on an existing job.

    Args:
        name: name of the job, as ``submit.output["name"]``.
        kind: kind of the job.
        kwargs: arguments of `StageOperator`.
    """

    template_fields: Sequence[str] = ("name", *CLUSTER_FIELDS)

    def __init__(self, *, name: str, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage. If it deletes a job before its end, it emits the OpenLineage event ABORT for the
        job."""
        running = self.running_job(self.kind, self.name, self.namespace)
        handle = super().begin(context)
        if running is not None and handle.goal.type == "gone":
            self.report_deletion(running, context["ti"])
        return handle


class _ChangeOperator(_JobOperator):
    """An operator that changes an existing job.

    Args:
        if_finished: what to do if the job has already succeeded: "skip" the task (default), "fail" it without
            retries, or let it "succeed".
        kwargs: arguments of `StageOperator`, and ``name`` and ``kind`` of the job.
    """

    def __init__(self, *, if_finished: WhenFinished = "skip", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.if_finished = if_finished


class SuspendElasticJobOperator(_ChangeOperator):
    """Delete a job's pods, keep its data position and checkpoints, and wait until it is Suspended.

    The result is that of `SubmitJobOperator`.
    """

    stage_name: ClassVar[str] = "suspend"


class ResumeElasticJobOperator(_ChangeOperator):
    """Resume a suspended job from its newest checkpoint, and wait until it is Running."""

    stage_name: ClassVar[str] = "resume"


class AutoscaleJobOperator(_ChangeOperator):
    """Enable or disable autoscaling of a job, by the cluster's autoscaler or by an ElasticJob's own master.

    Args:
        bounds: "true" (within the bounds of the job's spec, the default), "false" (disabled), or bounds such
            as "2-8". Templated.
        kwargs: arguments of `SuspendElasticJobOperator`.
    """

    stage_name: ClassVar[str] = "autoscale"
    template_fields: Sequence[str] = (*_ChangeOperator.template_fields, "bounds")

    def __init__(self, *, bounds: str = "true", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bounds = bounds


class CancelJobOperator(_JobOperator):
    """End a job that a task of this run created, if it has not ended, and wait until its pods are gone.

    Use it as the teardown of a submit that does not wait: ``cancel.as_teardown(setups=submit)``. A job that
    has ended is kept for inspection. A job that another run or a person created is left alone.

    Args:
        action: "delete" the job, or "suspend" it: its data position and checkpoints stay.
        kwargs: arguments of `SuspendElasticJobOperator`.
    """

    stage_name: ClassVar[str] = "cancel"
    _owner_prefix = ""

    def __init__(self, *, action: Literal["delete", "suspend"] = "delete", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.action = action

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage for jobs with the owner annotations of this run."""
        owner = TaskOwner.parse(self.identity(context).owner)
        assert owner is not None, "an operator's own annotation names its task instance"
        self._owner_prefix = owner.run
        return super().begin(context)

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request, with the owner of the jobs that it may end."""
        return {**super().request_values(), "owner": self._owner_prefix}


class DeleteElasticJobOperator(_JobOperator):
    """Delete a job, whoever created it, and wait until all its pods are gone. If the job does not exist, that
    is not an error.

    As a teardown it also removes a job that has ended: ``delete.as_teardown(setups=submit)``.
    """

    stage_name: ClassVar[str] = "delete"
