"""The plans of one job in the order in which they are carried out. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import Observed
from edl_workflows.core.jobs.scale_plan.model import KIND, ScalePlan, ScalePlanPhase
from edl_workflows.core.kubernetes.objects import Resource

_BEGINNING = datetime.min.replace(tzinfo=UTC)


def age_key(plan: ScalePlan) -> tuple[datetime, list[tuple[int, str]]]:
    """Sort older plans first. The API's times are whole seconds: plans created in the same second are sorted
    by name, with numbers in the name compared by value (``…-plan-9`` before ``…-plan-10``)."""
    parts = re.findall(r"[0-9]+|[^0-9]+", plan.metadata.name)
    key = [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]
    return plan.metadata.creation_timestamp or _BEGINNING, key


def belongs_to_earlier_job(plan: ScalePlan, job: Resource) -> bool:
    """Whether a plan belongs to an earlier job of the same name, so that the garbage collector will delete it
    soon."""
    owners = [o for o in plan.metadata.owner_references if (o.kind, o.name) == (job.kind, job.metadata.name)]
    return bool(owners) and all(owner.uid != job.metadata.uid for owner in owners)


def list_plans(observed: Observed, job: Resource) -> Sequence[ScalePlan]:
    """The job's plans, oldest first. Plans that do not validate are left out, since they are never carried
    out (their status says so); so are plans that are being deleted or belong to an earlier job of the same
    name."""
    plans = []
    for manifest in observed.of(KIND):
        try:
            plan = ScalePlan.parse(manifest)
        except ManifestError:
            continue
        if plan.metadata.deletion_timestamp is None and not belongs_to_earlier_job(plan, job):
            plans.append(plan)
    return sorted(plans, key=age_key)


def count_desired_nodes(plans: Iterable[ScalePlan], initial: Mapping[str, int]) -> dict[str, int]:
    """How many nodes of each role a job wants: `initial`, overridden by its manual plans that have succeeded,
    in their order.

    Args:
        plans: oldest first.
        initial: replicas by role.
    """
    desired = dict(initial)
    for plan in plans:
        if not plan.auto and plan.status.phase is ScalePlanPhase.SUCCEEDED:
            changes = plan.spec.replica_resource_specs.items()
            desired |= {role: change.replicas for role, change in changes if change.replicas is not None}
    return desired
