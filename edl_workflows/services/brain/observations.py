"""The values that the cluster monitor stores, and their creation from manifests. This module is pure.

Times are in Unix seconds, amounts in cores, bytes and items. Jobs and ScalePlans are converted to rows when
they enter the cache, which therefore does not contain thousands of pod templates. Texts and lists are
truncated, so that the author of a manifest cannot fill the store.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import cache_fields, manifests
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus, ElasticJob
from edl_workflows.core.jobs.kind import INVALID_SPEC, Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ScalePlan, ScalePlanSpec
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.core.kubernetes import demand, pod_state
from edl_workflows.core.kubernetes.objects import Resource
from edl_workflows.core.protocol.metrics import MAX_METRICS, MAX_NAME


@dataclass(frozen=True)
class ClusterObservation:
    """The cluster at one moment.

    Attributes:
        nodes: number of nodes.
        nodes_ready: number of nodes that accept pods.
        allocatable: total allocatable resources of the ready nodes.
        requested: total requests of pods that are bound to a node and have not ended.
        used: total usage of the nodes according to the metrics server; empty without one.
        pods_running, pods_pending: pods by phase, without those that are being deleted.
    """

    time: float
    nodes: int = 0
    nodes_ready: int = 0
    allocatable: demand.Amounts = field(default_factory=dict)
    requested: demand.Amounts = field(default_factory=dict)
    used: demand.Amounts = field(default_factory=dict)
    pods_running: int = 0
    pods_pending: int = 0


@dataclass(frozen=True)
class RoleObservation:
    """Replicas of one role."""

    desired: int = 0
    ready: int = 0


@dataclass(frozen=True)
class JobObservation:
    """A job of any kind, as its object describes it now.

    Attributes:
        uid: uid of the object. A job that is created again under the same name has another one.
        phase: a `JobPhase`.
        requests: total requests of its pods.
        stage: stage of the optimizer's advice, from ``status.autoscaling``.
        reasons: why something was changed, by the role or the pod that was changed.
        notes: why something was not changed.
        metrics: the newest values that its program reported, by name.
        optimizer: the optimizer that gave the advice, ``local`` or ``brain``; "" for none.
        created, started, finished: None if unknown or not yet.
    """

    uid: str
    kind: str
    namespace: str
    name: str
    phase: str
    reason: str = ""
    message: str = ""
    replicas: Mapping[str, RoleObservation] = field(default_factory=dict)
    requests: demand.Amounts = field(default_factory=dict)
    step: int = 0
    speed: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    optimizer: str = ""
    stage: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    created: float | None = None
    started: float | None = None
    finished: float | None = None


@dataclass(frozen=True)
class ChangeObservation:
    """A ScalePlan, as its object describes it now.

    Attributes:
        job: name of the ElasticJob, in the plan's namespace.
        changes: the requested changes, one line each, such as ``worker: 4 replicas of 2 cores``.
        reason: why it was made (``spec.reason``).
        phase: phase of the plan; "" before its executor has seen it.
        message: message of its executor.
    """

    uid: str
    namespace: str
    name: str
    job: str
    changes: tuple[str, ...] = ()
    reason: str = ""
    phase: str = ""
    message: str = ""
    created: float | None = None
    finished: float | None = None


Object = dict[str, Any]
Manifest = Mapping[str, Any]

MAX_TEXT = 1000
"""Longest message or reason in characters."""
MAX_LINES = 20
"""Most entries of a list of changes, reasons or notes."""

PODS = "pods"
SEEN = "seen"
"""Key in a cached job or plan that contains its row, or None if it is not stored."""
_PHASES = frozenset(map(str, JobPhase))
_JOB_LABELS = tuple(dict.fromkeys(kind.labels[0] for kind in KINDS if kind.view is not None))


def reduce_node(node: Manifest) -> Object:
    """The parts of a node that the cache keeps: its allocatable resources, and whether it is ready."""
    status = node.get("status") or {}
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    return cache_fields.keep_head(node) | {
        "allocatable": demand.parse_amounts(status.get("allocatable") or {}),
        "ready": ready,
    }


def reduce_pod(pod: Manifest) -> Object:
    """The parts of a pod that the cache keeps: its requests, whether it has a node, and its job."""
    spec = pod.get("spec") or {}
    return cache_fields.keep_head(pod) | {
        "placed": bool(spec.get("nodeName")),
        "phase": pod_state.pod_phase(pod),
        "stopped": pod_state.has_stopped(pod),
        "requests": demand.pod_requests(spec) | {PODS: 1.0},
    }


def sample_cluster(
    nodes: Collection[Manifest], pods: Iterable[Manifest], used: demand.Amounts, now: float
) -> ClusterObservation:
    """Compute a sample of the cluster.

    Args:
        nodes: as returned by `reduce_node`.
        pods: as returned by `reduce_pod`.
        used: total usage of the nodes.
        now: Unix seconds.
    """
    allocatable: dict[str, float] = {}
    requested: dict[str, float] = {}
    for node in nodes:
        if node["ready"]:
            demand.add_amounts(allocatable, node["allocatable"])
    live_pods = [pod for pod in pods if not manifests.is_terminating(pod)]
    for pod in live_pods:
        if _holds(pod):
            demand.add_amounts(requested, pod["requests"])
    phases = Counter(pod["phase"] for pod in live_pods)
    return ClusterObservation(
        time=now,
        nodes=len(nodes),
        nodes_ready=sum(node["ready"] for node in nodes),
        allocatable=allocatable,
        requested=requested,
        used=used,
        pods_running=phases["Running"],
        pods_pending=phases["Pending"],
    )


def total_usage(node_metrics: Iterable[Manifest]) -> dict[str, float]:
    """The sum of a metrics server's NodeMetrics."""
    total: dict[str, float] = {}
    for metrics in node_metrics:
        demand.add_amounts(total, demand.parse_amounts(metrics.get("usage") or {}))
    return total


def requests_by_job(pods: Iterable[Manifest]) -> dict[tuple[str, str, str], dict[str, float]]:
    """Total requests of each job's pods. Keys are the label key of the job's kind, the namespace and the
    job's name."""
    requests: dict[tuple[str, str, str], dict[str, float]] = {}
    for pod in pods:
        if not _holds(pod):
            continue
        for key in _JOB_LABELS:
            if name := manifests.get_label(pod, key):
                of_job = requests.setdefault((key, pod["metadata"].get("namespace") or "", name), {})
                demand.add_amounts(of_job, pod["requests"])
    return requests


def reducer_of(kind: Kind) -> Callable[[Manifest], Object]:
    """A function that returns what the cache keeps of an object of a kind: its identity and its row."""

    def keep(manifest: Manifest) -> Object:
        observation = observe_plan(manifest) if kind.view is None else observe_job(kind, manifest)
        return cache_fields.keep_head(manifest) | {SEEN: observation}

    return keep


def observe_job(kind: Kind, manifest: Manifest) -> JobObservation:
    """A job's row, without the requests of its pods.

    Args:
        kind: its row in the registry, which must have a view.
        manifest: the object. If it is invalid, only its phase is stored.
    """
    assert kind.view is not None
    try:
        job = kind.model.parse(manifest)
    except ManifestError as error:
        return _invalid(kind, manifest, error)
    return _observe_view(kind.view(job), job)


def observe_plan(manifest: Manifest) -> ChangeObservation | None:
    """A ScalePlan's row; None for auto plans, which carry out other plans, and for invalid ones."""
    try:
        plan = ScalePlan.parse(manifest)
    except ManifestError:
        return None
    if plan.auto:
        return None
    status, metadata = plan.status, plan.metadata
    return ChangeObservation(
        uid=metadata.uid,
        namespace=metadata.namespace or "default",
        name=metadata.name,
        job=plan.job,
        changes=_cut_lines(describe_changes(plan.spec)),
        reason=_cut(plan.spec.reason),
        phase=str(status.phase or ""),
        message=_cut(status.message),
        created=_seconds(metadata.creation_timestamp),
        finished=_seconds(status.finish_time),
    )


def describe_changes(spec: ScalePlanSpec) -> list[str]:
    """The changes that a plan requests, one line each."""
    changes = []
    for role, replica_spec in spec.replica_resource_specs.items():
        count = "" if replica_spec.replicas is None else _count(replica_spec.replicas, "replica")
        description = " ".join(filter(None, (count, _of_size(replica_spec.resource))))
        changes.append(f"{role}: {description or 'as it is'}")
    changes += [f"replace {pod.name} {_of_size(pod.resource)}".rstrip() for pod in spec.migrate_pods]
    changes += [f"replace ps {rank} {_of_size(size)}".rstrip() for rank, size in spec.migrate_ranks.items()]
    if spec.create_pods:
        changes.append(f"create {_count(len(spec.create_pods), 'pod')}")
    if spec.remove_pods:
        changes.append(f"remove {_count(len(spec.remove_pods), 'pod')}")
    if spec.checkpoint:
        changes.append("take a checkpoint" if not changes else "take a checkpoint first")
    return changes


def with_requests(
    job: JobObservation, label: str, held: Mapping[tuple[str, str, str], demand.Amounts]
) -> JobObservation:
    """A job's row with the total requests of its pods.

    Args:
        job: the row.
        label: key of the label with the job's name on its pods.
        held: the result of `requests_by_job`.
    """
    return replace(job, requests=held.get((label, job.namespace, job.name), {}))


def _observe_view(view: JobView, job: Resource) -> JobObservation:
    advice = job.status.autoscaling if isinstance(job, ElasticJob) else None
    speed = view.progress.speed
    seen = JobObservation(
        uid=view.uid,
        kind=view.kind,
        namespace=view.namespace,
        name=view.name,
        phase=str(view.phase),
        reason=_cut(view.reason),
        message=_cut(view.message),
        replicas={
            role: RoleObservation(counts.desired, counts.ready) for role, counts in view.replicas.items()
        },
        step=max(view.progress.step, 0),
        speed=speed if math.isfinite(speed) and speed > 0 else 0.0,
        metrics=_cut_metrics(view.progress.metrics),
        created=_seconds(job.metadata.creation_timestamp),
        started=_seconds(view.started),
        finished=_seconds(view.finished),
    )
    return _add_advice(seen, advice) if advice is not None else seen


def _add_advice(seen: JobObservation, advice: AutoscalingStatus) -> JobObservation:
    reasons = {role: _cut(reason) for role, reason in list(advice.reasons.items())[:MAX_LINES]}
    return replace(
        seen, optimizer=advice.optimizer, stage=advice.stage, reasons=reasons, notes=_cut_lines(advice.notes)
    )


def _invalid(kind: Kind, manifest: Manifest, error: ManifestError) -> JobObservation:
    metadata, status = manifest["metadata"], manifest.get("status") or {}
    phase = str(status.get("phase") or kind.failed).capitalize()
    return JobObservation(
        uid=str(metadata.get("uid") or ""),
        kind=kind.name,
        namespace=str(metadata.get("namespace") or "default"),
        name=manifests.name_of(manifest),
        phase=phase if phase in _PHASES else str(JobPhase.PENDING),
        reason=INVALID_SPEC,
        message=_cut("; ".join(map(str, error.problems))),
        created=_seconds(manifests.parse_time(metadata.get("creationTimestamp"))),
    )


def _holds(pod: Manifest) -> bool:
    return bool(pod["placed"]) and not pod["stopped"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _of_size(size: NodeResource) -> str:
    named = (("CPU", size.cpu), ("memory", size.memory), ("GPU", size.gpu), *size.others.items())
    amounts = [f"{amount} {name}" for name, amount in named if amount is not None]
    amounts += [f"GPUs of type {size.gpu_type}"] if size.gpu_type is not None else []
    return f"with {', '.join(amounts)}" if amounts else ""


def _seconds(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _cut_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Those that a status written by anybody may hold: finite, with names of a sensible length."""
    finite = [(name, value) for name, value in metrics.items() if math.isfinite(value)]
    return {name[:MAX_NAME]: value for name, value in finite[: MAX_METRICS + 1]}


def _cut_lines(lines: Sequence[str]) -> tuple[str, ...]:
    more = len(lines) - MAX_LINES
    cut = [_cut(line) for line in lines[:MAX_LINES]]
    return tuple(cut if more <= 0 else [*cut, f"and {more} more"])
