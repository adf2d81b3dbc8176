"""TFJob: ``kubeflow.org/v1``, and ``v1alpha2``, ``v1beta1`` and ``v1beta2`` with their flat policies.

All versions share one schema that has the fields of all of them: objects are stored in one version, and a
field has the same meaning in each version.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from edl_workflows.core.jobs.kubeflow.model import (
    EXIT_CODES_2021,
    IMMUTABLE,
    KEEP_PODS,
    STATIC_CLUSTER,
    KubeflowJob,
    KubeflowReplicaSpec,
    KubeflowSpec,
    ReplicaType,
    RunPolicy,
    find_replica_type,
    job_rules,
    max_types,
    replica_rules,
)
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.kubernetes.objects import cel_rules, raise_problems

KIND = api.TF_JOBS.kind
VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha2")
"""All versions that Kubeflow has served. Objects are stored in the first one."""

MAX_NAME = 63 - len("-evaluator-9999")
"""A replica's service is named after the job, its type and its index, and such a name has at most 63
characters."""

COMPAT_ANNOTATION = f"{names.GROUP}/tfjob-compat"
"""Names of `COMPAT`, separated by commas."""
COMPAT: Mapping[str, str] = dict(
    (
        EXIT_CODES_2021,
        KEEP_PODS,
        (
            "sparse-cluster-key",
            "TF_CONFIG of a dynamic worker has sparseCluster for cluster (tf-operator 2021)",
        ),
        STATIC_CLUSTER,
    )
)


class TFReplicaType(ReplicaType):
    """What a replica does. The chief decides about the job's success, else worker 0."""

    CHIEF = "Chief"
    MASTER = "Master"
    PS = "PS"
    WORKER = "Worker"
    EVALUATOR = "Evaluator"

    @property
    def spellings(self) -> tuple[str, ...]:
        """The type's names in lower case. Eval is the design document's name."""
        return ("evaluator", "eval") if self is TFReplicaType.EVALUATOR else (self.slug,)

    @property
    def decides(self) -> bool:
        """Whether the end of this replica is the job's end."""
        return self in (TFReplicaType.CHIEF, TFReplicaType.MASTER)

    @property
    def single(self) -> bool:
        """Whether a job has at most one such replica."""
        return self.decides or self is TFReplicaType.EVALUATOR


_SPECS = "tfReplicaSpecs"


def _check_key(key: str) -> str:
    find_replica_type(TFReplicaType, key)
    return key


TFReplicaKey = Annotated[str, AfterValidator(_check_key)]
"""A type of replicas as a user spells it: upstream accepts every case."""


class TFJobSpec(KubeflowSpec):
    """What the user asks for. The flat policies are how versions before v1 spell those of ``runPolicy``.

    Attributes:
        tf_replica_specs: the replicas by type: Chief (or Master), PS, Worker and Evaluator, in any case.
        run_policy: how the job runs and ends.
        success_policy: "" lets the chief, else worker 0, decide; AllWorkers waits for all workers.
        enable_dynamic_worker: workers may come and go without the others being restarted; each knows itself
            and the parameter servers only.
    """

    model_config = cel_rules(*replica_rules(_SPECS, TFReplicaType), *IMMUTABLE)
    specs_field: ClassVar[str] = "tf_replica_specs"
    replica_types: ClassVar[type[ReplicaType]] = TFReplicaType
    tf_replica_specs: dict[TFReplicaKey, KubeflowReplicaSpec] = Field(max_length=max_types(TFReplicaType))
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    success_policy: Literal["", "AllWorkers"] = ""
    enable_dynamic_worker: bool = False

    @property
    def waits_for_all_workers(self) -> bool:
        """Whether the job succeeds only when all workers have succeeded, instead of with worker 0."""
        return self.success_policy == "AllWorkers"

    @property
    def workers_may_be_lost(self) -> bool:
        """Whether the job survives failed workers as long as one worker can continue."""
        return self.enable_dynamic_worker

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*self.find_problems()])
        return self


class TFJob(KubeflowJob):
    """A TensorFlow job: parameter servers, workers, a chief, an evaluator, each told of the others by
    TF_CONFIG.
    """

    model_config = job_rules(MAX_NAME)
    max_name: ClassVar[int] = MAX_NAME
    compat_annotation: ClassVar[str] = COMPAT_ANNOTATION
    compat_choices: ClassVar[Mapping[str, str]] = COMPAT
    api_version: Literal[
        "kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2"
    ] = "kubeflow.org/v1"
    kind: Literal["TFJob"] = "TFJob"
    spec: TFJobSpec
