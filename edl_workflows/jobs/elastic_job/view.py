"""ElasticJob as pipelines see it."""

from dataclasses import replace

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import ElasticJob, ElasticJobPhase, ElasticJobStatus
from edl_workflows.jobs.view import Checkpoint, JobPhase, JobView, Progress, view_of


def view(job: ElasticJob) -> JobView:
    """Map a job to its `JobView`, with what its master says of training."""
    status = job.status
    general = view_of(job, {ElasticJobPhase.CREATED: JobPhase.PENDING})
    training = general.replicas.keys() - {names.MASTER_TYPE}  # the master serves training, it does not train
    return replace(
        general,
        replicas={role: counts for role, counts in general.replicas.items() if role in training},
        progress=_progress(status),
        checkpoint=Checkpoint(status.checkpoint.uri, status.checkpoint.step) if status.checkpoint else None,
        warnings=tuple(status.warnings),
        planned=status.autoscaling,
    )


def _progress(status: ElasticJobStatus) -> Progress:
    if status.progress is None:
        return Progress()
    return Progress(status.progress.step, status.progress.records, status.progress.speed)
