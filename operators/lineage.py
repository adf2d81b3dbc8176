"""The OpenLineage events of stage tasks. All imports happen only when Airflow's OpenLineage provider asks for
data sets, or when a stage has begun or ended."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import Dataset
    from openlineage.client.facet_v2 import RunFacet

    from edl_workflows.airflow.hooks.elastic_job import ElasticJobHook
    from edl_workflows.airflow.hooks.lineage import JobState
    from edl_workflows.core.jobs.view import JobView
    from edl_workflows.pipelines.waiting.goals import Handle
    from edl_workflows.pipelines.waiting.outputs import Outputs


class LineageTask:
    """The part of a stage task that its OpenLineage events need."""

    if TYPE_CHECKING:
        hook: ElasticJobHook
    _handle: "Handle | None" = None
    _outputs: "Outputs | None" = None

    def data_uris(self) -> tuple[str, ...]:
        """URIs of the data sets that the job reads, as far as the task knows them."""
        return ()

    def get_openlineage_facets_on_start(self) -> "OperatorLineage[Dataset, RunFacet]":
        """The data sets that the task reads."""
        from edl_workflows.airflow.hooks import lineage

        return lineage.describe_task(self, self.data_uris())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> "OperatorLineage[Dataset, RunFacet]":
        """The data sets that the task has read, and the checkpoint that its job has written."""
        from edl_workflows.airflow.hooks import lineage

        written = self._outputs.checkpoint if self._outputs is not None else None
        return lineage.describe_task(self, self.data_uris(), written, task_instance)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> "OperatorLineage[Dataset, RunFacet]":
        """The data sets of a task that failed. The provider adds the error message."""
        return self.get_openlineage_facets_on_complete(task_instance)

    def report_job(self, state: "JobState", ti: Any, error: str = "") -> None:
        """Emit an event of the job of this stage, as `hooks.lineage.emit_job_event`.

        Args:
            state: what has happened to the job.
            ti: the task instance.
            error: why the job failed.
        """
        from edl_workflows.airflow.hooks import lineage

        handle, outputs = self._handle, self._outputs
        if handle is None or not lineage.is_active():
            return
        uid, owner = handle.uid, handle.owner
        if not owner:  # another task created it
            view = self._read_job(handle.kind, handle.name, handle.namespace)
            if view is None or uid not in ("", view.uid):
                return
            uid, owner = view.uid, lineage.owner_of(view)
        event = lineage.JobEvent(
            state=state,
            kind=handle.kind,
            uid=uid,
            owner=owner,
            data=self.data_uris(),
            checkpoint=outputs.checkpoint if outputs is not None else None,
            error=error,
        )
        lineage.emit_job_event(event, ti)

    def report_success(self, ti: Any) -> None:
        """Emit the event for the success of a job, after this task has waited for it."""
        from edl_workflows.core.jobs.view import JobPhase
        from edl_workflows.pipelines.waiting.goals import JobGoal

        goal = self._handle.goal if self._handle is not None else None
        awaited = isinstance(goal, JobGoal) and JobPhase.SUCCEEDED in goal.phases
        if awaited and self._outputs is not None and self._outputs.phase == JobPhase.SUCCEEDED:
            self.report_job("COMPLETE", ti)

    def report_deletion(self, job: "JobView", ti: Any) -> None:
        """Emit the event of a job that this task deletes before its end.

        Args:
            job: the job before its deletion.
            ti: the task instance.
        """
        from edl_workflows.airflow.hooks import lineage

        event = lineage.JobEvent(state="ABORT", kind=job.kind, uid=job.uid, owner=lineage.owner_of(job))
        lineage.emit_job_event(event, ti)

    def running_job(self, kind: str, name: str, namespace: str | None) -> "JobView | None":
        """A job that has not ended; None if it has ended or can't be read, or if OpenLineage is not
        active."""
        from edl_workflows.airflow.hooks import lineage

        view = self._read_job(kind, name, namespace) if lineage.is_active() else None
        return None if view is None or view.phase.final else view

    def _read_job(self, kind: str, name: str, namespace: str | None) -> "JobView | None":
        """A job of any owner; None if it can't be read."""
        from edl_workflows.core.exceptions import EdlError
        from edl_workflows.core.jobs.view import JobView
        from edl_workflows.pipelines.waiting import ownership
        from edl_workflows.pipelines.waiting.observed import read_object
        from edl_workflows.runtime.kube import client

        try:
            cluster = self.hook.cluster()
            manifest = client.find(cluster, ownership.resource_of(kind), name, namespace or cluster.namespace)
            view = read_object(kind, manifest)
        except EdlError:
            return None
        return view if isinstance(view, JobView) else None
