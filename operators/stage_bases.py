"""What operators of `operators.stages` do besides their stage: their bases, written by hand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from edl_workflows.airflow.hooks.airflow_versions import TriggerRule
from edl_workflows.airflow.hooks.errors import raised_for_airflow
from edl_workflows.core.exceptions import InvalidError
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
    """A task that ends a job. As a teardown it runs whatever happened upstream, and needs no name: the jobs
    of its setups are known by their XComs, or by owner annotations."""

    name: str
    kind: str
    repeatable: ClassVar[bool] = True

    def as_teardown(self, **kwargs: Any) -> Self:
        """As Airflow's method. But a teardown without a name also runs if its setup was skipped or failed:
        a setup may fail after it has created a job."""
        super().as_teardown(**kwargs)
        if not self.name:
            self.trigger_rule = TriggerRule.ALL_DONE
        return self

    def execute(self, context: "Context") -> dict[str, Any]:
        """End the job, or the jobs of the setups. If these have none, there is nothing to do."""
        if self.name:
            return super().execute(context)
        with raised_for_airflow():
            jobs = self._jobs_of_setups(context)
            if not jobs:
                self.log.info("The setups of this teardown have no job: there is nothing to end")
                return {}
            for job in jobs:
                self.kind, self.namespace, self.name = job.kind, job.namespace, job.name
                if job is not jobs[-1]:
                    self.begin(context)
        return super().execute(context)

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage. If it deletes a job before its end, it emits the OpenLineage event ABORT for the
        job."""
        running = self.running_job(self.kind, self.name, self.namespace)
        handle = super().begin(context)
        if running is not None and handle.goal.type == "gone":
            self.report_deletion(running, context["ti"])
        return handle

    def _jobs_of_setups(self, context: "Context") -> "list[Handle]":
        """The jobs that the setups of this teardown created in this run.

        Raises:
            InvalidError: it is no teardown.
        """
        from edl_workflows.airflow.hooks.setup_jobs import SetupTask, list_setup_jobs

        setups = [task for task in self.upstream_list if task.is_setup]
        if not setups:
            raise InvalidError("name: a task that is no teardown of a submit needs the name of the job")
        ti, cluster = context["ti"], self.hook.cluster()
        run = self.owner_of_task(ti).run
        tasks = [SetupTask.of(setup, ti, run, self._index_of(setup, ti)) for setup in setups]
        namespace, named = self.namespace or cluster.namespace, bool(self.hook.installation)
        return list_setup_jobs(cluster, tasks, self.kind, namespace, named=named)

    def _index_of(self, setup: Any, ti: Any) -> int | None:
        """Map index of the setup's instance before this one; None for all instances of a mapped setup."""
        group, own = setup.get_closest_mapped_task_group(), self.get_closest_mapped_task_group()
        if group is not None and own is not None and group.group_id == own.group_id:
            return int(ti.map_index)  # each instance of a mapped group ends the jobs of its own index
        return -1 if group is None and not hasattr(setup, "partial_kwargs") else None


class CancelTask(DeletionTask):
    """A task that ends the jobs of its run."""

    _owner_prefix = ""

    def begin(self, context: "Context") -> "Handle":
        """Begin the stage for jobs with the owner annotations of this run."""
        self._owner_prefix = self.owner_of_task(context["ti"]).run
        return super().begin(context)

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request, with the owner of the jobs that it may end."""
        return {**super().request_values(), "owner": self._owner_prefix}
