"""The cluster's autoscaler: changes the replicas of elastic jobs, periodically and on relevant changes.

Every job that `edl_workflows.core.jobs.autoscaling` permits is sized together with the others by
`edl_workflows.core.scaling.paddle.fulfilment`: free capacity goes to the least fulfilled job, and other jobs
shrink for pending pods. A change is an edit of the job's spec, or a ScalePlan for kinds without replicas in
the spec. An edit carries the resourceVersion on which the decision was based, so a job that has been edited
meanwhile is decided anew. Each change has an Event with its reason.

The only state is the time of each job's last change. A new process does not have it and may grow a job
sooner.
"""

import datetime as dt
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import structlog

from edl_workflows.core.exceptions import ConflictError, EdlError, InvalidError, ManifestError, NotFoundError
from edl_workflows.core.jobs import autoscaling, left_alone
from edl_workflows.core.jobs.actions import Observed, RoleChange
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan import manual_plan, plan_order
from edl_workflows.core.jobs.scale_plan.kind import SCALE_PLAN
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Resource
from edl_workflows.core.scaling.paddle import fulfilment
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.events import EventNote, Recorder
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.services.controller.fulfilment_request import ScalingCandidate, build_request
from edl_workflows.services.controller.observed_cluster import JobGroup
from edl_workflows.services.controller.periodic_loop import RETRY_SECONDS
from edl_workflows.services.controller.scaling_loop import ScalingContext, ScalingLoop, check_period

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AutoscalerOptions:
    """How to autoscale.

    Attributes:
        period: seconds between two decisions.
        cool_down: seconds for which a job does not grow after a change. It may always shrink.
        max_load: resource → the fraction of the cluster that may be used, see `decide_fulfilment`.
        dry_run: report the changes in Events, and make none.

    Raises:
        InvalidError: a number is out of range.
    """

    period: float = 30.0
    cool_down: float = 60.0
    max_load: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_period("autoscaler", self.period)
        if not 0 <= self.cool_down < math.inf:
            raise InvalidError(f"cool-down of {self.cool_down:g} s: choose a number of at least 0")
        for resource, part in self.max_load.items():
            if not 0 < part <= 1:
                raise InvalidError(f"maximum load: {resource}: {part:g} must be above 0 and at most 1")


class Autoscaler(ScalingLoop):
    """The loop that sizes elastic jobs.

    Args:
        context: see `ScalingContext`.
        options: see `AutoscalerOptions`.
        kinds: kinds of the jobs; kinds without `Kind.elastic` are ignored.
        recorder: writes Events with the reasons.
    """

    freed_room_seconds = RETRY_SECONDS  # the pods of a deleted job leave a moment later than the job

    def __init__(
        self, context: ScalingContext, options: AutoscalerOptions, kinds: tuple[Kind, ...], recorder: Recorder
    ) -> None:
        super().__init__(context, "autoscaler", options.period, "elastic jobs are not autoscaled")
        self._options = options
        self._kinds = tuple(kind for kind in kinds if kind.elastic is not None)
        self._recorder = recorder
        self._changed: dict[str, float] = {}
        """uid of a job → when it was changed, in monotonic seconds."""
        for kind in self._kinds:
            context.world.listen(kind.source, self._job_changed)
        if any(kind.scale is None for kind in self._kinds):
            context.world.listen(SCALE_PLAN.source, self._plan_changed)

    def _job_changed(self, change: ObjectChange) -> None:
        new, old = change.object, change.old
        if old is None or change.type is EventType.DELETED or _relevant(new) != _relevant(old):
            self._cycle.ask(everything=True)

    def _plan_changed(self, change: ObjectChange) -> None:
        """Decide again when a plan ends, because its job may then be changed again."""
        gone = change.type is EventType.DELETED
        if _in_progress(change.old or change.object) and (gone or not _in_progress(change.object)):
            self._cycle.ask(everything=True)

    def _scale_jobs(self, _everything: bool, /) -> float | None:
        """Decide once, and carry the decision out.

        Returns:
            Seconds until the next decision; None if there are no candidates, so that the next change starts
            it.
        """
        candidates = {candidate.key: candidate for candidate in self._candidates()}
        if not candidates:
            self._context.metrics.nothing_to_autoscale()
            self._watches.rest()
            return None
        watches = self._watches.running()
        if not watches.wait_synced(RETRY_SECONDS):
            return RETRY_SECONDS
        now = dt.datetime.now(dt.UTC)
        asked = build_request(candidates.values(), watches.nodes.cache.items(), watches.pods.items(), now)
        started = time.perf_counter()
        decision = fulfilment.decide_fulfilment(asked.jobs, asked.nodes, self._options.max_load)
        self._context.metrics.autoscaled(
            time.perf_counter() - started, len(decision.changes), len(decision.held_back)
        )
        done = [
            self._carry_out(candidates[key], change)
            for key, change in decision.changes.items()
            if key in candidates
        ]
        return self._options.period if all(done) else RETRY_SECONDS

    def _candidates(self) -> Iterator[ScalingCandidate]:
        """The jobs that may be changed now."""
        soonest = time.monotonic() - self._options.cool_down
        self._changed = {uid: when for uid, when in self._changed.items() if when > soonest}
        for kind in self._kinds:
            for manifest in self._context.world.items(kind.source):
                if (candidate := self._candidate(kind, manifest)) is not None:
                    growing = manifest["metadata"]["uid"] not in self._changed
                    yield replace(candidate, growing=growing)

    def _candidate(self, kind: Kind, manifest: Object) -> ScalingCandidate | None:
        assert kind.elastic is not None, "only such kinds are candidates"
        assert kind.view is not None, "what has replicas is a job"
        if "deletionTimestamp" in manifest["metadata"] or kind.suspended(manifest):
            return None
        if left_alone.is_left_alone(manifest):
            return None
        try:
            job: Any = kind.model.parse(manifest)
        except ManifestError:
            return None  # its own reconcile reports it
        elastic = kind.elastic(job)
        if elastic is None or kind.view(job).phase.final:
            return None
        try:
            permitted = autoscaling.permitted_bounds(job, elastic)
        except ManifestError as error:
            self._record_event(manifest, EventNote("AutoscaleRefused", str(error), "Warning"))
            return None
        if permitted is not None and kind.scale is None:
            plans = self._plans_of(job)
            if any(not plan.auto and not plan.finished for plan in plans):
                return None
            node_counts = plan_order.count_desired_nodes(plans, {permitted.role: permitted.replicas})
            permitted = replace(permitted, replicas=node_counts[permitted.role])
        return None if permitted is None else ScalingCandidate(kind, manifest, job, permitted)

    def _plans_of(self, job: Resource) -> Sequence[ScalePlan]:
        """A job's plans, oldest first."""
        group = JobGroup(job.metadata.namespace or "", job.metadata.name)
        objects = {SCALE_PLAN.name: self._context.world.of_group(SCALE_PLAN.source, group)}
        return plan_order.list_plans(Observed(dt.datetime.now(dt.UTC), objects), job)

    def _carry_out(self, candidate: ScalingCandidate, change: fulfilment.InstanceChange) -> bool:
        """Carry out one change. True if it is done, or needs no retry; False if the job has changed
        meanwhile."""
        message = f"{candidate.elastic.role} from {change.before} to {change.after} replicas: {change.reason}"
        context, metadata = self._context, candidate.manifest["metadata"]
        try:
            body = (
                self._edit(candidate, change)
                if candidate.kind.scale is not None
                else self._plan(candidate, change)
            )
            if self._options.dry_run:
                self._record_event(candidate.manifest, EventNote("AutoscalePlanned", message))
                return True
            context.guard()
            answer = self._write(candidate, body)
        except ManifestError as error:
            self._record_event(candidate.manifest, EventNote("AutoscaleRefused", str(error), "Warning"))
            return True
        except NotFoundError:
            return True
        except ConflictError:
            return False
        self._changed[metadata["uid"]] = time.monotonic()
        context.world.wrote(answer)
        context.requeue(JobGroup(metadata["namespace"], metadata["name"]))
        log.info(
            "autoscaled",
            job=candidate.key,
            role=candidate.elastic.role,
            before=change.before,
            after=change.after,
        )
        self._record_event(candidate.manifest, EventNote("Autoscaled", message))
        return True

    def _edit(self, candidate: ScalingCandidate, change: fulfilment.InstanceChange) -> dict[str, Any]:
        """The patch of a job that is scaled by its spec. It applies only to the version that was decided on.

        Raises:
            ManifestError: the job does not allow the number.
        """
        metadata = {key: candidate.manifest["metadata"][key] for key in ("uid", "resourceVersion")}
        spec = candidate.kind.rescale(
            candidate.manifest, {candidate.elastic.role: RoleChange(change.after)}
        ).spec
        return {"metadata": metadata, "spec": spec}

    def _plan(self, candidate: ScalingCandidate, change: fulfilment.InstanceChange) -> dict[str, Any]:
        """The ScalePlan for a job that is not scaled by its spec."""
        name = candidate.manifest["metadata"]["name"]
        group = JobGroup(candidate.manifest["metadata"]["namespace"], name)
        plans = self._context.world.of_group(SCALE_PLAN.source, group)
        role_specs = {candidate.elastic.role: {"replicas": change.after}}
        return manual_plan.manual_plan(
            candidate.job,
            manual_plan.next_autoscale_name(name, (plan["metadata"]["name"] for plan in plans)),
            {"replicaResourceSpecs": role_specs, "reason": change.reason},
        )

    def _write(self, candidate: ScalingCandidate, body: Object) -> Object:
        """Write the change, and return the server's answer.

        Raises:
            NotFoundError: the job is gone.
            ConflictError: it has changed meanwhile.
        """
        cluster, api = self._context.cluster, candidate.kind.source.api
        metadata = candidate.manifest["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        if candidate.kind.scale is not None:
            return client.patch(cluster, api, name, body, namespace)
        # A plan carries no version of its job, and the cache may lag behind a plan that a stage has just
        # created.
        if _relevant(client.get(cluster, api, name, namespace)) != _relevant(candidate.manifest):
            raise ConflictError(f"{candidate.key} has changed since it was planned")
        mine = Scope(SCALE_PLAN.source.api, namespace, label_selector=f"{names.JOB_LABEL}={name}")
        if any(_in_progress(plan) for plan in client.list_objects(cluster, mine).items):
            raise ConflictError(f"a plan of somebody else for {candidate.key} is under way")
        return client.create(cluster, body, namespace)

    def _record_event(self, manifest: Mapping[str, Any], note: EventNote) -> None:
        try:
            self._recorder.record(manifest, note, dt.datetime.now(dt.UTC))
        except EdlError as error:
            log.warning(
                "event not written", job=manifest["metadata"]["name"], reason=note.reason, error=str(error)
            )


def _relevant(job: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of a job on which a decision depends."""
    metadata = job["metadata"]
    annotation = (metadata.get("annotations") or {}).get(autoscaling.ANNOTATION)
    over = str((job.get("status") or {}).get("phase", "")).lower() in ("succeeded", "failed")
    return metadata["uid"], metadata.get("generation"), annotation, "deletionTimestamp" in metadata, over


def _in_progress(plan: Object) -> bool:
    """Whether it is a manual plan that has not ended; auto plans do not change the job."""
    auto = (plan["metadata"].get("labels") or {}).get(names.SCALE_TYPE_LABEL) == names.SCALE_AUTO
    return not auto and (plan.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
