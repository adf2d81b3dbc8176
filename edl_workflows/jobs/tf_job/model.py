"""TFJob: ``kubeflow.org/v1``, and ``v1alpha2``, ``v1beta1`` and ``v1beta2`` with their flat policies.

All versions are served from one schema with the fields of all: an object is stored once, and a field means
the same in whichever version a user wrote it.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import api, names, validation
from edl_workflows.jobs.kubeflow.model import (
    KubeflowJob,
    KubeflowReplicaSpec,
    KubeflowSpec,
    ReplicaType,
    RunPolicy,
    find_replica_type,
    keys_of,
    replica_rules,
)
from edl_workflows.jobs.objects import FINAL_PHASES, cel_rules, raise_problems

KIND = api.TF_JOBS.kind
VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha2")
"""All versions that Kubeflow had. The first is stored."""

MAX_NAME = 63 - len("-evaluator-9999")
"""A replica's service is named after the job, its type and its index, and holds 63 characters."""

COMPAT_ANNOTATION = f"{names.GROUP}/tfjob-compat"
"""Names of `COMPAT`, separated by commas."""
COMPAT: Mapping[str, str] = {
    "exit-codes-2021": "of exit codes above 127 only 130, 137, 138 and 143 restart a replica "
    "(tf-operator up to 2021)",
    "keep-pods": "without a cleanPodPolicy the pods of a finished job stay (training-operator from 1.6 on)",
    "sparse-cluster-key": "TF_CONFIG of a dynamic worker has sparseCluster for cluster (tf-operator 2021)",
    "static-cluster": "a change of replicas restarts nobody; pods keep the TF_CONFIG they began with "
    "(all upstream)",
}
"""Behaviours of upstream that users may depend on; the default is what upstream's documentation promises."""


class TFReplicaType(ReplicaType):
    """What a replica does. The chief decides about the job's success, else worker 0."""

    CHIEF = "Chief"
    MASTER = "Master"
    PS = "PS"
    WORKER = "Worker"
    EVALUATOR = "Evaluator"

    @property
    def spellings(self) -> tuple[str, ...]:
        """The type's names in lower case. Eval is the design document's."""
        return ("evaluator", "eval") if self is TFReplicaType.EVALUATOR else (self.slug,)

    @property
    def decides(self) -> bool:
        """Whether the end of this replica is the job's end."""
        return self in _CHIEFS


_CHIEFS = (TFReplicaType.CHIEF, TFReplicaType.MASTER)
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

    model_config = cel_rules(
        *replica_rules(_SPECS, TFReplicaType),
        (
            f"{keys_of(_SPECS, *_CHIEFS)}.size() <= 1",
            "tfReplicaSpecs: Chief and Master are two names of one thing; keep one",
        ),
        *(
            (f"{keys_of(_SPECS, kind)}.size() <= 1", f"tfReplicaSpecs: {kind} stands twice; keep one")
            for kind in (TFReplicaType.PS, TFReplicaType.WORKER, TFReplicaType.EVALUATOR)
        ),
        *(
            (
                f"{keys_of(_SPECS, *kinds)}.all(key, self.tfReplicaSpecs[key].replicas <= 1)",
                f"tfReplicaSpecs: a job has one {kinds[0]}",
            )
            for kinds in (_CHIEFS, (TFReplicaType.EVALUATOR,))
        ),
    )
    specs_field: ClassVar[str] = "tf_replica_specs"
    replica_types: ClassVar[type[ReplicaType]] = TFReplicaType
    tf_replica_specs: dict[TFReplicaKey, KubeflowReplicaSpec] = Field(max_length=len(TFReplicaType))
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    success_policy: Literal["", "AllWorkers"] = ""
    enable_dynamic_worker: bool = False

    @property
    def waits_for_all_workers(self) -> bool:
        """Whether the job succeeds when all workers have, and not already with worker 0."""
        return self.success_policy == "AllWorkers"

    @property
    def workers_may_be_lost(self) -> bool:
        """Whether the job survives failed workers as long as one can go on."""
        return self.enable_dynamic_worker

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*self._type_problems(), *self.find_problems()])
        return self

    def _type_problems(self) -> Iterator[Problem]:
        """Which types go together."""
        if not self.tf_replica_specs:
            yield Problem(_SPECS, "at least one type of replicas is needed, such as Worker")
        seen: dict[str, str] = {}
        for key, replica in self.tf_replica_specs.items():
            kind = self.replica_type(key)
            same = "Chief" if kind.decides else kind.value
            if same in seen:
                yield Problem(f"{_SPECS}.{key}", f"is {seen[same]} once more; keep one of the two")
            seen[same] = key
            if (kind.decides or kind is TFReplicaType.EVALUATOR) and replica.replicas > 1:
                message = f"a job has one {kind.value} (got {replica.replicas})"
                yield Problem(f"{_SPECS}.{key}.replicas", message)


class TFJob(KubeflowJob):
    """A TensorFlow job: parameter servers, workers, a chief, an evaluator, each told of the others by
    TF_CONFIG.
    """

    model_config = cel_rules(
        (
            f"size(self.metadata.name) <= {MAX_NAME}",
            f"metadata.name: at most {MAX_NAME} characters: the names of the job's pods add to it",
        ),
        (
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name: must be lower-case letters, digits and '-', beginning with a letter",
        ),
        FINAL_PHASES,
    )
    api_version: Literal[
        "kubeflow.org/v1", "kubeflow.org/v1beta2", "kubeflow.org/v1beta1", "kubeflow.org/v1alpha2"
    ] = "kubeflow.org/v1"
    kind: Literal["TFJob"] = "TFJob"
    spec: TFJobSpec

    @property
    def compat(self) -> frozenset[str]:
        """Behaviours of upstream that this job asks for: names of `COMPAT`."""
        given = self.metadata.annotations.get(COMPAT_ANNOTATION, "")
        return frozenset(part.strip() for part in given.split(",") if part.strip())

    @model_validator(mode="after")
    def _check(self) -> Self:
        path = f"metadata.annotations.{COMPAT_ANNOTATION}"
        unknown = [
            Problem(path, f"{one!r} is unknown; known are {', '.join(sorted(COMPAT))}")
            for one in sorted(self.compat - set(COMPAT))
        ]
        raise_problems([*validation.job_name(self.metadata, MAX_NAME), *unknown])
        return self
