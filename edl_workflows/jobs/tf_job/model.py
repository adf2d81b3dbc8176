"""TFJob's spec and status: ``kubeflow.org/v1``, and ``v1alpha2``, ``v1beta1`` and ``v1beta2`` with the flat
policies of their time.

All versions are served from one schema, which knows the fields of all: an object is stored once, and what a
    user wrote
in any of them means the same.
"""

from datetime import datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import api
from edl_workflows.jobs.objects import (
    FINAL_PHASES,
    Model,
    PodTemplate,
    Quantity,
    Status,
    TimeToLive,
    cel_rules,
    raise_problems,
)
from edl_workflows.jobs.status import Job, JobStatus, KindPhase, ReplicaCounts
from edl_workflows.jobs.tf_job import validation
from edl_workflows.jobs.tf_job.types import ReplicaKey, ReplicaType, RestartPolicy, replica_type, spellings

KIND = api.TF_JOBS.kind


class TFJobPhase(KindPhase):
    """The newest condition as one word. Succeeded and Failed are final."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ReplicaSpec(Model):
    """One type of replicas.

    Attributes:
        replicas: how many.
        template: the pods'. Its container ``tensorflow``, else its first, is the replica.
        restart_policy: Always and OnFailure leave restarts to the node and replace pods that are lost;
            ExitCode replaces a pod that is lost (evicted, its node shut down) or whose exit code can be
            transient (128 to 255) and fails the job for others; Never fails it. Default: the template's
            ``restartPolicy``, else Never.
    """

    replicas: int = Field(default=1, ge=1, le=10_000)
    template: PodTemplate = Field(default_factory=dict)
    restart_policy: RestartPolicy | None = None

    @property
    def policy(self) -> RestartPolicy:
        """The restart policy in force."""
        return self.restart_policy or RestartPolicy(
            (self.template.get("spec") or {}).get("restartPolicy", "Never")
        )


class SchedulingPolicy(Model):
    """Gang scheduling: the job's pods are placed together or not at all, by Volcano.

    Attributes:
        min_available: how many pods must be placeable; default all.
        queue: Volcano's.
        min_resources: what the gang needs at least.
        priority_class: of the gang.
        schedule_timeout_seconds: accepted for scheduler-plugins' users; Volcano has no such limit.
    """

    min_available: int | None = Field(default=None, ge=1)
    queue: str = ""
    min_resources: dict[str, Quantity] = Field(default_factory=dict)
    priority_class: str = ""
    schedule_timeout_seconds: int | None = Field(default=None, ge=0)


class Policies(Model):
    """How a job runs and ends.

    Attributes:
        clean_pod_policy: what becomes of pods that still run when the job ends: Running deletes those, All
            deletes every pod, None leaves all.
        ttl_seconds_after_finished: how long after its end the job is deleted, with its pods; left out: it
            stays until somebody deletes it.
        active_deadline_seconds: how long the job may run, from its start.
        backoff_limit: how many restarts of replicas the job survives.
        scheduling_policy: for gang scheduling.
    """

    clean_pod_policy: Literal["All", "Running", "None"] | None = None
    ttl_seconds_after_finished: TimeToLive | None = None
    active_deadline_seconds: int | None = Field(default=None, ge=0)
    backoff_limit: int | None = Field(default=None, ge=0)
    scheduling_policy: SchedulingPolicy | None = None


ELSEWHERE: Literal["kueue.x-k8s.io/multikueue"] = "kueue.x-k8s.io/multikueue"
"""``managedBy`` of jobs that another cluster's controller runs."""


class RunPolicy(Policies):
    """`Policies` as v1 nests them.

    Attributes:
        suspend: no pods while true.
        managed_by: who reconciles the job; absent: the cluster's TFJob controller.
    """

    suspend: bool = False
    managed_by: Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"] | None = None


_CHIEFS = (ReplicaType.CHIEF, ReplicaType.MASTER)


def _keys_of(*kinds: ReplicaType) -> str:
    """CEL: the keys of ``tfReplicaSpecs`` that mean one of these types, in any case."""
    names = "|".join(name for kind in kinds for name in spellings(kind))
    return f"self.tfReplicaSpecs.filter(key, key.matches('(?i)^({names})$'))"


class TFJobSpec(Policies):
    """What the user asks for. The flat policies are how versions before v1 spell those of ``runPolicy``.

    Attributes:
        tf_replica_specs: the replicas by type: Chief (or Master), PS, Worker and Evaluator, in any case.
        run_policy: how the job runs and ends.
        success_policy: "" lets the chief, else worker 0, decide; AllWorkers waits for all workers.
        enable_dynamic_worker: workers may come and go without the others being restarted; each knows itself
            and the parameter servers only.
    """

    model_config = cel_rules(
        ("self.tfReplicaSpecs.size() > 0", "tfReplicaSpecs: at least one type of replicas is needed"),
        (
            f"{_keys_of(*ReplicaType)}.size() == self.tfReplicaSpecs.size()",
            f"tfReplicaSpecs: types are {', '.join(ReplicaType)}, in any case",
        ),
        (
            f"{_keys_of(*_CHIEFS)}.size() <= 1",
            "tfReplicaSpecs: Chief and Master are two names of one thing; keep one",
        ),
        *(
            (f"{_keys_of(kind)}.size() <= 1", f"tfReplicaSpecs: {kind} stands twice; keep one")
            for kind in (ReplicaType.PS, ReplicaType.WORKER, ReplicaType.EVALUATOR)
        ),
        *(
            (
                f"{_keys_of(*kinds)}.all(key, self.tfReplicaSpecs[key].replicas <= 1)",
                f"tfReplicaSpecs: a job has one {kinds[0]}",
            )
            for kinds in (_CHIEFS, (ReplicaType.EVALUATOR,))
        ),
    )
    tf_replica_specs: dict[ReplicaKey, ReplicaSpec] = Field(max_length=len(ReplicaType))
    run_policy: RunPolicy = Field(default_factory=RunPolicy)
    success_policy: Literal["", "AllWorkers"] = ""
    enable_dynamic_worker: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*validation.replicas(self), *self._doubled(), *validation.gang(self)])
        return self

    def _doubled(self) -> list[Problem]:
        both = [
            field.alias or name
            for name, field in Policies.model_fields.items()
            if getattr(self, name) is not None and getattr(self.run_policy, name) is not None
        ]
        return [Problem(name, f"stands in runPolicy.{name}, too; keep that one") for name in both]

    @property
    def replicas(self) -> dict[ReplicaType, ReplicaSpec]:
        """The replicas by type, in the order in which upstream visits them."""
        by_type = {replica_type(key): spec for key, spec in self.tf_replica_specs.items()}
        return {kind: by_type[kind] for kind in ReplicaType if kind in by_type}

    @property
    def policies(self) -> Policies:
        """The policies in force, whichever way they are spelt."""
        nested = {name: getattr(self.run_policy, name) for name in Policies.model_fields}
        flat = {name: getattr(self, name) for name in Policies.model_fields}
        return Policies.model_construct(
            **{name: flat[name] if nested[name] is None else nested[name] for name in flat}
        )


class ReplicaStatus(ReplicaCounts):
    """Counters of one type.

    Attributes:
        completed: indices that have succeeded; they stay so when their pods are gone.
    """

    completed: list[int] = Field(default_factory=list)


class Restart(Status):
    """The restarts of one replica.

    Attributes:
        count: pods of this replica that were replaced.
        uid: the pod that is being replaced: recorded before it is deleted, so that each counts once; "" once
            it is gone.
        exit_code: of the container of the pod that was replaced last; absent if it was lost without one.
    """

    count: int = 0
    uid: str = ""
    exit_code: int | None = None


class TFJobStatus(JobStatus):
    """What is.

    Attributes:
        last_reconcile_time: when this status was written.
        restarts: by pod's name.
    """

    phase: TFJobPhase | None = None
    replica_statuses: dict[str, ReplicaStatus] = Field(default_factory=dict)
    last_reconcile_time: datetime | None = None
    restarts: dict[str, Restart] = Field(default_factory=dict)


class TFJob(Job):
    """A TensorFlow job: parameter servers, workers, a chief, an evaluator, each told of the others by
    TF_CONFIG.
    """

    model_config = cel_rules(
        (
            f"size(self.metadata.name) <= {validation.MAX_NAME}",
            f"metadata.name: at most {validation.MAX_NAME} characters: the names of the job's pods add to it",
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
    status: TFJobStatus = Field(default_factory=TFJobStatus)

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which it stays after its end. A job of another controller is not ours to delete."""
        if self.spec.run_policy.managed_by == ELSEWHERE:
            return None
        return self.spec.policies.ttl_seconds_after_finished

    @property
    def compat(self) -> frozenset[str]:
        """Behaviours of upstream that this job asks for; see `validation.COMPAT`."""
        return validation.compat(self.metadata.annotations)

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems([*validation.name(self.metadata), *validation.annotations(self.metadata.annotations)])
        return self
