"""TFJob as pipelines see it."""

from edl_workflows.jobs.tf_job.model import KIND, Phase, TFJob
from edl_workflows.jobs.view import JobPhase, JobView, Replicas

_PHASES = {
    None: JobPhase.PENDING,
    Phase.CREATED: JobPhase.PENDING,
    Phase.RUNNING: JobPhase.RUNNING,
    Phase.RESTARTING: JobPhase.RESTARTING,
    Phase.SUSPENDED: JobPhase.SUSPENDED,
    Phase.SUCCEEDED: JobPhase.SUCCEEDED,
    Phase.FAILED: JobPhase.FAILED,
}


def view(job: TFJob) -> JobView:
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
            kind: Replicas(counts.desired, counts.ready, counts.succeeded, counts.failed)
            for kind, counts in status.replica_statuses.items()
        },
        started=status.start_time,
        finished=status.completion_time,
        conditions={condition.type: condition.status for condition in status.conditions},
        labels=job.metadata.labels,
        annotations=job.metadata.annotations,
    )
