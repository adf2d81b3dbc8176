"""The advice of a job's optimizer, as one task of a pipeline passes it to the next: read from
``status.autoscaling``, applied as a ScalePlan."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import MAX_PODS, PodMeta, ReplicaResourceSpec
from edl_workflows.core.kubernetes.objects import Model

MAX_REASON = 4096
"""Characters of a ScalePlan's reason."""


class AdvisedChange(Model):
    """A change that an optimizer advises and that has not been applied.

    Attributes:
        optimizer: name of the optimizer.
        stage: stage of the job's life that it is for.
        replicas: role → wanted count and size, in the form of the stage ``scale``.
        migrate: nodes to replace by nodes of another size.
        reasons: role or pod → reason of its change.
        notes: why other things do not change.
        empty: whether nothing changes.
    """

    # Unknown fields are ignored: the package may have been upgraded while the change waited for approval.
    model_config = ConfigDict(extra="ignore")

    optimizer: str = ""
    stage: str = ""
    replicas: dict[str, ReplicaResourceSpec] = Field(default_factory=dict)
    migrate: list[PodMeta] = Field(default_factory=list, max_length=MAX_PODS)
    reasons: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    empty: bool = False

    @classmethod
    def of(cls, status: AutoscalingStatus) -> "AdvisedChange":
        """The advice in a job's status."""
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
        """Whether it changes anything. `empty` does not count: a person may have edited the rest."""
        return bool(self.replicas or self.migrate)

    def spec(self) -> Mapping[str, Any]:
        """The fields of the ScalePlan that applies it."""
        reasons = "; ".join(f"{subject}: {reason}" for subject, reason in sorted(self.reasons.items()))
        return {
            "replicaResourceSpecs": {
                role: replica_spec.to_dict() for role, replica_spec in self.replicas.items()
            },
            "migratePods": [pod.to_dict() for pod in self.migrate],
            "reason": reasons[:MAX_REASON],
        }
