"""The allocator: sizes and places preemptible DIJobs by a policy, periodically and at once after relevant
changes.

It keeps no state between two rounds: each job's allocation is in its ``status.allocation``, which only the
allocator writes. So it may die at any time, and the next round starts from the same facts. A write carries
the resourceVersion on which the decision was based; a job that has changed meanwhile is decided on again.

It does not wait for the next cycle in these cases: a new preemptible job gets its first allocation at once,
and all jobs are decided anew when such a job ends, is suspended or is edited, and when a node is added, is
removed or changes its capacity, labels or taints. Nodes and pods are watched only while there are jobs to
place.
"""

import datetime as dt
import time
from dataclasses import dataclass
from typing import Any

import structlog

from edl_workflows.core.exceptions import ConflictError, ManifestError, NotFoundError
from edl_workflows.core.jobs import left_alone
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.di_job.model import DIJob, DIJobPhase
from edl_workflows.core.kubernetes import api
from edl_workflows.core.scaling.policies import policy_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.resources import Object, key_of
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.services.controller.observed_cluster import JobGroup
from edl_workflows.services.controller.periodic_loop import RETRY_SECONDS
from edl_workflows.services.controller.policy_input import (
    AllocationSnapshot,
    build_snapshot,
    group_by_scenario,
)
from edl_workflows.services.controller.scaling_loop import ScalingContext, ScalingLoop, check_period

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class AllocatorOptions:
    """How to allocate.

    Attributes:
        policy: name of the policy, see `edl_workflows.core.scaling.policies`.
        period: seconds between two decisions about all jobs.

    Raises:
        InvalidError: the period is not above 0.
    """

    policy: str = "fit"
    period: float = 60.0

    def __post_init__(self) -> None:
        check_period("allocator", self.period)


class Allocator(ScalingLoop):
    """The loop that sizes and places preemptible DIJobs.

    Args:
        context: see `ScalingContext`.
        options: see `AllocatorOptions`.

    Raises:
        InvalidError: there is no such policy.
    """

    def __init__(self, context: ScalingContext, options: AllocatorOptions) -> None:
        super().__init__(context, "allocator", options.period, "preemptible DIJobs can't be placed")
        self._options = options
        self._policy = policy_of(options.policy)
        context.world.listen(DI_JOB.source, self._job_changed)

    def _job_changed(self, change: ObjectChange) -> None:
        new, old = change.object, change.old
        if not _preemptible(new) and (old is None or not _preemptible(old)):
            return
        if old is None:
            self._cycle.ask(everything=False)
        elif change.type is EventType.DELETED or _relevant(new) != _relevant(old):
            self._cycle.ask(everything=True)

    def _scale_jobs(self, everything: bool, /) -> float | None:
        """Decide once, and write the changed allocations.

        Returns:
            Seconds until the next cycle; None if there is nothing to place, so that the next change starts
            it.
        """
        manifests = {key_of(manifest): manifest for manifest in self._unfinished()}
        jobs = {key: job for key, manifest in manifests.items() if (job := _parsed(manifest)) is not None}
        if not jobs:
            self._context.metrics.unallocated(0)
            self._watches.rest()
            return None
        watches = self._watches.running()
        if not watches.wait_synced(RETRY_SECONDS):
            return RETRY_SECONDS
        defaults, now = self._context.settings.di_job_resources, dt.datetime.now(dt.UTC)
        waiting = [job for job in jobs.values() if not job.spec.suspend]
        snapshot = build_snapshot(
            waiting,
            watches.nodes.cache.items(),
            watches.pods.items(),
            defaults,
            now,
            group_by_scenario(self._context.world.items(DI_JOB.source)),
        )
        allocations = self._decided(snapshot, everything=everything)
        suspended: dict[str, list[str]] = {job.key: [] for job in jobs.values() if job.spec.suspend}
        late = False
        for key, job in jobs.items():
            allocation = (allocations | suspended).get(job.key)
            if allocation is not None and allocation != job.status.allocation:
                late |= not self._write(manifests[key], allocation)
        self._context.metrics.unallocated(
            sum(not allocations.get(key, held) for key, held in snapshot.previous.items())
        )
        return RETRY_SECONDS if late else self._options.period

    def _unfinished(self) -> list[Object]:
        """The preemptible jobs that have not ended, are not being deleted, and are not left alone."""
        return [
            job
            for job in self._context.world.items(DI_JOB.source)
            if _preemptible(job) and not _over(job) and "deletionTimestamp" not in job["metadata"]
            if not left_alone.is_left_alone(job)
        ]

    def _decided(self, snapshot: AllocationSnapshot, *, everything: bool) -> dict[str, list[str]]:
        """The allocations that the policy wants, without impossible ones."""
        started = time.perf_counter()
        allocations = (
            self._policy.optimize(snapshot.jobs, snapshot.nodes, snapshot.previous)
            if everything
            else self._new(snapshot)
        )
        self._context.metrics.allocated(self._options.policy, time.perf_counter() - started)
        sound = {key: places for key, places in allocations.items() if _possible(snapshot, key, places)}
        for key in allocations.keys() - sound.keys():
            log.error(
                "the policy's allocation is not possible",
                policy=self._options.policy,
                job=key,
                nodes=allocations[key],
            )
        return sound

    def _new(self, snapshot: AllocationSnapshot) -> dict[str, list[str]]:
        """First allocations of the jobs that have none, one after the other."""
        allocations: dict[str, list[str]] = {}
        jobs = [job for job in snapshot.jobs.values() if not snapshot.previous[job.key]]
        for job in sorted(jobs, key=lambda job: (-job.priority, -job.age, job.key)):
            if places := self._policy.allocate(job, snapshot.left):
                allocations[job.key] = places
                snapshot = snapshot.given(job.key, places)
        return allocations

    def _write(self, manifest: Object, allocation: list[str]) -> bool:
        """Write an allocation; False if the job has changed meanwhile. True also if the job no longer
        exists."""
        context, metadata = self._context, manifest["metadata"]
        body = {
            "metadata": {key: metadata[key] for key in ("uid", "resourceVersion")},
            "status": {"allocation": allocation},
        }
        context.guard()
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            answer = client.patch(context.cluster, api.DI_JOBS, name, body, namespace, "status")
        except NotFoundError:
            return True
        except ConflictError:
            return False
        context.world.wrote(answer)
        context.requeue(JobGroup(namespace, name))
        log.info(
            "allocated", job=f"{namespace}/{name}", replicas=len(allocation), nodes=sorted(set(allocation))
        )
        return True


def _preemptible(job: Object) -> bool:
    return (job.get("spec") or {}).get("preemptible") is True


def _over(job: Object) -> bool:
    return (job.get("status") or {}).get("phase") in (DIJobPhase.SUCCEEDED, DIJobPhase.FAILED)


def _relevant(job: Object) -> tuple[Any, ...]:
    """The parts of a job that must start a new round at once when they change. Changed profilings wait for
    the next cycle."""
    metadata = job["metadata"]
    return metadata["uid"], metadata.get("generation"), "deletionTimestamp" in metadata, _over(job)


def _parsed(manifest: Object) -> DIJob | None:
    """The job; None for an invalid one, which its own reconcile reports."""
    try:
        return DIJob.parse(manifest)
    except ManifestError:
        return None


def _possible(snapshot: AllocationSnapshot, key: str, places: list[str]) -> bool:
    """Whether an allocation respects the job's bounds and names only existing nodes."""
    job = snapshot.jobs[key]
    fits = not places or job.min_replicas <= len(places) <= job.max_replicas
    return fits and set(places) <= snapshot.nodes.keys()
