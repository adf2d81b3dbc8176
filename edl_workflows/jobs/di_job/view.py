"""DIJob as pipelines see it."""

from edl_workflows.jobs.di_job.model import DIJob, DIJobPhase
from edl_workflows.jobs.view import JobPhase, JobView, view_of


def view(job: DIJob) -> JobView:
    """Map a job to its `JobView`. Starting is Pending before the job has ever run, and Restarting afterwards."""
    has_run = any(condition.type == DIJobPhase.RUNNING.condition for condition in job.status.conditions)
    starting = JobPhase.RESTARTING if has_run else JobPhase.PENDING
    return view_of(job, {DIJobPhase.STARTING: starting, DIJobPhase.RESCHEDULING: JobPhase.SCALING})
