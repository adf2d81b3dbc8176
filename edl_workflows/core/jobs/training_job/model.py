"""TrainingJob (``paddlepaddle.org/v1``): upstream's fields in upstream's spelling, defaults and validation.

If upstream's document and its versions spell a field differently, both spellings are fields here with the
same meaning.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs import validation
from edl_workflows.core.jobs.status import Job, JobStatus, KindPhase, ReplicaCounts
from edl_workflows.core.jobs.training_job.types import IMAGE, PORT, Launcher, TrainingRole
from edl_workflows.core.kubernetes.objects import (
    Model,
    PodTemplate,
    Quantity,
    Status,
    TimeToLive,
    cel_rules,
    final_phases_rule,
    job_name_rules,
    raise_problems,
)

MAX_NAME = 63 - len("-trainer-9999")
"""A pod's service is named after the job, its role and its index, and such a name has at most 63
characters."""

_ENTRYPOINT = "launcher sh needs it: what the shell runs in this role's container"
_SCRIPT = "is used with launcher sh only; paddle_k8s knows its own command"
_LAST_PORT = (
    f"(self.port == 0 ? {PORT} : self.port) + (self.ports_num == 0 ? 1 : self.ports_num) + "
    "(self.ports_num_for_sparse == 0 ? 1 : self.ports_num_for_sparse) - 1"
)
_SPELLINGS = (
    ("VolumeMounts", "volumeMounts"),
    ("NodeSelector", "nodeSelector"),
    ("host_network", "hostNetwork"),
)


def _has(*fields: str) -> str:
    return " && ".join(f"has(self.{field}) && self.{field}.size() > 0" for field in fields)


def _entrypoint(role: str) -> str:
    return f"has(self.{role}.entrypoint) && self.{role}.entrypoint != ''"


RULES: tuple[tuple[str, str], ...] = (
    (f"self.launcher != 'sh' || {_entrypoint('trainer')}", f"trainer.entrypoint: {_ENTRYPOINT}"),
    (
        f"self.launcher != 'sh' || !has(self.pserver) || {_entrypoint('pserver')}",
        f"pserver.entrypoint: {_ENTRYPOINT}",
    ),
    (
        (
            "self.launcher != 'sh' || !(has(self.master) || self.fault_tolerant) || "
            f"has(self.master) && {_entrypoint('master')}"
        ),
        f"master.entrypoint: {_ENTRYPOINT}",
    ),
    *(
        (
            f"self.launcher == 'sh' || !has(self.{role}) || !({_entrypoint(role)})",
            f"{role}.entrypoint: {_SCRIPT}",
        )
        for role in ("master", "pserver")
    ),
    (f"{_LAST_PORT} <= 65535", "port: the ports end above 65535; choose a lower one, or fewer"),
    (
        "!(has(self.passes) && has(self.trainer.passes))",
        "passes: stands in trainer.passes, too; keep one",
    ),
    *((f"!({_has(*pair)})", f"{pair[1]}: stands in {pair[0]}, too; keep one") for pair in _SPELLINGS[:2]),
    ("!(self.host_network && self.hostNetwork)", "hostNetwork: stands in host_network, too; keep one"),
    (
        "!has(self.mountPath) || self.mountPath == '' || self.mountPath.startsWith('/')",
        "mountPath: must be an absolute path",
    ),
)
"""The checks of `_find_spec_problems` in CEL, for the API server."""


Instances = Annotated[int, Field(ge=1, le=10_000)]
Ports = Annotated[int, Field(ge=0, le=1000)]
_MIN, _MAX = "min__dash__instance", "max__dash__instance"


def _within(trainer: str) -> str:
    low, high = f"{trainer}.{_MIN}", f"{trainer}.{_MAX}"
    return f"{trainer}.parallelism >= {low} && {trainer}.parallelism <= (has({high}) ? {high} : {low})"


_UNCHANGED = "!has(self.parallelism) || has(oldSelf.parallelism) && self.parallelism == oldSelf.parallelism"
_BEGUN = "!has(self.spec.trainer.parallelism) || has(self.status) && has(self.status.phase)"
_BOUNDS = "parallelism: must be from min-instance to max-instance"


class TrainingJobPhase(KindPhase):
    """Upstream's phases, and suspended. A job that no controller has seen has none; succeeded and failed are
    final.
    """

    CREATING = "creating"
    RUNNING = "running"
    SCALING = "scaling"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class TrainingResources(Model):
    """A core/v1 ResourceRequirements.

    Attributes:
        limits: at most.
        requests: at least; the scheduler places by these.
    """

    limits: dict[str, Quantity] = Field(default_factory=dict)
    requests: dict[str, Quantity] = Field(default_factory=dict)


class MasterSpec(Model):
    """The master, which hands out the data.

    Attributes:
        resources: of its container.
        etcd_endpoint: an etcd of your own; without it launcher paddle_k8s gets one beside the master.
        entrypoint: its command, with launcher sh.
    """

    resources: TrainingResources = Field(default_factory=TrainingResources)
    etcd_endpoint: str = Field(default="", alias="etcd-endpoint", max_length=512)
    entrypoint: str = Field(default="", max_length=8192)


class PserverSpec(Model):
    """The parameter servers.

    Attributes:
        min_instance: how many. An edit restarts them and the trainers.
        max_instance: accepted; parameter servers are not scaled by themselves.
        resources: of their container. An edit restarts them and the trainers.
        entrypoint: their command, with launcher sh.
    """

    model_config = cel_rules(
        (f"!has(self.{_MAX}) || self.{_MIN} <= self.{_MAX}", "max-instance: less than min-instance"),
    )
    min_instance: Instances = Field(default=1, alias="min-instance")
    max_instance: Instances | None = Field(default=None, alias="max-instance")
    resources: TrainingResources = Field(default_factory=TrainingResources)
    entrypoint: str = Field(default="", max_length=8192)


class TrainerSpec(Model):
    """The trainers.

    Attributes:
        entrypoint: the training command.
        workspace: the folder in which it starts.
        passes: how often all data is trained.
        min_instance: the fewest trainers, and how many the job starts with.
        max_instance: the most; default min-instance.
        parallelism: how many are wanted now; an edit or kubectl scale changes it. Default min-instance; what
            lies outside of the bounds after they were edited counts as the nearer bound.
        resources: of their container.
        etcd_endpoint: accepted; the trainers use the master's.
    """

    model_config = cel_rules(
        (f"!has(self.{_MAX}) || self.{_MIN} <= self.{_MAX}", "max-instance: less than min-instance"),
        (f"{_UNCHANGED} || {_within('self')}", _BOUNDS),
    )
    entrypoint: str = Field(default="", max_length=8192)
    workspace: str = Field(default="", max_length=4096)
    passes: int | None = Field(default=None, ge=0)
    min_instance: Instances = Field(default=1, alias="min-instance")
    max_instance: Instances | None = Field(default=None, alias="max-instance")
    parallelism: Instances | None = None
    resources: TrainingResources = Field(default_factory=TrainingResources)
    etcd_endpoint: str = Field(default="", alias="etcd-endpoint", max_length=512)

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and the most trainers."""
        return self.min_instance, self.min_instance if self.max_instance is None else self.max_instance

    @property
    def desired(self) -> int:
        """How many trainers the job wants now."""
        low, high = self.bounds
        return min(max(low if self.parallelism is None else self.parallelism, low), high)


class TrainingJobSettings(Model):
    """What this package adds to upstream's fields.

    Attributes:
        suspend: no pods while true.
        launcher: what starts the programs: paddle_k8s, the script of upstream's images, or sh, the shell with
            each role's entrypoint.
        ready_timeout_seconds: the job fails when its master or its pservers, or at its start its trainers,
            are not there so long after their pods were made; 0 waits for ever.
        failure_window_seconds: failures older than this are forgiven.
        failure_percent: a fault-tolerant job fails when more trainers have failed within the window than this
            share of those that are wanted.
        backoff_limit: the job fails when its master and pservers have failed more often within the window.
        autoclean: whether the pods of a finished job are deleted; those that have ended stay otherwise, for
            their logs.
        ttl_seconds_after_finished: how long after its end the job is deleted, with its pods; left out: it
            stays until somebody deletes it.
        template: a PodTemplateSpec that is put below what the other fields say, for pods of all roles:
            environment, security context, tolerations, annotations, the service account.
    """

    suspend: bool = False
    launcher: Launcher = Launcher.PADDLE_K8S
    ready_timeout_seconds: int = Field(default=1800, ge=0)
    failure_window_seconds: int = Field(default=3600, ge=1)
    failure_percent: int = Field(default=100, ge=0, le=1000)
    backoff_limit: int = Field(default=6, ge=0, le=100)
    autoclean: bool = False
    ttl_seconds_after_finished: TimeToLive | None = None
    template: PodTemplate = Field(default_factory=dict)


class TrainingJobSpec(TrainingJobSettings):
    """What the user asks for.

    Attributes:
        image: of all roles.
        port: the first port of pservers and trainers; 0 is the default, 7164.
        ports_num: ports for dense parameters; 0 is the default, 1.
        ports_num_for_sparse: ports for sparse parameters; 0 is the default, 1.
        fault_tolerant: trainers may fail and are replaced, and come and go. Otherwise the first that fails
            ends the job,
            and other trainers are a new cluster: all are restarted.
        passes: how often all data is trained; trainer.passes means the same.
        mount_path: where the first of the volumes is mounted in all containers; without volumes an empty
            folder a pod.
        volumes: core/v1 Volumes of all pods.
        volume_mounts, volume_mounts_lower: core/v1 VolumeMounts of all containers.
        node_selector, node_selector_lower: labels of nodes on which the pods may run.
        host_network, host_network_lower: the pods use their nodes' network; the ports must be free there.
        image_pull_secrets: names of Secrets, {name} each.
        master: without it only a fault-tolerant job has a master.
        pserver: without it the job has no parameter servers.
        trainer: the trainers.
    """

    model_config = cel_rules(*RULES)
    image: str = Field(default=IMAGE, min_length=1, max_length=1024)
    port: int = Field(default=PORT, ge=0, le=65535)
    ports_num: Ports = Field(default=1, alias="ports_num")
    ports_num_for_sparse: Ports = Field(default=1, alias="ports_num_for_sparse")
    fault_tolerant: bool = Field(default=False, alias="fault_tolerant")
    passes: int | None = Field(default=None, ge=0)
    mount_path: str = Field(default="", max_length=4096)
    volumes: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    volume_mounts: list[dict[str, Any]] = Field(default_factory=list, alias="VolumeMounts", max_length=100)
    volume_mounts_lower: list[dict[str, Any]] = Field(
        default_factory=list, alias="volumeMounts", max_length=100
    )
    node_selector: dict[str, str] = Field(default_factory=dict, alias="NodeSelector")
    node_selector_lower: dict[str, str] = Field(default_factory=dict, alias="nodeSelector")
    host_network: bool = Field(default=False, alias="host_network")
    host_network_lower: bool = Field(default=False, alias="hostNetwork")
    image_pull_secrets: list[dict[str, str]] = Field(default_factory=list, max_length=100)
    master: MasterSpec | None = None
    pserver: PserverSpec | None = None
    trainer: TrainerSpec

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems(_find_spec_problems(self))
        return self

    @property
    def first_port(self) -> int:
        """The first port of pservers and trainers."""
        return self.port or PORT

    @property
    def ports(self) -> range:
        """All ports of a pserver or a trainer."""
        return range(
            self.first_port, self.first_port + (self.ports_num or 1) + (self.ports_num_for_sparse or 1)
        )

    @property
    def all_passes(self) -> int:
        """How often all data is trained, from whichever field gives it."""
        return self.passes or self.trainer.passes or 1

    @property
    def counts(self) -> dict[TrainingRole, int]:
        """How many pods of each role the job wants, in the order in which they are started."""
        counts = {TrainingRole.MASTER: 1} if self.master is not None or self.fault_tolerant else {}
        counts |= {TrainingRole.PSERVER: self.pserver.min_instance} if self.pserver is not None else {}
        return counts | {TrainingRole.TRAINER: self.trainer.desired}


class TrainingReplicaStatus(ReplicaCounts):
    """Counters of one role.

    Attributes:
        state: upstream's word: starting, running, failed, succeeded, or "" when there are none.
        completed: indices that have succeeded; they stay so when their pods are gone.
    """

    state: Literal["", "starting", "running", "failed", "succeeded"] = ""
    completed: list[int] = Field(default_factory=list)


class Failure(Status):
    """A pod that has failed and is replaced.

    Attributes:
        role, index: of the pod.
        uid: of the pod: recorded before it is deleted, so that each counts once.
        exit_code: of its container; absent if it was lost without one.
        disrupted: it ended for a cause outside of it, as eviction, and counts in no budget.
        time: when it was seen.
    """

    role: TrainingRole
    index: int
    uid: str
    exit_code: int | None = None
    disrupted: bool = False
    time: datetime


class ScaleRecord(Status):
    """A change of the number of trainers (upstream's fields).

    Attributes:
        scale_timestamp: when it began.
        additional: how many more; negative for fewer.
        status: Unknown until all wanted trainers run, then True; False if something else came in between.
        reason: what was changed, and what came in between.
    """

    scale_timestamp: datetime
    additional: int
    status: Literal["True", "False", "Unknown"] = "Unknown"
    reason: str = ""


class TrainingJobStatus(JobStatus):
    """What is.

    Attributes:
        parallelism: how many trainers were wanted when this was written.
        scale_records: the last changes of that number, newest last.
        failures: pods that failed and were replaced, within the window.
    """

    phase: TrainingJobPhase | None = None
    replica_statuses: dict[str, TrainingReplicaStatus] = Field(default_factory=dict)
    parallelism: int = 0
    scale_records: list[ScaleRecord] = Field(default_factory=list, alias="scale_records")
    failures: list[Failure] = Field(default_factory=list)


class TrainingJob(Job):
    """A PaddlePaddle job: a master that hands out the data, parameter servers, trainers that come and go."""

    model_config = cel_rules(
        *job_name_rules(MAX_NAME),
        (f"{_BEGUN} || {_within('self.spec.trainer')}", f"spec.trainer.{_BOUNDS}"),
        final_phases_rule(TrainingJobPhase.SUCCEEDED, TrainingJobPhase.FAILED),
    )
    api_version: Literal["paddlepaddle.org/v1"] = "paddlepaddle.org/v1"
    kind: Literal["TrainingJob"] = "TrainingJob"
    spec: TrainingJobSpec
    status: TrainingJobStatus = Field(default_factory=TrainingJobStatus)

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which it stays after its end."""
        return self.spec.ttl_seconds_after_finished

    @model_validator(mode="after")
    def _check(self) -> Self:
        # Once the job runs, its bounds may be edited so that they exclude the present number of trainers,
        # which then follows them.
        problems = _find_parallelism_problems(self.spec.trainer) if self.status.phase is None else []
        raise_problems([*validation.job_name(self.metadata, MAX_NAME), *problems])
        return self


def _find_parallelism_problems(trainer: TrainerSpec) -> list[Problem]:
    """Check that the number of trainers of a new job is within its bounds."""
    low, high = trainer.bounds
    if trainer.parallelism is None or low <= trainer.parallelism <= high:
        return []
    message = f"is {trainer.parallelism}; must be from {low} (min-instance) to {high} (max-instance)"
    return [Problem("spec.trainer.parallelism", message)]


def _find_spec_problems(job: TrainingJobSpec) -> list[Problem]:
    """Problems between fields."""
    return [
        *_bounds("trainer", job.trainer),
        *(_bounds("pserver", job.pserver) if job.pserver is not None else ()),
        *_entrypoints(job),
        *_ports(job),
        *_doubled(job),
        *_volumes(job),
        *_secrets(job),
        *(
            (
                Problem(f"template.{p.path}", p.message)
                for p in validation.template_problems(job.template, partial=True)
            )
            if job.template
            else ()
        ),
    ]


def _bounds(role: str, spec: TrainerSpec | PserverSpec) -> Iterator[Problem]:
    if spec.max_instance is not None and spec.max_instance < spec.min_instance:
        message = f"is {spec.max_instance}, less than min-instance ({spec.min_instance})"
        yield Problem(f"{role}.max-instance", message)


def _entrypoints(job: TrainingJobSpec) -> Iterator[Problem]:
    given = {
        "master": job.master.entrypoint if job.master else "",
        "pserver": job.pserver.entrypoint if job.pserver else "",
        "trainer": job.trainer.entrypoint,
    }
    for role in job.counts:
        if job.launcher is Launcher.SH and not given[role]:
            yield Problem(f"{role}.entrypoint", _ENTRYPOINT)
        if job.launcher is Launcher.PADDLE_K8S and role.serves and given[role]:
            yield Problem(f"{role}.entrypoint", _SCRIPT)


def _ports(job: TrainingJobSpec) -> Iterator[Problem]:
    if job.ports[-1] > 65535:
        yield Problem(
            "port", f"the ports end with {job.ports[-1]}, above 65535; choose a lower one, or fewer"
        )


def _doubled(job: TrainingJobSpec) -> Iterator[Problem]:
    if job.passes is not None and job.trainer.passes is not None:
        yield Problem("passes", "stands in trainer.passes, too; keep one")
    given = (
        (job.volume_mounts, job.volume_mounts_lower),
        (job.node_selector, job.node_selector_lower),
        (job.host_network, job.host_network_lower),
    )
    for (first, second), both in zip(_SPELLINGS, given, strict=True):
        if all(both):
            yield Problem(second, f"stands in {first}, too; keep one")


def _volumes(job: TrainingJobSpec) -> Iterator[Problem]:
    if job.mount_path and not job.mount_path.startswith("/"):
        yield Problem("mountPath", f"{job.mount_path!r} must be an absolute path")
    yield from _named("volumes", job.volumes)
    yield from validation.part_problems("volumes", job.volumes, "Volume[]")
    volume_names = {volume.get("name") for volume in job.volumes}
    for key, mounts in (("VolumeMounts", job.volume_mounts), ("volumeMounts", job.volume_mounts_lower)):
        yield from validation.part_problems(key, mounts, "VolumeMount[]")
        for index, mount in enumerate(mounts):
            if not isinstance(mount.get("mountPath"), str) or not mount["mountPath"]:
                yield Problem(f"{key}.{index}.mountPath", "required field is missing")
            if mount.get("name") not in volume_names:
                yield Problem(f"{key}.{index}.name", f"{mount.get('name')!r} is none of the job's volumes")


def _secrets(job: TrainingJobSpec) -> Iterator[Problem]:
    yield from _named("imagePullSecrets", job.image_pull_secrets)


def _named(path: str, items: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = item.get("name")
        if not isinstance(name, str) or not name:
            yield Problem(f"{path}.{index}.name", "required field is missing")
        elif name in seen:
            yield Problem(f"{path}.{index}.name", f"{name!r} stands here twice")
        else:
            seen.add(name)
