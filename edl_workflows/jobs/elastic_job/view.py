"""ElasticJob as pipelines see it."""

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import KIND, ElasticJob, ElasticJobStatus, Phase
from edl_workflows.jobs.view import Checkpoint, JobPhase, JobView, Progress, Replicas

_PHASES = {
    None: JobPhase.PENDING,
    Phase.CREATED: JobPhase.PENDING,
    Phase.PENDING: JobPhase.PENDING,
    Phase.RUNNING: JobPhase.RUNNING,
    Phase.SCALING: JobPhase.SCALING,
    Phase.RESTARTING: JobPhase.RESTARTING,
    Phase.SUSPENDED: JobPhase.SUSPENDED,
    Phase.SUCCEEDED: JobPhase.SUCCEEDED,
    Phase.FAILED: JobPhase.FAILED,
}


def view(job: ElasticJob) -> JobView:
    """Map a job to its `JobView`. Created, and a job that no controller has seen, are Pending."""
    status = job.status
    return JobView(
        kind=KIND,
        name=job.metadata.name,
        namespace=job.metadata.namespace or "default",
        uid=job.metadata.uid,
        generation=job.metadata.generation,
        observed_generation=status.observed_generation,
        phase=_PHASES[status.phase],
        reason=status.reason,
        message=status.message,
        replicas={
            role: Replicas(counts.desired, counts.ready, counts.succeeded, counts.failed)
            for role, counts in status.replica_statuses.items()
            if role != names.MASTER_TYPE  # it serves training, it does not train
        },
        progress=_progress(status),
        checkpoint=Checkpoint(status.checkpoint.uri, status.checkpoint.step) if status.checkpoint else None,
        warnings=tuple(status.warnings),
        started=status.start_time,
        finished=status.completion_time,
        conditions={condition.type: condition.status for condition in status.conditions},
        labels=job.metadata.labels,
        annotations=job.metadata.annotations,
    )


def _progress(status: ElasticJobStatus) -> Progress:
    if status.progress is None:
        return Progress()
    return Progress(status.progress.step, status.progress.records, status.progress.speed)
