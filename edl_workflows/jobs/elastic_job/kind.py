"""ElasticJob's row of the registry."""

from edl_workflows.jobs.elastic_job import scaling, sources
from edl_workflows.jobs.elastic_job.crd import OPTIONS
from edl_workflows.jobs.elastic_job.model import ElasticJob
from edl_workflows.jobs.elastic_job.reconcile import reconcile
from edl_workflows.jobs.elastic_job.view import view
from edl_workflows.jobs.kind import Kind

ELASTIC_JOB = Kind(
    source=sources.ELASTIC_JOBS,
    model=ElasticJob,
    reconcile=reconcile,
    observes=(
        sources.PODS,
        sources.SERVICES,
        sources.SECRETS,
        sources.CONFIG_MAPS,
        sources.SERVICE_ACCOUNTS,
        sources.ROLES,
        sources.ROLE_BINDINGS,
        sources.SCALE_PLANS,
    ),
    crd=OPTIONS,
    view=view,
    elastic=scaling.elastic_role,
)
