"""Base of the specs and statuses of Kubeflow's training kinds (``kubeflow.org/v1``), spelled as upstream
does.
"""

import difflib
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs import validation
from edl_workflows.core.jobs.status import Job, JobStatus, KindPhase, ReplicaCounts
from edl_workflows.core.kubernetes.objects import (
    FINAL_PHASES,
    Model,
    Quantity,
    Status,
    TimeToLive,
    WholePodTemplate,
    cel_rules,
    job_name_rules,
    raise_problems,
)


class KubeflowPhase(KindPhase):
    """The newest condition as one word. Succeeded and Failed are final."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class RestartPolicy(StrEnum):
    """What happens to a replica that fails."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class ReplicaType(StrEnum):
    """Base of a kind's types of replicas, in the order in which their pods are made."""

    @property
    def slug(self) -> str:
        """The type's spelling in names, labels and environment variables."""
        return self.lower()

    @property
    def spellings(self) -> tuple[str, ...]:
        """The keys, in lower case, that users may write for this type."""
        return (self.slug,)

    @property
    def decides(self) -> bool:
        """Whether the end of this replica is the job's end."""
        return False

    @property
    def single(self) -> bool:
        """Whether a job has at most one such replica."""
        return self.decides

    @property
    def is_worker(self) -> bool:
        """Whether its replicas are the workers, whose end is the job's end if no other type decides."""
        return self.slug == "worker"


class KubeflowReplicaSpec(Model):
    """One type of replicas.

    Attributes:
        replicas: how many.
        template: the pods'. The replica is the container with the name that the kind prescribes
            (``tensorflow`` for a TFJob), otherwise the first container.
        restart_policy: Always and OnFailure leave restarts to the node and replace pods that are lost;
            ExitCode replaces a pod that is lost (evicted, its node shut down) or whose exit code can be
            transient (128 to 255) and fails the job for others; Never fails it. Default: the template's
            ``restartPolicy``, otherwise that of the kind (Never for a TFJob).
    """

    default_policy: ClassVar[RestartPolicy] = RestartPolicy.NEVER

    replicas: int = Field(default=1, ge=1, le=10_000)
    template: WholePodTemplate = Field(default_factory=dict)
    restart_policy: RestartPolicy | None = None

    @property
    def policy(self) -> RestartPolicy:
        """The restart policy in force."""
        return self.restart_policy or RestartPolicy(
            (self.template.get("spec") or {}).get("restartPolicy", self.default_policy)
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
"""Value of ``managedBy`` for jobs that the controller of another cluster reconciles."""


class RunPolicy(Policies):
    """`Policies` as v1 nests them.

    Attributes:
        suspend: no pods while true.
        managed_by: who reconciles the job; absent: the cluster's own controller.
    """

    suspend: bool = False
    managed_by: Literal["kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"] | None = None


class KubeflowSpec(Policies):
    """Base of the kinds' specs. The flat policies are how versions before v1 spell those of ``runPolicy``.

    A kind declares two fields: ``run_policy``, and the one that `specs_field` names.
    """

    specs_field: ClassVar[str]
    """Name of the field with the replicas by type, as ``tf_replica_specs``."""
    replica_types: ClassVar[type[ReplicaType]]

    if TYPE_CHECKING:  # the order of a kind's fields is that of its CustomResourceDefinition
        run_policy: RunPolicy

    @classmethod
    def specs_key(cls) -> str:
        """`specs_field` in a manifest's spelling."""
        return cls.model_fields[cls.specs_field].alias or cls.specs_field

    @classmethod
    def replica_type(cls, key: str) -> ReplicaType:
        """The type for a key of the replicas, in upper or lower case.

        Raises:
            ValueError: there is no such type.
        """
        return find_replica_type(cls.replica_types, key)

    @property
    def replica_specs(self) -> dict[str, KubeflowReplicaSpec]:
        """The replicas, by the keys that the user wrote."""
        specs: dict[str, KubeflowReplicaSpec] = getattr(self, self.specs_field)
        return specs

    @cached_property
    def replicas(self) -> dict[ReplicaType, KubeflowReplicaSpec]:
        """The replicas by type, in the order in which upstream visits them."""
        by_type = {self.replica_type(key): spec for key, spec in self.replica_specs.items()}
        return {kind: by_type[kind] for kind in self.replica_types if kind in by_type}

    @property
    def total_replicas(self) -> int:
        """How many replicas the job has, of all types."""
        return sum(spec.replicas for spec in self.replica_specs.values())

    @cached_property
    def policies(self) -> Policies:
        """The policies in force, in whichever way they are spelled."""
        nested = {name: getattr(self.run_policy, name) for name in Policies.model_fields}
        flat = {name: getattr(self, name) for name in Policies.model_fields}
        return Policies.model_construct(
            **{name: flat[name] if nested[name] is None else nested[name] for name in flat}
        )

    @property
    def waits_for_all_workers(self) -> bool:
        """Whether the job succeeds only when all workers have succeeded, instead of with worker 0."""
        return False

    @property
    def workers_may_be_lost(self) -> bool:
        """Whether the job survives failed workers as long as one worker can continue."""
        return False

    def find_problems(self) -> Iterator[Problem]:
        """Problems of types, policies and pod templates that the validation of single fields does not
        find."""
        key = self.specs_key()
        yield from self._type_problems(key)
        for name, replica in self.replica_specs.items():
            for problem in validation.template_problems(replica.template):
                yield Problem(f"{key}.{name}.template.{problem.path}", problem.message)
            yield from _restart_policy_problems(f"{key}.{name}", replica.template)
        for name, field in Policies.model_fields.items():
            if getattr(self, name) is not None and getattr(self.run_policy, name) is not None:
                alias = field.alias or name
                yield Problem(alias, f"stands in runPolicy.{alias}, too; keep that one")
        gang = self.policies.scheduling_policy
        if gang is not None and (gang.min_available or 0) > self.total_replicas:
            message = f"is {gang.min_available}, but the job has only {self.total_replicas} replicas"
            yield Problem("runPolicy.schedulingPolicy.minAvailable", message)

    def _type_problems(self, path: str) -> Iterator[Problem]:
        """Problems in the combination of types."""
        if not self.replica_specs:
            yield Problem(path, "at least one type of replicas is needed, such as Worker")
        seen: dict[str, str] = {}
        deciding = next((kind.value for kind in self.replica_types if kind.decides), "")
        for key, replica in self.replica_specs.items():
            kind = self.replica_type(key)
            same = deciding if kind.decides else kind.value
            if same in seen:
                yield Problem(f"{path}.{key}", f"is {seen[same]} once more; keep one of the two")
            seen[same] = key
            if kind.single and replica.replicas > 1:
                message = f"a job has one {kind.value} (got {replica.replicas})"
                yield Problem(f"{path}.{key}.replicas", message)


def find_replica_type(types: type[ReplicaType], key: str) -> ReplicaType:
    """The type for a key, in upper or lower case.

    Raises:
        ValueError: there is no such type.
    """
    for kind in types:
        if key.lower() in kind.spellings:
            return kind
    near = difflib.get_close_matches(key.lower(), [kind.slug for kind in types], n=1)
    meant = f"; did you mean {find_replica_type(types, near[0])}?" if near else ""
    raise ValueError(f"unknown type of replicas; types are {', '.join(types)}{meant}")


def max_types(types: type[ReplicaType]) -> int:
    """How many types of replicas a definition admits: one more than there are, so that a rule refuses an
    unknown type beside all others, with a message that says which types there are.
    """
    return len(types) + 1


def keys_of(field: str, *types: ReplicaType) -> str:
    """CEL: the keys of a map of replicas that stand for one of these types, in upper or lower case."""
    spellings = "|".join(name for kind in types for name in kind.spellings)
    return f"self.{field}.filter(key, key.matches('(?i)^({spellings})$'))"


def replica_rules(field: str, types: type[ReplicaType]) -> tuple[tuple[str, str], ...]:
    """CEL rules of every kind: there is at least one type, every key is a known type, no type occurs twice,
    and some types have at most one replica.
    """
    chiefs = [kind for kind in types if kind.decides]
    other_types = [kind for kind in types if not kind.decides]
    synonyms = f"{' and '.join(chiefs)} are two names of one thing" if len(chiefs) > 1 else ""
    once = [(chiefs, synonyms or f"{chiefs[0]} stands twice")] if chiefs else []
    once += [([kind], f"{kind} stands twice") for kind in other_types]
    single = [group for group in (chiefs, *([kind] for kind in other_types)) if group and group[0].single]
    return (
        (f"self.{field}.size() > 0", f"{field}: at least one type of replicas is needed"),
        (
            f"{keys_of(field, *types)}.size() == self.{field}.size()",
            f"{field}: types are {', '.join(types)}, in any case",
        ),
        *(
            (f"{keys_of(field, *kinds)}.size() <= 1", f"{field}: {message}; keep one")
            for kinds, message in once
        ),
        *(
            (
                f"{keys_of(field, *kinds)}.all(key, self.{field}[key].replicas <= 1)",
                f"{field}: a job has one {kinds[0]}",
            )
            for kinds in single
        ),
    )


def _text_at(root: str, *path: str) -> str:
    """CEL: the text at a path, "" if it is absent."""
    fields = [".".join((root, *path[: depth + 1])) for depth in range(len(path))]
    return f"({' && '.join(f'has({field})' for field in fields)} ? {fields[-1]} : '')"


def _unchanged(*path: str) -> tuple[str, str]:
    return f"{_text_at('self', *path)} == {_text_at('oldSelf', *path)}", f"{'.'.join(path)}: is immutable"


IMMUTABLE = (
    _unchanged("runPolicy", "managedBy"),
    _unchanged("runPolicy", "schedulingPolicy", "queue"),
    _unchanged("schedulingPolicy", "queue"),
)
"""CEL rules of every kind, as in upstream's webhook: another manager would not know the pods that exist,
and they were queued where they are."""


def _restart_policy_problems(path: str, template: Mapping[str, object]) -> Iterator[Problem]:
    spec = template.get("spec")
    policy = spec.get("restartPolicy", "Never") if isinstance(spec, Mapping) else "Never"
    if policy not in ("Always", "OnFailure", "Never"):
        message = f"must be Always, OnFailure or Never (got {policy!r}); ExitCode stands beside the template"
        yield Problem(f"{path}.template.spec.restartPolicy", message)


class KubeflowReplicaStatus(ReplicaCounts):
    """Counters of one type.

    Attributes:
        completed: indices that have succeeded; they stay so when their pods are gone.
    """

    completed: list[int] = Field(default_factory=list)


class ReplicaRestarts(Status):
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


class KubeflowJobStatus(JobStatus):
    """What is.

    Attributes:
        last_reconcile_time: when this status was written.
        restarts: by pod's name.
    """

    phase: KubeflowPhase | None = None
    replica_statuses: dict[str, KubeflowReplicaStatus] = Field(default_factory=dict)
    last_reconcile_time: datetime | None = None
    restarts: dict[str, ReplicaRestarts] = Field(default_factory=dict)


KEEP_PODS = (
    "keep-pods",
    "without a cleanPodPolicy the pods of a finished job stay (training-operator from 1.6 on)",
)
EXIT_CODES_2021 = (
    "exit-codes-2021",
    "of exit codes above 127 only 130, 137, 138 and 143 restart a replica (tf-operator up to 2021)",
)
STATIC_CLUSTER = (
    "static-cluster",
    "a change of replicas restarts nobody; pods keep the cluster they began with (all upstream)",
)


def job_rules(max_name: int) -> ConfigDict:
    """The CEL rules of a kind: how its jobs are named, and that final phases are final."""
    return cel_rules(
        *job_name_rules(max_name),
        FINAL_PHASES,
    )


class KubeflowJob(Job):
    """Base of Kubeflow's training kinds.

    Attributes:
        max_name: characters that the names of pods and services leave for a job's name.
        compat_annotation: its value lists names of `compat_choices`, separated by commas.
        compat_choices: behaviours of upstream that users may depend on, with what each does; the default is
            what upstream's documentation promises.
    """

    max_name: ClassVar[int]
    compat_annotation: ClassVar[str]
    compat_choices: ClassVar[Mapping[str, str]]

    if TYPE_CHECKING:
        spec: KubeflowSpec
    status: KubeflowJobStatus = Field(default_factory=KubeflowJobStatus)

    @property
    def managed_elsewhere(self) -> bool:
        """Whether another cluster's controller reconciles the job."""
        return self.spec.run_policy.managed_by == ELSEWHERE

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which the job stays after its end; None if it is never deleted here. That is so for
        every job that another cluster's controller reconciles."""
        return None if self.managed_elsewhere else self.spec.policies.ttl_seconds_after_finished

    @property
    def compat(self) -> frozenset[str]:
        """Behaviours of upstream that this job asks for: names of `compat_choices`."""
        given = self.metadata.annotations.get(self.compat_annotation, "")
        return frozenset(part.strip() for part in given.split(",") if part.strip())

    @model_validator(mode="after")
    def _check_name_and_compat(self) -> Self:
        path = f"metadata.annotations.{self.compat_annotation}"
        unknown = [
            Problem(path, f"{choice!r} is unknown; known are {', '.join(sorted(self.compat_choices))}")
            for choice in sorted(self.compat - set(self.compat_choices))
        ]
        raise_problems([*validation.job_name(self.metadata, self.max_name), *unknown])
        return self


def replica_name(job: KubeflowJob, kind: ReplicaType, index: int) -> str:
    """Name of a replica's pod and service, the same as upstream's: ``<job>-<type>-<index>``."""
    return f"{job.metadata.name}-{kind.slug}-{index}"


def replica_host(job: KubeflowJob, kind: ReplicaType, index: int, domain: str = "") -> str:
    """The host name of a replica, as ``name.namespace.svc`` or ``name.namespace.svc.domain``."""
    parts = (replica_name(job, kind, index), job.metadata.namespace or "default", "svc", domain)
    return ".".join(filter(None, parts))


def list_replicas(job: KubeflowJob) -> Iterator[tuple[ReplicaType, int]]:
    """All replicas that the job wants."""
    for kind, spec in job.spec.replicas.items():
        for index in range(spec.replicas):
            yield kind, index


def container_of(template: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The container that runs the replica's program: the one with this name, else the first."""
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == name), containers[0])
