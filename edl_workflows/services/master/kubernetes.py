"""The master in a cluster: watches its job, pods and ScalePlans, and implements `MasterBackend`.

Informers watch in their own threads; the changes are entered into the state in the thread of the master's
loop. The backend writes auto ScalePlans (like DLRover's ElasticJobScaler) and statuses, with the permissions
of the job's own Role.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    EdlError,
    ForbiddenError,
    ManifestError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan import manual_plan
from edl_workflows.core.jobs.scale_plan.model import PodMeta, ScalePlan, ScalePlanSpec
from edl_workflows.core.jobs.scale_plan.plan_order import age_key, belongs_to_earlier_job
from edl_workflows.core.kubernetes import lost_pods, names, pod_state
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.events import EventNote, Recorder
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.paced_call import PacedCall
from edl_workflows.services.master.state import observations
from edl_workflows.services.master.state.job import MachineLoss, RolloutRequest
from edl_workflows.services.master.state.nodes import leaving_steps
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.nodes.relaunch import exit_reason
from edl_workflows.services.master.state.observations import ObservedPod, PodPhase
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import Timeouts, settings_of

SYNC_SECONDS = 30.0
"""Seconds within which the informers must have listed everything. Otherwise the master exits, and is
restarted.
"""

log = structlog.get_logger(__name__)


class KubernetesBackend:
    """The `MasterBackend` that writes to a Kubernetes API.

    Args:
        cluster: with the job's namespace.
        job: the job.
    """

    def __init__(self, cluster: Cluster, job: ElasticJob) -> None:
        self._cluster = cluster
        self._job = job
        self._recorder = Recorder(cluster, "edl-master")
        shown = {"autoscaling": job.status.autoscaling, "goodput": job.status.goodput}
        self._shown = {field: {} if value is None else value.stored() for field, value in shown.items()}
        """What these fields of the status may contain. Only this master writes them, and their maps can lose
        keys, which a merge patch would keep."""

    def ask_for_pods(self, request: PodRequest, nodes: dict[tuple[str, int], JobNode]) -> None:
        """Create the auto ScalePlan. If the job already owns one with this name, an earlier call created
        it.
        """
        spec = ScalePlanSpec(
            owner_job=self._job.metadata.name,
            create_pods=[self._pod_meta(nodes[ref]) for ref in request.create if ref in nodes],
            remove_pods=[self._pod_meta(nodes[ref]) for ref in request.remove if ref in nodes],
            reason="; ".join(nodes[ref].why for ref in request.create if ref in nodes and nodes[ref].why)[
                :4096
            ],
        )
        name = request.name(self._job.metadata.name)
        try:
            client.create(self._cluster, self._plan_manifest(name, spec))
        except AlreadyExistsError:
            existing = client.find_listed(self._cluster, resources.SCALE_PLANS, name)
            if existing is None or not manifests.owned_by(existing, self._job):
                raise

    def make_plan(self, name: str, spec: ScalePlanSpec) -> None:
        """Create the plan. If there is one with the same name and spec, an earlier call created it."""
        fields = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        try:
            client.create(self._cluster, manual_plan.manual_plan(self._job, name, fields))
        except AlreadyExistsError:
            existing = client.find_listed(self._cluster, resources.SCALE_PLANS, name)
            if existing is None or not self._wants(existing, spec):
                raise

    def is_job_deleted(self) -> bool:
        try:
            job = client.find_listed(self._cluster, resources.ELASTIC_JOBS, self._job.metadata.name)
        except (ForbiddenError, NotFoundError):
            return True  # this master's rights are deleted with the job, the jobs with their definition
        except EdlError:
            return False
        return job is None or not _is_same(job, self._job) or manifests.is_terminating(job)

    def report_plan(self, rollout: Rollout, status: dict[str, Any]) -> None:
        client.patch_status(self._cluster, resources.SCALE_PLANS, rollout.name, status, uid=rollout.uid)

    def report_job(self, status: dict[str, Any]) -> None:
        metadata, patch = self._job.metadata, dict(status)
        for field, before in self._shown.items():
            if value := status.get(field):
                patch[field] = _replacing_patch(before, value)
                self._shown[field] = _merged_patch(before, value)  # a call that fails may arrive
        client.patch_status(self._cluster, resources.ELASTIC_JOBS, metadata.name, patch, uid=metadata.uid)
        for field in self._shown.keys() & status.keys():
            self._shown[field] = status[field] or {}

    def record_event(self, event: EventNote) -> None:
        job = {
            "apiVersion": names.API_VERSION,
            "kind": self._job.kind,
            "metadata": self._job.metadata.to_dict(),
        }
        self._recorder.record(job, event, datetime.now(UTC))

    def _wants(self, manifest: Mapping[str, Any], spec: ScalePlanSpec) -> bool:
        plan = ScalePlan.parse(manifest)
        return plan.spec == spec and not belongs_to_earlier_job(plan, self._job)

    def _plan_manifest(self, name: str, spec: ScalePlanSpec) -> dict[str, Any]:
        labels = {names.SCALE_TYPE_LABEL: names.SCALE_AUTO}
        head = manifests.elastic_job_child(names.API_VERSION, "ScalePlan", name, self._job, labels)
        # Blocking would need permission on the job's finalizers under OwnerReferencesPermissionEnforcement.
        head["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = False
        return {**head, "spec": spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)}

    def _pod_meta(self, node: JobNode) -> PodMeta:
        job = self._job.metadata
        return PodMeta.model_validate(
            {
                "name": names.node_name(job.name, node.type, node.id),
                "id": node.id,
                "type": node.type,
                "rankIndex": node.rank,
                "service": names.node_address(job.name, job.namespace or "default", node.type, node.id, 0),
                "resource": node.resource,
            }
        )


def _is_same(manifest: Mapping[str, Any], job: ElasticJob) -> bool:
    return str(manifest["metadata"]["uid"]) == job.metadata.uid


def _replacing_patch(previous: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON merge patch that turns a value into exactly `desired`.

    Args:
        previous: contains every key that the value may have; those not in `desired` are deleted.
        desired: the value after the patch.
    """
    gone = {key: None for key in previous if key not in desired}
    return gone | {
        key: _replacing_patch(previous.get(key) or {}, value) if isinstance(value, Mapping) else value
        for key, value in desired.items()
    }


def _merged_patch(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    maps = {key: (first.get(key), value) for key, value in second.items() if isinstance(value, Mapping)}
    merged = {key: _merged_patch(before or {}, value) for key, (before, value) in maps.items()}
    return {**first, **second, **merged}


class ClusterWatch:
    """Enters what the cluster shows into the master's state.

    Args:
        cluster: with the job's namespace.
        job: the job as read at the start.
        master: whose state.
        timeouts: of the installation.
    """

    def __init__(self, cluster: Cluster, job: ElasticJob, master: Master, timeouts: Timeouts) -> None:
        self._job = job
        self._master = master
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._observing = PacedCall(self._observe)
        source = ClusterSource.of(cluster)
        name = job.metadata.name
        namespace = job.metadata.namespace or cluster.namespace
        mine = f"{names.JOB_LABEL}={name}"
        self._pods = Informer(source, Scope(resources.PODS, namespace, mine))
        self._plans = Informer(source, Scope(resources.SCALE_PLANS, namespace, mine))
        own = f"metadata.name={name}"
        self._jobs = Informer(source, Scope(resources.ELASTIC_JOBS, namespace, field_selector=own))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch while the context is open; it opens once everything was listed.

        Raises:
            UnavailableError: the cluster can't be read.
        """
        informers = (self._pods, self._plans, self._jobs)
        self._jobs.on_change(self._job_changed)
        for informer in (self._pods, self._plans):
            informer.on_change(self._changed)
        for informer in informers:
            informer.start()
        try:
            for informer in informers:
                if not await asyncio.to_thread(informer.wait_synced, SYNC_SECONDS):
                    cause = informer.last_error or f"no answer came in {SYNC_SECONDS:g} s"
                    raise UnavailableError(f"{informer.scope} can't be listed: {cause}")
            self._observe()
            yield
        finally:
            for informer in informers:
                await asyncio.to_thread(informer.stop)

    def _job_changed(self, change: ObjectChange) -> None:
        """Drop changes of what is not read, most of the status: they are this master's own writes."""
        old, modified = change.old, change.type is EventType.MODIFIED
        if old is None or not modified or _read_version(old) != _read_version(change.object):
            self._changed(change)

    def _changed(self, _change: ObjectChange) -> None:
        # Runs in the informer's thread. Changes that arrive together are observed together.
        with contextlib.suppress(RuntimeError):  # the loop has ended, and this process ends too
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        if all(informer.synced for informer in (self._pods, self._plans, self._jobs)):
            self._observing.request()

    def _observe(self) -> None:
        state, now = self._master.state, self._master.now()
        job = self._own_job()
        if job is None:  # deleted, and this pod will be, too
            leaving_steps.record_deletion(state)
            self._master.changed(WriteUrgency.NOW)
            return
        state.settings = settings_of(job, job.metadata.namespace or "default", self._timeouts)
        plans = self._own_plans()
        observations.observe_pod_requests(
            state, {plan.metadata.name: plan.status.phase for plan in plans if plan.auto}, now
        )
        observations.observe_pods(state, self._own_pods(now), now)
        observations.observe_plans(state, [RolloutRequest.of(plan) for plan in plans if not plan.auto])
        self._master.changed(WriteUrgency.LAZY)
        self._master.wake_effects()

    def _own_job(self) -> ElasticJob | None:
        """The job as it is now, or its last valid manifest if the present one is not valid; None if it was
        deleted.
        """
        manifest = next(
            (o for o in self._jobs.cache.items() if o["metadata"]["uid"] == self._job.metadata.uid), None
        )
        if manifest is None or manifests.is_terminating(manifest):
            return None
        try:
            self._job = ElasticJob.parse(manifest)
        except ManifestError as error:
            log.warning("the job's manifest is not valid; going on with the one before", error=str(error))
        return self._job

    def _own_plans(self) -> list[ScalePlan]:
        plans = []
        for manifest in self._plans.cache.items():
            if manifests.is_terminating(manifest):
                continue
            try:
                plan = ScalePlan.parse(manifest)
            except ManifestError:
                continue  # the controller reports it in the plan's status
            if not belongs_to_earlier_job(plan, self._job):
                plans.append(plan)
        return sorted(plans, key=age_key)

    def _own_pods(self, now: float) -> list[ObservedPod]:
        owned = (pod for pod in self._pods.cache.items() if manifests.owned_by(pod, self._job))
        return [seen for pod in owned if (seen := observe_pod(pod, now)) is not None]


def _read_version(job: Mapping[str, Any]) -> tuple[object, ...]:
    """Changes with all that is read of a job: its spec, its annotations, its deletion, and the period of
    progress."""
    metadata, status = job["metadata"], job.get("status") or {}
    head = (metadata.get(key) for key in ("uid", "generation", "annotations", "deletionTimestamp"))
    return (*head, status.get("progressPeriodSeconds"))


def observe_pod(pod: Mapping[str, Any], now: float) -> ObservedPod | None:
    """A training pod as the state needs it; None for another pod, such as the master's own.

    Args:
        pod: the pod.
        now: Unix seconds.
    """
    labels = pod["metadata"].get("labels") or {}
    node_type, index = labels.get(names.REPLICA_TYPE_LABEL), labels.get(names.REPLICA_INDEX_LABEL, "")
    if node_type not in names.NODE_PORTS or not index.isdecimal():
        return None
    status = pod.get("status") or {}
    ended = manifests.failed_init_container(pod) or pod_state.own_end(pod)
    words = manifests.last_words(pod).removeprefix(": ") if "name" in ended else ended.get("message")
    cause = _find_cause(pod)
    if cause is ExitReason.KILLED:  # what it wrote before is no cause
        words = ""
    return ObservedPod(
        node_type,
        int(index),
        PodPhase(pod_state.pod_phase(pod)),
        ended.get("exitCode"),
        status.get("reason") or ended.get("reason") or "",
        status.get("message") or words or "",
        bool(pod_state.outliving_containers(pod)),
        _find_loss(pod, now),
        cause,
    )


def _find_cause(pod: Mapping[str, Any]) -> ExitReason | None:
    """What ended a failed pod, where its exit code and reason alone do not say it."""
    if pod_state.pod_phase(pod) != "Failed":
        return None
    if manifests.is_terminating(pod) or pod_state.marked_disrupted(pod):
        ended = pod_state.own_end(pod)
        return exit_reason(ended.get("exitCode") or None, ended.get("reason") or "", asked=True)
    if manifests.failed_init_container(pod):
        return ExitReason.INIT
    return ExitReason.REFUSED if manifests.refused_by_node(pod) else None


def _find_loss(pod: Mapping[str, Any], now: float) -> MachineLoss | None:
    left = lost_pods.seconds_until_gone(pod, datetime.fromtimestamp(now, UTC))
    since = lost_pods.unreachable_since(pod)
    if left is None and since is None:
        return None
    return MachineLoss(None if left is None else now + left, None if since is None else since.timestamp())


def read_job(cluster: Cluster, name: str) -> ElasticJob:
    """The job at the start.

    Raises:
        NotFoundError: it does not exist.
        ManifestError: it is not valid.
    """
    return ElasticJob.parse(client.get(cluster, resources.ELASTIC_JOBS, name))
