"""DIJob as pipelines see it."""

from edl_workflows.jobs.di_job.model import DIJob, Phase
from edl_workflows.jobs.view import JobPhase, JobView, view_of


def view(job: DIJob) -> JobView:
    """Map a job to its `JobView`. Starting is Pending before the job has ever run, and Restarting afterwards."""
    has_run = any(condition.type == Phase.RUNNING.condition for condition in job.status.conditions)
    starting = JobPhase.RESTARTING if has_run else JobPhase.PENDING
    return view_of(job, {Phase.STARTING: starting, Phase.RESCHEDULING: JobPhase.SCALING})
