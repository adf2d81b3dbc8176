"""The pure state machine of a ElasticJob."""

from edl_workflows.jobs.actions import Actions, Observed
from edl_workflows.jobs.elastic_job.model import ElasticJob


def reconcile(resource: ElasticJob, observed: Observed) -> Actions:
    """What to do about it now."""
    return Actions()
