"""The input and output of a kind's `reconcile`: plain values between the state machines and the generic loop.

The loop (`edl_workflows.services.controller`) observes, calls `Kind.decide`, and applies the `Actions`; it
does not know the kinds. Manifests are plain dicts as the API has them. No clock, randomness or I/O here:
`Observed` brings the time and a fresh token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.lost_pods import UNREACHABLE_SECONDS
from edl_workflows.core.kubernetes.namespaces import check_labels, check_namespace
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.write_budget import MIN_WRITES_PER_SECOND, WRITES_PER_SECOND

Manifest = Mapping[str, Any]
"""One object as the API server has it."""


@dataclass(frozen=True)
class InstallationSettings:
    """The settings of an installation, the same for every job.

    Attributes:
        master_image: image of the job master if a job's ``dlrover-master`` template names no image. It must
            hold this package with its ``controller`` extra.
        master_command: starts the master in that image.
        master_cpu, master_memory: what the master's container requests, enough for some 60 agents (``make
            bench-master``); upstream gives it 1 core and 2Gi.
        master_memory_limit: memory limit of the master's container.
        master_cpu_limit: CPU limit of the master's container, for namespaces whose ResourceQuota counts
            ``limits.cpu``. None by default, since a throttled master delays all its nodes.
        master_template: a PodTemplateSpec that overrides the settings above and is overridden by each job's
            ``dlrover-master`` template: pull secrets, a security context, placement.
        training_template: a partial PodTemplateSpec that is put below the training pods of all kinds.
        ttl_seconds_after_finished: how long after its end a job is deleted that does not say so itself; None:
            it stays.
        tf_cluster_domain: the domain that follows ``svc`` in the addresses of a TFJob's TF_CONFIG
            (``CUSTOM_CLUSTER_DOMAIN``).
        di_server_url: where the programs of DIJobs find the DI server (upstream's ``--di-server-url``).
        di_service_domain: the domain that follows the namespace in the host names of DIJobs' pods
            (``--service-domain-name``).
        di_job_resources: what a replica of a preemptible DIJob requests of resources that its template does
            not name (``DI_JOB_DEFAULT_RESOURCES``).
        di_priority_classes: a DIJob's ``priority`` → the PriorityClass of its pods; none without an entry.
        network_policies: whether each job gets a NetworkPolicy that keeps others' pods from its own. The
            controller then uses the kinds that `Kind.isolated` returns.
        prometheus_namespace: namespace whose pods the NetworkPolicies of ElasticJobs admit to the port of
            masters, in all of a job's pods; "" for none.
        prometheus_labels: labels that those pods must have.
        force_delete_lost_pods: whether pods that count as gone (`core.kubernetes.lost_pods`) are deleted by
            force, so that pods of the same names can take their places. Their programs may still run on a
            machine that has only lost its contact.
        unreachable_seconds: how long the node of a master may be unreachable until the master is replaced.
        progress_writes_per_second: how often the masters of all ElasticJobs together write mere progress, at
            most.

    Raises:
        InvalidError: the CPU limit is no quantity, or is less than the request; a requested resource of a
            DIJob is no quantity; the budget of progress writes is too small; a time is negative; Prometheus'
            namespace or labels are no such.
    """

    master_image: str = "edl-workflows:latest"
    master_command: tuple[str, ...] = ("edl", "master", "run")
    master_cpu: str = "100m"
    master_memory: str = "256Mi"
    master_memory_limit: str = "2Gi"
    master_cpu_limit: str = ""
    master_template: Mapping[str, Any] = field(default_factory=dict)
    training_template: Mapping[str, Any] = field(default_factory=dict)
    ttl_seconds_after_finished: int | None = None
    tf_cluster_domain: str = ""
    di_server_url: str = "http://di-server.di-system.svc.cluster.local:8081"
    di_service_domain: str = "svc.cluster.local"
    di_job_resources: Mapping[str, str] = field(default_factory=lambda: {"cpu": "1", "memory": "2Gi"})
    di_priority_classes: Mapping[str, str] = field(default_factory=dict)
    network_policies: bool = False
    prometheus_namespace: str = ""
    prometheus_labels: Mapping[str, str] = field(default_factory=dict)
    force_delete_lost_pods: bool = False
    unreachable_seconds: float = UNREACHABLE_SECONDS
    progress_writes_per_second: float = WRITES_PER_SECOND

    def __post_init__(self) -> None:
        self._check_cpu_limit()
        self._check_prometheus()
        for name, amount in self.di_job_resources.items():
            try:
                parse_quantity(amount)
            except ValueError as error:
                raise InvalidError(f"requests of DIJobs: {name}: {error}") from error
        writes = self.progress_writes_per_second
        if not MIN_WRITES_PER_SECOND <= writes < math.inf:
            raise InvalidError(
                f"{writes:g} progress writes per second: choose a number of at least {MIN_WRITES_PER_SECOND}"
            )
        times = (
            ("seconds after which a finished job is deleted", self.ttl_seconds_after_finished),
            ("seconds until a master on an unreachable node is replaced", self.unreachable_seconds),
        )
        for meaning, seconds in times:
            if seconds is not None and not 0 <= seconds < math.inf:
                raise InvalidError(f"{seconds:g} {meaning}: choose a number of at least 0")

    def _check_prometheus(self) -> None:
        if self.prometheus_namespace:
            check_namespace("Prometheus' namespace", self.prometheus_namespace)
        elif self.prometheus_labels:
            raise InvalidError("labels of Prometheus, but no namespace: name the namespace of its pods, too")
        check_labels("labels of Prometheus", self.prometheus_labels)

    def _check_cpu_limit(self) -> None:
        if not self.master_cpu_limit:
            return
        try:
            enough = parse_quantity(self.master_cpu_limit) >= parse_quantity(self.master_cpu)
        except ValueError as error:
            raise InvalidError(f"CPU limit of masters: {error}") from error
        if not enough:
            raise InvalidError(
                f"CPU limit of masters: {self.master_cpu_limit} is less than a master's request, "
                f"{self.master_cpu}"
            )


@dataclass(frozen=True)
class Refusal:
    """A ``create`` of the previous round that the API server refused for a reason other than AlreadyExists.

    Attributes:
        invalid: the ``create`` can never succeed unchanged (400, 422). After other refusals (403: a quota;
            404: a kind that is not installed; any code: an admission policy) it may succeed later.
        message: the server's.
    """

    kind: str
    name: str
    invalid: bool
    message: str


@dataclass(frozen=True)
class HeldPod:
    """A pod that must not be made yet, since its place had too many in a row (`core.jobs.replacements`).

    Attributes:
        seconds: until it may be made.
        message: why it waits.
    """

    name: str
    seconds: float
    message: str


@dataclass(frozen=True)
class Observed:
    """Everything that a decision may depend on besides the object itself.

    Attributes:
        now: the time, with a zone.
        objects: by ``kind`` ("Pod", "ScalePlan", …), the objects that the kind observes and that belong to
            the same job in the same namespace; and each object that made a ``create`` of the previous round
            fail with AlreadyExists, whoever owns it.
        refused: what the API server refused in the previous round.
        new_token: a fresh secret of at least 32 random characters, used if the job's Secret has to be made.
        settings: see `InstallationSettings`.
        held: pods that must not be made yet.
        progress_period: seconds between two writes of mere progress by a master; 0 if that is not known yet.
    """

    now: datetime
    objects: Mapping[str, Sequence[Manifest]] = field(default_factory=dict)
    refused: Sequence[Refusal] = ()
    new_token: str = ""
    settings: InstallationSettings = InstallationSettings()
    held: Sequence[HeldPod] = ()
    progress_period: int = 0

    def of(self, kind: str) -> Sequence[Manifest]:
        """The observed objects of this ``kind``."""
        return self.objects.get(kind, ())

    def find(self, kind: str, name: str) -> Manifest | None:
        """The observed object of this kind and name."""
        return next((o for o in self.of(kind) if o["metadata"]["name"] == name), None)


@dataclass(frozen=True)
class Deletion:
    """Delete this very object: the loop sends `uid` as a precondition. NotFound is success.

    Attributes:
        resource_version: delete the object only in this version, on which the decision was based; "": in any
            version.
        grace_seconds: None leaves it to the object's own ``terminationGracePeriodSeconds``.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    grace_seconds: int | None = None
    resource_version: str = ""


@dataclass(frozen=True)
class Patch:
    """A JSON merge patch of an object's main resource. It carries the observed ``metadata.resourceVersion``,
    so that a decision from an old state is refused (409) and made again."""

    api_version: str
    kind: str
    name: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Event:
    """An Event about the reconciled object."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Actions:
    """What to do now, in this order: create, delete, patch, status, events.

    The loop applies them to the namespace of the reconciled object. A ``create`` refused with AlreadyExists:
    the loop reads that object, adds it to `Observed.objects` and decides again at once, without trying the
    creates behind it.
    A ``create`` refused with 422, 403 or 404: the loop adds a `Refusal` and decides again at once, too. If
    the same create is then refused again, the loop goes on with the rest of the second decision. Any other
    failure: the loop stops and retries the whole reconcile later, with back-off. So the status is written
    only after the actions that precede it.

    Attributes:
        create: whole manifests, in order.
        status: JSON merge patch of the ``status`` subresource (the value of ``status``): only what differs
            from the observed object, only fields that the controller owns; None if nothing differs.
        status_may_wait: how many seconds the loop may delay the status, so that one write covers later
            changes, too.
        status_version: write the status only to the object in this version, on which the decision was based;
            "": in any version.
        events: only if something changes: a decision that repeats the previous one has none.
        requeue_after: seconds after which to decide again even if no change is observed.
    """

    create: tuple[Manifest, ...] = ()
    delete: tuple[Deletion, ...] = ()
    patch: tuple[Patch, ...] = ()
    status: Mapping[str, Any] | None = None
    status_may_wait: float = 0.0
    status_version: str = ""
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None


@dataclass(frozen=True)
class RoleChange:
    """The change of one role of a job.

    Attributes:
        replicas: the new number; None keeps the present one.
        resources: requests and limits of its containers, by resource; other resources stay unchanged.
    """

    replicas: int | None = None
    resources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SpecEdit:
    """The edit that scales a job, for kinds that are scaled by their spec.

    Attributes:
        spec: merge patch of ``spec``.
        nodes: number of nodes of all roles after the edit.
    """

    spec: Mapping[str, Any]
    nodes: int


def merge_patch(current: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any] | None:
    """JSON merge patch (RFC 7386) that gives `current` the fields of `desired`; None if it has them already.

    Top-level fields that `desired` does not name belong to other writers and stay. Inside a named field that
    is a map, members absent from `desired` are removed.
    """
    patch = {
        key: _change(current.get(key), value) for key, value in desired.items() if current.get(key) != value
    }
    return patch or None


def _change(current: object, desired: object) -> object:
    if not (isinstance(current, Mapping) and isinstance(desired, Mapping)):
        return desired
    gone = {key: None for key in current if key not in desired}
    changed = {
        key: _change(current.get(key), value) for key, value in desired.items() if current.get(key) != value
    }
    return gone | changed


def apply_merge_patch(current: object, patch: object) -> Any:
    """Apply a JSON merge patch (RFC 7386) to a value: null removes a field, maps are merged, everything else
    is replaced.
    """
    if not isinstance(patch, Mapping):
        return patch
    kept = current if isinstance(current, Mapping) else {}
    changed = {key: apply_merge_patch(kept.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in {**kept, **changed}.items() if patch.get(key, value) is not None}
