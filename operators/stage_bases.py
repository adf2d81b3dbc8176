"""What operators of `operators.stages` do besides their stage: their bases, written by hand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl_workflows.airflow.hooks.task_owner import TaskOwner
from edl_workflows.operators.base import StageOperator
from edl_workflows.operators.rendered import rendered_map

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.pipelines.waiting.goals import Handle


class ChangeTask(StageOperator):
    """A task that changes a running job, or reads what its optimizer would change."""

    ui_color = "#dbe7f5"


class ScaleTask(ChangeTask):
    """A task that scales a job."""

    replicas: Mapping[str, Any] | str

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request. A plain number is a count without a size."""
        replicas = {
            role: change if isinstance(change, Mapping) else {"replicas": change}
            for role, change in rendered_map(self.replicas, "replicas").items()
        }
        return {**super().request_values(), "replicas": replicas}


class DeletionTask(StageOperator):
    """A task that deletes a job."""

    name: str
    kind: str

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage. If it deletes a job before its end, it emits the OpenLineage event ABORT for the
        job."""
        running = self.running_job(self.kind, self.name, self.namespace)
        handle = super().begin(context)
        if running is not None and handle.goal.type == "gone":
            self.report_deletion(running, context["ti"])
        return handle


class CancelTask(DeletionTask):
    """A task that ends the jobs of its run."""

    _owner_prefix = ""

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage for jobs with the owner annotations of this run."""
        owner = TaskOwner.parse(self.identity(context).owner)
        assert owner is not None, "an operator's own annotation names its task instance"
        self._owner_prefix = owner.run
        return super().begin(context)

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request, with the owner of the jobs that it may end."""
        return {**super().request_values(), "owner": self._owner_prefix}
