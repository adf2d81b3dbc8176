"""The plans of one job in the order in which they are carried out. Pure."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from edl_workflows.exceptions import ManifestError
from edl_workflows.jobs.actions import Observed
from edl_workflows.jobs.scale_plan.model import KIND, ScalePlan

_BEGINNING = datetime.min.replace(tzinfo=UTC)


def age_key(plan: ScalePlan) -> tuple[datetime, list[tuple[int, str]]]:
    """Sorts older plans first. The API's times are whole seconds: plans of one second go by name, the numbers in it by
    value (``…-plan-9`` before ``…-plan-10``)."""
    parts = re.findall(r"[0-9]+|[^0-9]+", plan.metadata.name)
    key = [(int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts]
    return plan.metadata.creation_timestamp or _BEGINNING, key


def plans_of(observed: Observed) -> Sequence[ScalePlan]:
    """The job's plans, oldest first. One that does not validate is never carried out (its status says so), and one that is
    being deleted is no longer wanted: both are left out."""
    plans = []
    for manifest in observed.of(KIND):
        try:
            plan = ScalePlan.parse(manifest)
        except ManifestError:
            continue
        if plan.metadata.deletion_timestamp is None:
            plans.append(plan)
    return sorted(plans, key=age_key)
