"""TrainingJob as pipelines see it."""

from edl_workflows.jobs.training_job.model import TrainingJob, TrainingJobPhase
from edl_workflows.jobs.view import JobPhase, JobView, view_of


def view(job: TrainingJob) -> JobView:
    """Map a job to its `JobView`."""
    return view_of(job, {TrainingJobPhase.CREATING: JobPhase.PENDING})
