"""TFJob as pipelines see it."""

from edl_workflows.jobs.tf_job.model import TFJob, TFJobPhase
from edl_workflows.jobs.view import JobPhase, JobView, view_of


def view(job: TFJob) -> JobView:
    """Map a job to its `JobView`."""
    return view_of(job, {TFJobPhase.CREATED: JobPhase.PENDING})
