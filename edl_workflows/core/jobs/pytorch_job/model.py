"""PyTorchJob, ``kubeflow.org/v1``: fields as in training-operator 1.9 (``pytorch_types.go``)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs.kubeflow.model import (
    EXIT_CODES_2021,
    IMMUTABLE,
    KEEP_PODS,
    STATIC_CLUSTER,
    KubeflowJob,
    KubeflowReplicaSpec,
    KubeflowReplicaStatus,
    KubeflowSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
    find_replica_type,
    job_rules,
    keys_of,
    max_types,
    replica_rules,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.core.kubernetes.objects import Model, cel_rules, raise_problems

PYTORCH_JOBS = ApiResource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
_SPECS = "pytorchReplicaSpecs"
_INT32 = 2**31 - 1


class TorchReplicaType(ReplicaType):
    """What a replica does. The master has rank 0, and its success is the job's; without one all workers must
    succeed.
    """

    MASTER = "Master"
    WORKER = "Worker"

    @property
    def decides(self) -> bool:
        """Whether the end of this replica is the job's end."""
        return self is TorchReplicaType.MASTER


def _check_key(key: str) -> str:
    find_replica_type(TorchReplicaType, key)
    return key


TorchReplicaKey = Annotated[str, AfterValidator(_check_key)]
"""A type of replicas as a user spells it: upstream accepts every case."""


class TorchReplicaSpec(KubeflowReplicaSpec):
    """One type of replicas."""

    default_policy: ClassVar[RestartPolicy] = RestartPolicy.ON_FAILURE


class RendezvousOption(Model):
    """One ``key=value`` of torchrun's ``--rdzv-conf``."""

    key: str = Field(min_length=1, max_length=253)
    value: str = Field(default="", max_length=4096)


class ElasticPolicy(Model):
    """Workers start under ``torchrun``, which forms a new group whenever workers come or go.

    Attributes:
        min_replicas, max_replicas: the bounds of the number of workers (``--nnodes=MIN:MAX``). Where one is
            left out it is the other; where both are, it is the number of workers.
        rdzv_backend: ``--rdzv-backend``; default c10d.
        rdzv_port, rdzv_host: the rendezvous' address (``--rdzv-endpoint``); default worker 0's.
        rdzv_id: ``--rdzv-id``.
        rdzv_conf: ``--rdzv-conf``.
        standalone: ``--standalone``: each pod trains alone, with a rendezvous of its own.
        n_proc_per_node: processes of a pod; deprecated, write ``nprocPerNode`` beside ``elasticPolicy``.
        max_restarts: ``--max-restarts``: how often torchrun restarts its processes before the pod fails.
        metrics: accepted for upstream's users, who get a HorizontalPodAutoscaler for them; here none is made.
    """

    model_config = cel_rules(
        (
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "elasticPolicy: minReplicas is larger than maxReplicas",
        )
    )
    min_replicas: int | None = Field(default=None, ge=1, le=10_000)
    max_replicas: int | None = Field(default=None, ge=1, le=10_000)
    rdzv_backend: Literal["c10d", "etcd", "etcd-v2"] | None = None
    rdzv_port: int | None = Field(default=None, ge=1, le=65_535)
    rdzv_host: str | None = Field(default=None, max_length=253)
    rdzv_id: str | None = Field(default=None, max_length=253)
    rdzv_conf: list[RendezvousOption] = Field(default_factory=list, max_length=64)
    standalone: bool | None = None
    n_proc_per_node: int | None = Field(default=None, ge=1, le=_INT32)
    max_restarts: int | None = Field(default=None, ge=0, le=_INT32)
    metrics: list[dict[str, Any]] = Field(default_factory=list, max_length=64)


_BOUND = "self.elasticPolicy"
_HAS_BOUNDS = f"has({_BOUND}.minReplicas) || has({_BOUND}.maxReplicas)"
_WITHIN = (
    f"!has({_BOUND}) || !({_HAS_BOUNDS}) || {keys_of(_SPECS, TorchReplicaType.WORKER)}.all(key, "
    f"self.{_SPECS}[key].replicas >= "
    f"(has({_BOUND}.minReplicas) ? {_BOUND}.minReplicas : {_BOUND}.maxReplicas) && "
    f"self.{_SPECS}[key].replicas <= "
    f"(has({_BOUND}.maxReplicas) ? {_BOUND}.maxReplicas : {_BOUND}.minReplicas))"
)


class PyTorchJobSpec(KubeflowSpec):
    """What the user asks for. The flat policies are how pytorch-operator spelt those of ``runPolicy``.

    Attributes:
        pytorch_replica_specs: the replicas by type: Master and Worker, in any case.
        run_policy: how the job runs and ends.
        elastic_policy: workers may come and go without the others being restarted.
        nproc_per_node: processes of a pod: a number, ``auto``, ``cpu`` or ``gpu``.
    """

    model_config = cel_rules(
        *replica_rules(_SPECS, TorchReplicaType),
        *IMMUTABLE,
        (
            f"!has({_BOUND}) || {keys_of(_SPECS, TorchReplicaType.WORKER)}.size() == 1",
            "elasticPolicy: it is about workers, and the job has none",
        ),
        (_WITHIN, "pytorchReplicaSpecs: the number of workers is outside of elasticPolicy's bounds"),
        (
            f"!has({_BOUND}) || !has({_BOUND}.nProcPerNode) || !has(self.nprocPerNode)",
            "elasticPolicy.nProcPerNode: nprocPerNode stands beside elasticPolicy, too; keep that one",
        ),
    )
    specs_field: ClassVar[str] = "pytorch_replica_specs"
    replica_types: ClassVar[type[ReplicaType]] = TorchReplicaType
    pytorch_replica_specs: dict[TorchReplicaKey, TorchReplicaSpec] = Field(
        max_length=max_types(TorchReplicaType)
    )
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    elastic_policy: ElasticPolicy | None = None
    nproc_per_node: str | None = Field(default=None, pattern="^(auto|cpu|gpu|[1-9][0-9]{0,8})$", max_length=9)

    @property
    def waits_for_all_workers(self) -> bool:
        """Whether the job succeeds when all workers have, and not already with worker 0."""
        return True

    @property
    def processes_per_pod(self) -> str:
        """The value for torchrun's ``--nproc-per-node``."""
        policy = self.elastic_policy
        if policy is not None and policy.n_proc_per_node is not None:
            return str(policy.n_proc_per_node)
        return self.nproc_per_node or "auto"

    @property
    def worker_bounds(self) -> tuple[int, int] | None:
        """The fewest and the most workers of an elastic job; None if the job is not elastic."""
        policy, worker = self.elastic_policy, self.replicas.get(TorchReplicaType.WORKER)
        if policy is None or worker is None:
            return None
        low, high = policy.min_replicas, policy.max_replicas
        return low or high or worker.replicas, high or low or worker.replicas

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*self.find_problems(), *self._elastic_problems()])
        return self

    def _elastic_problems(self) -> Iterator[Problem]:
        policy = self.elastic_policy
        if policy is None:
            return
        if policy.n_proc_per_node is not None and self.nproc_per_node is not None:
            message = "nprocPerNode stands beside elasticPolicy, too; keep that one"
            yield Problem("elasticPolicy.nProcPerNode", message)
        bounds, worker = self.worker_bounds, self.replicas.get(TorchReplicaType.WORKER)
        if bounds is None or worker is None:
            yield Problem("elasticPolicy", "it is about workers, and the job has none")
            return
        low, high = bounds
        if low > high:
            message = f"is larger than maxReplicas ({low} and {high})"
            yield Problem("elasticPolicy.minReplicas", message)
        elif not low <= worker.replicas <= high:
            message = f"must be from {low} to {high} (elasticPolicy), got {worker.replicas}"
            yield Problem(f"{_SPECS}.Worker.replicas", message)


MAX_NAME = 63 - len("-worker-9999")
"""A replica's service is named after the job, its type and its index, and such a name has at most 63
characters."""

COMPAT_ANNOTATION = f"{names.GROUP}/pytorchjob-compat"


class PyTorchJob(KubeflowJob):
    """A PyTorch job: a master and workers, each told of its rank and of the others' meeting point."""

    model_config = job_rules(MAX_NAME)
    max_name: ClassVar[int] = MAX_NAME
    compat_annotation: ClassVar[str] = COMPAT_ANNOTATION
    compat_choices: ClassVar[Mapping[str, str]] = dict((EXIT_CODES_2021, KEEP_PODS, STATIC_CLUSTER))
    api_version: Literal["kubeflow.org/v1"] = "kubeflow.org/v1"
    kind: Literal["PyTorchJob"] = "PyTorchJob"
    spec: PyTorchJobSpec

    @property
    def is_ending(self) -> bool:
        """Whether a worker has succeeded, so that the others are about to."""
        counts = self.status.replica_statuses.get(TorchReplicaType.WORKER, KubeflowReplicaStatus())
        return bool(counts.completed)
