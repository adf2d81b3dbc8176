"""The plans of one job in the order in which they are carried out. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from edl_workflows.exceptions import ManifestError
from edl_workflows.jobs.actions import Observed
from edl_workflows.jobs.objects import Resource
from edl_workflows.jobs.scale_plan.model import KIND, ScalePlan, ScalePlanPhase

_BEGINNING = datetime.min.replace(tzinfo=UTC)


def age_key(plan: ScalePlan) -> tuple[datetime, list[tuple[int, str]]]:
    """Sorts older plans first. The API's times are whole seconds: plans of one second go by name, the numbers
    in it by value (``…-plan-9`` before ``…-plan-10``)."""
    parts = re.findall(r"[0-9]+|[^0-9]+", plan.metadata.name)
    key = [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]
    return plan.metadata.creation_timestamp or _BEGINNING, key


def belongs_to_earlier_job(plan: ScalePlan, job: Resource) -> bool:
    """Whether it was tied to an earlier job of the same name; the garbage collector is about to delete it."""
    owners = [o for o in plan.metadata.owner_references if (o.kind, o.name) == (job.kind, job.metadata.name)]
    return bool(owners) and all(owner.uid != job.metadata.uid for owner in owners)


def list_plans(observed: Observed, job: Resource) -> Sequence[ScalePlan]:
    """The job's plans, oldest first. One that does not validate is never carried out (its status says so),
    and one that is
    being deleted, or belongs to an earlier job of the name, is no longer wanted: they are left out."""
    plans = []
    for manifest in observed.of(KIND):
        try:
            plan = ScalePlan.parse(manifest)
        except ManifestError:
            continue
        if plan.metadata.deletion_timestamp is None and not belongs_to_earlier_job(plan, job):
            plans.append(plan)
    return sorted(plans, key=age_key)


def count_wanted_nodes(plans: Iterable[ScalePlan], known: Mapping[str, int]) -> dict[str, int]:
    """How many nodes of each role a job wants: `known`, then the newest word of its manual plans that have
    succeeded.

    Args:
        plans: oldest first.
        known: replicas by role.
    """
    wanted = dict(known)
    for plan in plans:
        if not plan.auto and plan.status.phase is ScalePlanPhase.SUCCEEDED:
            changes = plan.spec.replica_resource_specs.items()
            wanted |= {role: change.replicas for role, change in changes if change.replicas is not None}
    return wanted
