"""ScalePlan's spec and status (DLRover's "Scale CRD", ``elastic.iml.github.io/v1alpha1``)."""

import difflib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import (
    FINAL_PHASES,
    NO_PHASE,
    Condition,
    Count,
    Model,
    Quantity,
    Resource,
    Status,
    cel_rules,
    parse_quantity,
    raise_problems,
)

KIND = "ScalePlan"
PLURAL = "scaleplans"

Role = Literal["ps", "worker", "chief", "evaluator"]

JOB_FINISHED = "JobFinished"
"""Reason of a plan that failed because its job had succeeded: there was nothing left to change."""
JOB_FAILED = "JobFailed"
"""Reason of a plan that failed because its job had failed."""
POD_REFUSED = "PodRefused"
"""Reason of an auto plan whose pods the API server refuses, for instance because of a quota."""
NAME_CONFLICT = "NameConflict"
"""Reason of an auto plan that failed because another object has the name of one of its pods."""

MAX_PODS = 2_000
"""Most pods in one list of a plan: about three such lists fit into the 1.5 MiB that an API server stores of
an object."""


class ScalePlanPhase(StrEnum):
    """Phases of a plan.

    A change of the parameter servers, or of the members of a collective job, goes from Pending to Verifying
    in this order. Any other change of workers, or an auto plan, goes from Pending to Scaling; from there it
    goes to Checkpointing if a collective job has recovered with more members than the plan wants. A plan
    that only asks for a checkpoint ends after Checkpointed. Succeeded and Failed are final; a failed
    migration was rolled back to the old servers.
    """

    PENDING = "Pending"
    CHECKPOINTING = "Checkpointing"
    CHECKPOINTED = "Checkpointed"
    MIGRATING = "Migrating"
    RESTARTING = "Restarting"
    VERIFYING = "Verifying"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def final(self) -> bool:
        """Whether the phase never changes again."""
        return self in (ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED)


LABEL_VALUE = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
"""What Kubernetes accepts as a label's value, except the empty string."""


_GPU = "nvidia.com/gpu"
_OTHER_RESOURCE = re.compile(
    r"^(ephemeral-storage|hugepages-\w+|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[\w.-]{1,63})\Z"
)
"""Names of resources that pods can request besides CPU and memory."""


def _nothing_if_zero(amount: str | None) -> str | None:
    return None if amount is not None and parse_quantity(amount) == 0 else amount


_KeptIfZero = Annotated[Quantity | None, AfterValidator(_nothing_if_zero)]


class NodeResource(Model):
    """Requests and limits of one node's main container. A resource that is left out keeps what the node has.
    Besides these, any resource of the cluster by its name, as ``example.com/fpga`` or ``ephemeral-storage``.

    Attributes:
        cpu: cores; 0 is the same as left out.
        memory: bytes; 0 is the same as left out.
        gpu: pieces; also called ``nvidia.com/gpu``.
        gpu_type: which GPUs, as the label ``nvidia.com/gpu.product`` of the cluster's nodes says it:
            ``Tesla-V100-SXM2-16GB``.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Quantity]
    cpu: _KeptIfZero = None
    memory: _KeptIfZero = None
    gpu: Quantity | None = None
    gpu_type: Annotated[str, Field(pattern=LABEL_VALUE)] | None = None

    @property
    def others(self) -> dict[str, str]:
        """The further resources by name."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_gpus(cls, resource: object) -> object:
        if not isinstance(resource, Mapping) or _GPU not in resource:
            return resource
        if resource.get("gpu") is not None:
            raise_problems([Problem(_GPU, "gpu says it already; leave one of them out")])
        return {
            ("gpu" if name == _GPU else name): amount for name, amount in resource.items() if name != "gpu"
        }

    @model_validator(mode="after")
    def _known_to_clusters(self) -> Self:
        raise_problems([_unknown(name) for name in self.others if not _OTHER_RESOURCE.match(name)])
        return self


def _unknown(name: str) -> Problem:
    near = difflib.get_close_matches(
        name, ["cpu", "memory", "gpu", "gpuType", "ephemeral-storage"], n=1, cutoff=0.5
    )
    return Problem(
        name,
        "no resource of a container is called so; "
        + (
            f"did you mean {near[0]!r}?"
            if near
            else "an extended resource has a domain, as in example.com/fpga"
        ),
    )


class ReplicaResourceSpec(Model):
    """Wanted count and size of one role.

    Attributes:
        replicas: wanted count; absent keeps the current count (zero is zero).
        resource: size of nodes made from now on.
    """

    replicas: Count | None = None
    resource: NodeResource = Field(default_factory=NodeResource)


class PodMeta(Model):
    """One pod to create, remove or migrate.

    Attributes:
        name: the pod's. In createPods it must be ``<job>-edljob-<type>-<id>``.
        id: the node's number, unique in (job, type) and never used twice.
        rank_index: the node's rank, kept by the node that replaces it.
        type: the node's role.
        service: address that others reach it by.
        resource: requests and limits of the pod's first container; what is left out is as the template says.
    """

    name: str = Field(max_length=253)
    id: int = Field(default=0, ge=0)
    type: Role | None = None
    rank_index: int = Field(default=0, ge=0)
    service: str = Field(default="", max_length=512)
    resource: NodeResource = Field(default_factory=NodeResource)


class ScalePlanSpec(Model):
    """What to change.

    Attributes:
        owner_job: the ElasticJob; may be left out when a label names it.
        replica_resource_specs: wanted counts and sizes by role.
        create_pods, remove_pods: pods to make and to delete now (auto plans).
        migrate_pods: pods to replace by ones of another size, rank kept.
        migrate_ranks: the same for parameter servers, by rank: the master finds the pods when the plan
            begins.
        ps_hosts: parameter servers' addresses after the plan (auto plans; for information).
        checkpoint: take a checkpoint first. Changes of parameter servers always do; alone it is a request for
            one.
        step_timeout_seconds: limit of each step; a migration that exceeds it is rolled back.
        reason: why, in words, where an autoscaler wants the change.
    """

    model_config = cel_rules(
        (
            (
                "!(has(oldSelf.ownerJob) && oldSelf.ownerJob != '') || "
                "has(self.ownerJob) && self.ownerJob == oldSelf.ownerJob"
            ),
            "ownerJob can't be changed: make a new plan",
        ),
    )
    owner_job: str = Field(default="", max_length=253)
    replica_resource_specs: dict[Role, ReplicaResourceSpec] = Field(default_factory=dict)
    create_pods: list[PodMeta] = Field(default_factory=list, max_length=MAX_PODS)
    remove_pods: list[PodMeta] = Field(default_factory=list, max_length=MAX_PODS)
    migrate_pods: list[PodMeta] = Field(default_factory=list, max_length=MAX_PODS)
    migrate_ranks: dict[int, NodeResource] = Field(default_factory=dict, max_length=MAX_PODS)
    ps_hosts: list[Annotated[str, Field(max_length=512)]] = Field(default_factory=list, max_length=MAX_PODS)
    checkpoint: bool = False
    step_timeout_seconds: int = Field(default=600, ge=1, le=86_400)
    reason: str = Field(default="", max_length=4096)


class PlanStep(Status):
    """One step of a plan: recorded before the next begins."""

    phase: ScalePlanPhase
    start_time: datetime
    finish_time: datetime | None = None
    message: str = ""


class PlanCheckpoint(Status):
    """The checkpoint from which the changed cluster resumed (or the requested one)."""

    uri: str
    step: int


class ModelVerification(Status):
    """Whether the changed cluster has the same model: what the model says of the same records, by the
    program's own graph.

    Attributes:
        result: ``NotCompared``: the program gives nothing to compare, or the plan failed before.
        before, after: the switch; the loss of the chief's last batch, or what the program compares.
        message: why nothing was compared, or only the variables.
    """

    result: Literal["Pending", "Same", "Different", "NotCompared"]
    before: float | None = None
    after: float | None = None
    message: str = ""


class ScalePlanStatus(Status):
    """Status of a plan. The job's master writes that of a manual plan, the controller that of an auto plan.

    Attributes:
        steps: each step with its times, in order.
        checkpoint: the newest checkpoint taken for this plan.
        resumed_step: first global step that the new cluster reported.
        stall_seconds: from the last step of the old cluster to the first step of the new one.
        cluster_version: version of the training cluster after the plan.
        verification: comparison of the model before and after the switch; None if there was no switch.
    """

    phase: ScalePlanPhase | None = None
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    conditions: list[Condition] = Field(default_factory=list)
    create_time: datetime | None = None
    finish_time: datetime | None = None
    steps: list[PlanStep] = Field(default_factory=list)
    checkpoint: PlanCheckpoint | None = None
    resumed_step: int | None = None
    stall_seconds: float | None = None
    cluster_version: int | None = None
    verification: ModelVerification | None = None


class ScalePlan(Resource):
    """A change of a running ElasticJob, and the record of how it was carried out."""

    model_config = cel_rules(
        (
            f"{NO_PHASE} || oldSelf.status.phase == 'Pending' || self.spec == oldSelf.spec",
            "the spec of a plan that has begun can't be changed: make a new plan",
        ),
        FINAL_PHASES,
    )
    api_version: Literal["elastic.iml.github.io/v1alpha1"] = "elastic.iml.github.io/v1alpha1"
    kind: Literal["ScalePlan"] = "ScalePlan"
    spec: ScalePlanSpec
    status: ScalePlanStatus = Field(default_factory=ScalePlanStatus)

    @property
    def job(self) -> str:
        """Name of the ElasticJob that the plan is for."""
        labels = self.metadata.labels
        return (
            self.spec.owner_job or labels.get(names.JOB_LABEL, "") or labels.get(names.LEGACY_JOB_LABEL, "")
        )

    @property
    def finished(self) -> bool:
        """Whether its phase is final."""
        return self.status.phase is not None and self.status.phase.final

    @property
    def auto(self) -> bool:
        """Whether a job's master wrote it, for the controller to carry out."""
        return self.metadata.labels.get(names.SCALE_TYPE_LABEL) == names.SCALE_AUTO

    @model_validator(mode="after")
    def _check(self) -> Self:
        label = self.metadata.labels.get(names.JOB_LABEL, "")
        if not self.job:
            raise_problems(
                [Problem("spec.ownerJob", f"name the ElasticJob here or in the label {names.JOB_LABEL!r}")]
            )
        if label and label != self.job:
            raise_problems(
                [Problem("spec.ownerJob", f"says {self.job!r}, the label {names.JOB_LABEL!r} {label!r}")]
            )
        return self
