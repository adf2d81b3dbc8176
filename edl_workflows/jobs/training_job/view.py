"""TrainingJob as pipelines see it."""

from edl_workflows.jobs.training_job.model import Phase, TrainingJob
from edl_workflows.jobs.view import JobPhase, JobView, view_of


def view(job: TrainingJob) -> JobView:
    """Map a job to its `JobView`."""
    return view_of(job, {Phase.CREATING: JobPhase.PENDING})
