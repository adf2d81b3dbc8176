"""ElasticJob's spec and status. Field names are those of users' manifests (DLRover
``elastic.iml.github.io/v1alpha1``).
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs import validation
from edl_workflows.core.jobs.elastic_job.faults import HangStatus, RestartsStatus
from edl_workflows.core.jobs.elastic_job.policies import FaultTolerance, Rendezvous
from edl_workflows.core.jobs.scale_plan.model import PodMeta, ReplicaResourceSpec
from edl_workflows.core.jobs.status import Job, JobStatus, KindPhase, ReplicaCounts
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import (
    FINAL_PHASES,
    Count,
    Model,
    PodTemplate,
    Quantity,
    Status,
    TimeToLive,
    cel_rules,
    job_name_rules,
    raise_problems,
)

_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
RESERVED_ENVS = frozenset(
    {
        names.ENV_MASTER_ADDR, names.ENV_JOB_NAME, names.ENV_JOB_UID, names.ENV_NAMESPACE, names.ENV_POD_NAME,
        names.ENV_NODE_TYPE, names.ENV_NODE_ID, names.ENV_NODE_RANK, names.ENV_JOB_TOKEN,
    }
)  # fmt: skip
"""Variables that tell a node its identity. Those in a template are replaced; in ``envs`` they are an
error."""


KIND = "ElasticJob"
PLURAL = "elasticjobs"

Role = Literal["ps", "worker", "chief", "evaluator", "dlrover-master"]


class DistributionStrategy(StrEnum):
    """How the training processes share the model."""

    PARAMETER_SERVER = "ParameterServerStrategy"
    ALLREDUCE = "AllreduceStrategy"
    CUSTOM = "CustomStrategy"
    LOCAL = "Local"


class OptimizeMode(StrEnum):
    """Who decides about resources."""

    MANUAL = "manual"
    SINGLE_JOB = "single-job"
    CLUSTER = "cluster"


class ElasticJobPhase(KindPhase):
    """Phases of an ElasticJob. Succeeded and Failed are final."""

    CREATED = "Created"
    PENDING = "Pending"
    RUNNING = "Running"
    SCALING = "Scaling"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ReplicaSpec(Model):
    """One role of the job.

    Attributes:
        replicas: how many nodes to begin with; an edit is a plan, and plans don't change it: what holds is in
            the status.
        template: the pods' template; the pods themselves get ``restartPolicy`` Never, since the master
            replaces nodes by its own policy.
        restart_policy: ``Always`` makes the master replace a node even after a fatal exit code. Default: the
            template's ``restartPolicy``, as DLRover reads it, else Never.
        restart_count: budget of replacements per node (upstream: min(restartCount, 5)), and of restarts of a
            process that prepares a cluster version.
        auto_scale: whether an autoscaler may change this role.
        restart_timeout: seconds a replacement may stay pending before the node counts as lost; 0 is no limit.
        priority: ``high``, ``low`` or the share of nodes that get ``high``, as "0.5".
        critical_nodes: ``all``, ``none``, "" (upstream's default: worker 0 of a PS job) or
            "<rank>:<budget>,…".
        batch_scheduler: gang scheduler that places the pods.
    """

    replicas: Count = 0
    template: PodTemplate = Field(default_factory=dict)
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"] | None = None
    restart_count: int = Field(default=3, ge=0, le=100)
    auto_scale: bool = True
    restart_timeout: int = Field(default=0, ge=0)
    priority: str = Field(default="", pattern=r"^(|high|low|0(\.\d+)?|1(\.0+)?|0?\.\d+)$")
    critical_nodes: str = Field(default="", pattern=r"^(|all|none|\d+:\d+(,\d+:\d+)*)$")
    batch_scheduler: Literal["", "default", "volcano"] = Field(default="", alias="BatchScheduler")

    @property
    def policy(self) -> str:
        """The restart policy in force."""
        return self.restart_policy or str((self.template.get("spec") or {}).get("restartPolicy") or "Never")


class ResourceLimits(Model):
    """Upper bound of what the whole job may use."""

    cpu: Quantity = "100"
    memory: Quantity = "102400Mi"
    gpu: Quantity = "4"


class EnvVar(Model):
    """A core/v1 EnvVar. Its name is the key that it stands under.

    Attributes:
        name: may be repeated here.
        value: what the variable holds.
        value_from: where it comes from instead, as in a container.
    """

    name: str | None = None
    value: str | None = None
    value_from: dict[str, Any] | None = None


_MAX_NODES = "(has({0}.rendezvous) ? {0}.rendezvous.maxNodes : 0)"


def _needs_container(role: str) -> tuple[str, str]:
    spec = f"self.replicaSpecs.{role}"
    containers_exist = " && ".join(
        f"has({spec}.{path})" for path in ("template", "template.spec", "template.spec.containers")
    )
    containers = f"{spec}.template.spec.containers"
    rule = (
        f"!has({spec}) || {containers_exist} && {containers}.size() > 0 && {containers}.all(c, has(c.image))"
    )
    return rule, f"replicaSpecs.{role}.template.spec.containers: at least one is needed, each with an image"


class ElasticJobSpec(Model):
    """What the user asks for.

    Attributes:
        replica_specs: the roles; keys ps, worker, chief, evaluator and dlrover-master (the master's own pod
            template).
        envs: variables added to every training container, by name (a core/v1 EnvVar each).
        suspend: no pods while true; the job's data position and checkpoints stay.
        ttl_seconds_after_finished: how long after its end the job is deleted, with its pods; left out: it
            stays until somebody deletes it.
        active_deadline_seconds: how long the job may run, from its start or its newest resume; then it fails.
        optimize_mode: who decides about counts and sizes where the annotation
            ``elastic.iml.github.io/autoscale`` allows it: the job's master from its own statistics
            (``single-job``), the Brain service that ``brainService`` names, and the master while Brain is
            away (``cluster``), or the cluster's autoscaler about workers (``manual``).
        rendezvous: of a collective job (``AllreduceStrategy``): how many workers train together.
        fault_tolerance: what follows when nodes find no place, or training stands still; the check of nodes.
        brain_service: address of the Brain for optimizeMode cluster.
        enable_dynamic_sharding, enable_elastic_scheduling: accepted for older manifests; both are always on.
    """

    model_config = cel_rules(
        (
            "has(self.replicaSpecs.worker) || has(self.replicaSpecs.chief)",
            "a job needs a 'worker' or a 'chief'",
        ),
        (
            "!has(self.replicaSpecs.ps) || !(self.distributionStrategy in ['AllreduceStrategy', 'Local'])",
            "AllreduceStrategy and Local have no parameter servers",
        ),
        (
            "!has(self.replicaSpecs.chief) || self.distributionStrategy != 'AllreduceStrategy'",
            "AllreduceStrategy has no chief: the oldest worker is it",
        ),
        (
            (
                f"self.distributionStrategy != 'AllreduceStrategy' || {_MAX_NODES.format('self')} == 0 || "
                "self.rendezvous.minNodes <= self.rendezvous.maxNodes"
            ),
            "rendezvous: minNodes can't be above maxNodes",
        ),
        (
            f"{_MAX_NODES.format('self')} == {_MAX_NODES.format('oldSelf')}",
            "rendezvous.maxNodes can't be changed: the global batch is counted in it",
        ),
        (
            "!has(self.replicaSpecs.chief) || self.replicaSpecs.chief.replicas <= 1",
            "a job has one chief",
        ),
        (
            (
                "!has(self.replicaSpecs.dlrover__dash__master) || "
                "self.replicaSpecs.dlrover__dash__master.replicas <= 1"
            ),
            "a job has one dlrover-master",
        ),
        *(_needs_container(role) for role in ("ps", "worker", "chief", "evaluator")),
        (
            f"!has(self.envs) || self.envs.all(name, !(name in {sorted(RESERVED_ENVS)}))",
            "envs: names of variables that the controller sets can't be used",
        ),
        (
            (
                "!has(self.envs) || "
                "self.envs.all(name, !(has(self.envs[name].value) && has(self.envs[name].valueFrom)))"
            ),
            "envs: a variable has either value or valueFrom",
        ),
        (
            "self.distributionStrategy == oldSelf.distributionStrategy",
            "distributionStrategy can't be changed: make a new job",
        ),
    )
    distribution_strategy: DistributionStrategy = DistributionStrategy.PARAMETER_SERVER
    optimize_mode: OptimizeMode = OptimizeMode.SINGLE_JOB
    brain_service: str = Field(default="", max_length=512)
    resource_limits: ResourceLimits = Field(default_factory=ResourceLimits)
    replica_specs: dict[Role, ReplicaSpec]
    rendezvous: Rendezvous = Field(default_factory=Rendezvous)
    fault_tolerance: FaultTolerance = Field(default_factory=FaultTolerance)
    envs: dict[str, EnvVar] = Field(default_factory=dict, max_length=200)
    suspend: bool = False
    ttl_seconds_after_finished: TimeToLive | None = None
    active_deadline_seconds: int | None = Field(default=None, ge=0)
    enable_dynamic_sharding: bool | None = None
    enable_elastic_scheduling: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = (_find_role_problems, _find_rendezvous_problems, _find_template_problems)
        raise_problems(
            [*(problem for check in problems for problem in check(self)), *_find_env_problems(self.envs)]
        )
        return self


class ReplicaStatus(ReplicaCounts):
    """Counters of one role (upstream's names).

    Attributes:
        desired: how many the job wants now: as the spec said when the job was new, then as each succeeded
            manual plan said.
        initial: planned, no pod yet.
        pending: pods that do not run yet.
    """

    initial: int = 0
    pending: int = 0


class CheckpointStatus(Status):
    """The newest complete checkpoint.

    Attributes:
        uri: where it lies, as the training code named it.
        step: global step at which it was taken.
        time: when it was complete.
        save_seconds: how long the slowest of the newest saves took; 0 if that is unknown.
    """

    uri: str
    step: int
    time: datetime
    save_seconds: float = 0.0


class ProgressStatus(Status):
    """How far training is, as its master last wrote it: about once a minute, and with each event.

    Attributes:
        step: global step.
        records: records acknowledged.
        records_total: records of all epochs of all data sets; 0 if unknown or endless.
        speed: steps per second.
        records_per_second: records acknowledged per second.
        cluster_version: the version of the training cluster that trains.
        data_finished: every data set is consumed.
        metrics: the newest values that the program reported (``job.report``), by name.
        time: when this was measured.
    """

    step: int = 0
    records: int = 0
    records_total: int = 0
    speed: float = 0.0
    records_per_second: float = 0.0
    cluster_version: int = 0
    data_finished: bool = False
    metrics: dict[str, float] = Field(default_factory=dict)
    time: datetime | None = None


class GoodputStatus(Status):
    """How the job's time was spent.

    Attributes:
        ratio: useful over elapsed time, from 0 to 1.
        useful_seconds: between steps that last.
        redone_seconds: training that was lost with its steps, since it went back to a checkpoint.
        elapsed_seconds: since the job was created, without the time for which it was suspended.
        seconds: the job's whole time until ``time`` by cause: ``training``, ``queued``, ``import``,
            ``rendezvous``, ``restore``, ``save``, ``redone``, ``hang``, ``masterDown``, ``suspended``,
            ``other``. Without ``suspended`` they sum to ``elapsedSeconds``.
        cause: what the time since ``time`` is spent on; "" after the job's end.
        time: until when the time is counted.
    """

    ratio: float = 0.0
    useful_seconds: float = 0.0
    redone_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    seconds: dict[str, int] = Field(default_factory=dict)
    cause: str = ""
    time: datetime | None = None


class ParameterServersStatus(Status):
    """Which changes of the parameter servers the training program allows. The program reports it.

    Attributes:
        changes: ``Any``: servers can be replaced, and their number can change. ``SameCount``: servers can be
            replaced, but their number can't change. ``Never``: neither. ``Unknown``: the program reported
            nothing, so no plan is refused for it. A plan for a change that is not allowed fails.
        reason: why ``changes`` is not ``Any``.
    """

    changes: Literal["Any", "SameCount", "Never", "Unknown"]
    reason: str = ""


class HistoryPoint(Status):
    """The job at one moment of its life.

    Attributes:
        step: global step.
        records: records acknowledged.
        nodes: running nodes by role.
        metrics: values that the program reported, by name; at most five names in all points.
    """

    time: datetime
    step: int
    records: int = 0
    nodes: dict[str, int] = Field(default_factory=dict)
    metrics: dict[str, float] = Field(default_factory=dict)


class AutoscalingStatus(Status):
    """What the job's master would change now, whether or not it may (modes single-job and cluster).

    Attributes:
        optimizer: who was asked.
        stage: of the job, as ``job_stage_running`` (DLRover's JobOptStage).
        replica_resource_specs: planned counts and sizes by role; empty where no role changes.
        migrate_pods: nodes that would be replaced by ones of another size.
        reasons: why, in words, by role or pod: one for each change.
        notes: why something else does not change.
        time: since when the plan is this.
    """

    optimizer: Literal["local", "brain"] = "local"
    stage: str = ""
    replica_resource_specs: dict[str, ReplicaResourceSpec] = Field(default_factory=dict)
    migrate_pods: list[PodMeta] = Field(default_factory=list)
    reasons: dict[str, str] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    time: datetime | None = None


class ElasticJobStatus(JobStatus):
    """What is. The controller writes phase, reason, message, conditions and counters; the master writes
    ``progress``, ``checkpoint``, ``history``, ``goodput``, ``restarts``, ``parameterServers``,
    ``autoscaling``, ``hang``, ``warnings``, ``result`` and ``failure``: one writer a field.

    Attributes:
        history: the job's life in at most 20 points, evenly spread; up to 120 once it has ended.
        goodput: the share of its time in which it made steps that last.
        restarts: what was restarted, and why.
        parameter_servers: which changes of them the program allows.
        autoscaling: the newest plan of the job's optimizer, and why.
        hang: the newest hang, and where the training processes stood.
        warnings: what people should know although the job goes on: damaged checkpoints, hangs, stragglers.
        result: what the training function returned, as JSON; "" of a script, and before the end.
        failure: why the master gave the job up ({reason, message}, of a failed node also {pod, lastLines});
            the controller copies it when the master ends.
        master_restarts: how many masters were replaced; survives the controller.
        scale_plan: name of the plan that is being carried out.
        spec_replicas: replicas of each role as of the last spec that became a plan; an edit is a difference
            to it.
        progress_period_seconds: least seconds between two writes of mere progress by the master; 0: 60.
    """

    phase: ElasticJobPhase | None = None
    replica_statuses: dict[str, ReplicaStatus] = Field(default_factory=dict)
    checkpoint: CheckpointStatus | None = None
    progress: ProgressStatus | None = None
    history: list[HistoryPoint] = Field(default_factory=list)
    goodput: GoodputStatus | None = None
    restarts: RestartsStatus | None = None
    parameter_servers: ParameterServersStatus | None = None
    autoscaling: AutoscalingStatus | None = None
    hang: HangStatus | None = None
    warnings: list[str] = Field(default_factory=list)
    result: str = ""
    failure: dict[str, str] | None = None
    master_restarts: int = 0
    scale_plan: str = ""
    spec_replicas: dict[str, int] = Field(default_factory=dict)
    progress_period_seconds: int = Field(default=0, ge=0)


class ElasticJob(Job):
    """A training job whose workers and parameter servers may change while it runs."""

    model_config = cel_rules(*job_name_rules(names.MAX_JOB_NAME, added="services"), FINAL_PHASES)
    api_version: Literal["elastic.iml.github.io/v1alpha1"] = "elastic.iml.github.io/v1alpha1"
    kind: Literal["ElasticJob"] = "ElasticJob"
    spec: ElasticJobSpec
    status: ElasticJobStatus = Field(default_factory=ElasticJobStatus)

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which it stays after its end."""
        return self.spec.ttl_seconds_after_finished

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_problems(validation.job_name(self.metadata, names.MAX_JOB_NAME))
        return self


def _find_role_problems(spec: ElasticJobSpec) -> list[Problem]:
    """Problems in the combination of roles."""
    problems = []
    if not ({names.WORKER_TYPE, names.CHIEF_TYPE} & set(spec.replica_specs)):
        problems.append(Problem("replicaSpecs", "a job needs a 'worker' or a 'chief'"))
    if spec.distribution_strategy in ("AllreduceStrategy", "Local") and names.PS_TYPE in spec.replica_specs:
        message = f"{spec.distribution_strategy} has no parameter servers; remove the role or the strategy"
        problems.append(Problem("replicaSpecs.ps", message))
    if spec.distribution_strategy == "AllreduceStrategy" and names.CHIEF_TYPE in spec.replica_specs:
        message = "AllreduceStrategy has no chief: the oldest worker is it; make it one more worker"
        problems.append(Problem("replicaSpecs.chief", message))
    for role in (names.CHIEF_TYPE, names.MASTER_TYPE):
        replicas = spec.replica_specs[role].replicas if role in spec.replica_specs else 0
        if replicas > 1:
            message = f"a job has one {role} (got {replicas})"
            problems.append(Problem(f"replicaSpecs.{role}.replicas", message))
    return problems


def _find_rendezvous_problems(spec: ElasticJobSpec) -> list[Problem]:
    """Problems in the number of workers of a collective job that train together. ``replicas`` is not compared
    with it: it may be edited, and the job's master handles any number."""
    rendezvous = spec.rendezvous
    if (
        spec.distribution_strategy != "AllreduceStrategy"
        or not 0 < rendezvous.max_nodes < rendezvous.min_nodes
    ):
        return []
    message = f"minNodes ({rendezvous.min_nodes}) can't be above maxNodes ({rendezvous.max_nodes})"
    return [Problem("rendezvous.minNodes", message)]


def _find_template_problems(spec: ElasticJobSpec) -> list[Problem]:
    """Problems in the parts of the pod templates that the pods are built from."""
    return [
        Problem(f"replicaSpecs.{role}.template.{problem.path}", problem.message)
        for role, replica_spec in spec.replica_specs.items()
        for problem in validation.template_problems(replica_spec.template, partial=role == names.MASTER_TYPE)
    ]


def _find_env_problems(variables: Mapping[str, EnvVar]) -> list[Problem]:
    """``envs`` maps a variable's name to a core/v1 EnvVar."""
    problems = []
    for key, variable in variables.items():
        path = f"envs.{key}"
        if not _ENV_NAME.match(key):
            problems.append(Problem(path, f"{key!r} is no name of an environment variable"))
        if key in RESERVED_ENVS:
            problems.append(Problem(path, "is set by the controller; choose another name"))
        if variable.name not in (None, key):
            problems.append(Problem(f"{path}.name", f"{variable.name!r} differs from the key {key!r}"))
        if variable.value is not None and variable.value_from is not None:
            problems.append(Problem(path, "has both value and valueFrom; keep one"))
        problems += validation.part_problems(f"{path}.valueFrom", variable.value_from, "EnvVarSource")
    return problems
