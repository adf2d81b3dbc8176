"""What a job's optimizer would change, as one task hands it to the next: from ``status.autoscaling`` to a ScalePlan."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from edl_workflows.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.jobs.objects import Model
from edl_workflows.jobs.scale_plan.model import MAX_PODS, PodMeta, ReplicaResourceSpec

MAX_REASON = 4096
"""Characters of a plan's reason."""


class PlannedChange(Model):
    """A plan that nobody has carried out.

    Attributes:
        optimizer, stage: who planned, and for which part of the job's life.
        replicas: role → wanted count and size; as the stage ``scale`` takes it.
        migrate: nodes to replace by ones of another size.
        reasons: why, by role or pod: one for each change.
        notes: why something else does not change.
        empty: nothing changes.
    """

    # Read leniently: it may have waited for its approval while the package became a newer one.
    model_config = ConfigDict(extra="ignore")

    optimizer: str = ""
    stage: str = ""
    replicas: dict[str, ReplicaResourceSpec] = Field(default_factory=dict)
    migrate: list[PodMeta] = Field(default_factory=list, max_length=MAX_PODS)
    reasons: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    empty: bool = False

    @classmethod
    def of(cls, status: AutoscalingStatus) -> "PlannedChange":
        """As the job's master says it."""
        return cls(
            optimizer=status.optimizer,
            stage=status.stage,
            replicas=status.replica_resource_specs,
            migrate=status.migrate_pods,
            reasons=status.reasons,
            notes=status.notes,
            empty=not status.replica_resource_specs and not status.migrate_pods,
        )

    @property
    def changes(self) -> bool:
        """Whether there is anything to carry out, whatever `empty` says: a person may have edited the plan."""
        return bool(self.replicas or self.migrate)

    def spec(self) -> Mapping[str, Any]:
        """The ScalePlan's fields that carry it out."""
        reason = "; ".join(f"{what}: {why}" for what, why in sorted(self.reasons.items()))
        return {
            "replicaResourceSpecs": {role: wanted.to_dict() for role, wanted in self.replicas.items()},
            "migratePods": [pod.to_dict() for pod in self.migrate],
            "reason": reason[:MAX_REASON],
        }
