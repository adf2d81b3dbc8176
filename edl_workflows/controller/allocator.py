"""The allocator: sizes and places preemptible DIJobs by a policy, in a fixed cycle and at once on what matters.

It keeps nothing between two looks: what jobs hold stands in their ``status.allocation``, which it alone writes. So it may die
at any instant; the next look puts the same question. A write carries the version that the decision rests on; a job that
changed meanwhile is decided anew.

At once, and not with the next cycle: a new preemptible job gets its first allocation; all are looked at when such a job
ends, is suspended or edited, and when a node comes, goes, or offers something else. Nodes and pods are watched only while there
are jobs to place.
"""

import datetime as dt
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from edl_workflows.controller.metrics import Metrics
from edl_workflows.controller.snapshot import Snapshot, kept_node, kept_pod, snapshot
from edl_workflows.controller.world import Group, World
from edl_workflows.exceptions import ConflictError, EdlError, ManifestError, NotFoundError
from edl_workflows.jobs import api
from edl_workflows.jobs.actions import Settings
from edl_workflows.jobs.di_job.kind import DI_JOB
from edl_workflows.jobs.di_job.model import DIJob, Phase
from edl_workflows.kube import client
from edl_workflows.kube.cache import Change
from edl_workflows.kube.connect import Cluster, ClusterSource
from edl_workflows.kube.informer import Informer
from edl_workflows.kube.resources import Object, Scope, key_of
from edl_workflows.kube.watch import EventType
from edl_workflows.scaling.policies import policy_of

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.2
"""Changes often come in groups: they are answered together."""
RETRY_SECONDS = 2.0
"""After a conflict, or while nodes and pods are not listed yet."""
COMPLAIN_EVERY = 20
"""A watch that fails is logged the first time and then every 20th, which at the longest delay is every five minutes."""


@dataclass(frozen=True)
class AllocatorOptions:
    """How to allocate.

    Attributes:
        policy: name of the policy, see `edl_workflows.scaling.policies`.
        period: seconds of the cycle in which all jobs are looked at.
    """

    policy: str = "fit"
    period: float = 60.0


@dataclass(frozen=True)
class Surroundings:
    """What the allocator stands in.

    Attributes:
        cluster: the API server.
        namespace: whose pods are counted, or `ALL_NAMESPACES`.
        world: has the jobs.
        settings: what an installation decides for every job.
        guard: called before each write; raises where this process must not write (any more).
        requeue: told of each job whose allocation was written, to look at it.
        metrics: counts.
    """

    cluster: Cluster
    namespace: str
    world: World
    settings: Settings
    guard: Callable[[], None]
    requeue: Callable[[Group], None]
    metrics: Metrics = field(repr=False)


class Allocator:
    """The loop, in a thread of its own.

    Args:
        around: see there.
        options: see there.

    Raises:
        InvalidError: there is no such policy.
    """

    def __init__(self, around: Surroundings, options: AllocatorOptions) -> None:
        self._around = around
        self._options = options
        self._policy = policy_of(options.policy)
        self._asked = threading.Condition()
        self._look: bool | None = None
        """Whether somebody wants a look: at new jobs (False), at all (True)."""
        self._next: float | None = 0.0
        """When the next cycle is due, in monotonic seconds; None while there is nothing to place."""
        self._stopped = threading.Event()
        self._watches: _Watches | None = None
        self._thread = threading.Thread(target=self._run, name="allocator", daemon=True)
        around.world.listen(DI_JOB.source, self._job_changed)

    def start(self) -> None:
        """Begin, when all jobs are listed."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End; wait so long for the decision in hand."""
        with self._asked:
            self._stopped.set()
            self._asked.notify()
        if self._thread.ident:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """What only a new process cures."""
        dead = self._thread.ident and not self._thread.is_alive() and not self._stopped.is_set()
        return ["the allocator ended"] if dead else []

    def _run(self) -> None:
        while not self._stopped.is_set() and not self._around.world.wait_synced(0.5):
            pass  # the wait is the pause
        while (everything := self._wait()) is not None:
            try:
                seconds = self._look_at(everything=everything)
            except EdlError as error:
                log.warning("allocation failed; trying again", error=str(error))
                seconds = RETRY_SECONDS
            except Exception:
                # A policy's defect must not end the loop: what jobs hold stays as it is.
                log.exception("defect in an allocation")
                seconds = self._options.period
            self._next = None if seconds is None else time.monotonic() + seconds
        self._rest()

    def _wait(self) -> bool | None:
        """Wait for something to look at: all jobs (True), or new ones (False); None at the end."""
        with self._asked:
            left = None if self._next is None else max(0.0, self._next - time.monotonic())
            self._asked.wait_for(lambda: self._stopped.is_set() or self._look is not None, left)
        if self._stopped.wait(GATHER_SECONDS):
            return None
        with self._asked:
            due = self._next is not None and time.monotonic() >= self._next
            everything, self._look = due or bool(self._look), None
            return everything

    def _ask(self, *, everything: bool) -> None:
        with self._asked:
            self._look = everything or bool(self._look)
            self._asked.notify()

    def _job_changed(self, change: Change) -> None:
        new, old = change.object, change.old
        if not _preemptible(new) and (old is None or not _preemptible(old)):
            return
        if old is None:
            self._ask(everything=False)
        elif change.type is EventType.DELETED or _relevant(new) != _relevant(old):
            self._ask(everything=True)

    def _node_changed(self, change: Change) -> None:
        if self._watches is None or not self._watches.synced:
            return  # the first list is looked at anyway
        if (
            change.old is None
            or change.type is EventType.DELETED
            or _offer(change.object) != _offer(change.old)
        ):
            self._ask(everything=True)

    def _look_at(self, *, everything: bool) -> float | None:
        """Look once: decide, and write what changed.

        Returns:
            Seconds until the next cycle; None for never, until there is something to place.
        """
        manifests = {key_of(manifest): manifest for manifest in self._unfinished()}
        jobs = {key: job for key, manifest in manifests.items() if (job := _parsed(manifest)) is not None}
        if not jobs:
            self._rest()
            return None
        watches = self._watching()
        if not watches.wait_synced(RETRY_SECONDS):
            return RETRY_SECONDS
        defaults, now = self._around.settings.di_job_resources, dt.datetime.now(dt.UTC)
        waiting = [job for job in jobs.values() if not job.spec.suspend]
        found = snapshot(waiting, watches.nodes.cache.items(), watches.pods.cache.items(), defaults, now)
        wanted = self._decided(found, everything=everything)
        suspended: dict[str, list[str]] = {job.key: [] for job in jobs.values() if job.spec.suspend}
        late = False
        for key, job in jobs.items():
            allocation = (wanted | suspended).get(job.key)
            if allocation is not None and allocation != job.status.allocation:
                late |= not self._write(manifests[key], allocation)
        self._around.metrics.unallocated(
            sum(not wanted.get(key, held) for key, held in found.previous.items())
        )
        return RETRY_SECONDS if late else self._options.period

    def _unfinished(self) -> list[Object]:
        """The preemptible jobs that are not over."""
        return [
            job
            for job in self._around.world.items(DI_JOB.source)
            if _preemptible(job) and not _over(job) and "deletionTimestamp" not in job["metadata"]
        ]

    def _decided(self, found: Snapshot, *, everything: bool) -> dict[str, list[str]]:
        """The allocations that the policy wants; only those that can be."""
        started = time.perf_counter()
        wanted = (
            self._policy.optimize(found.jobs, found.nodes, found.previous) if everything else self._new(found)
        )
        self._around.metrics.allocated(self._options.policy, time.perf_counter() - started)
        sound = {key: places for key, places in wanted.items() if _possible(found, key, places)}
        for key in wanted.keys() - sound.keys():
            log.error(
                "the policy's allocation is not possible",
                policy=self._options.policy,
                job=key,
                nodes=wanted[key],
            )
        return sound

    def _new(self, found: Snapshot) -> dict[str, list[str]]:
        """First allocations of the jobs that have none, one after the other."""
        wanted: dict[str, list[str]] = {}
        jobs = [job for job in found.jobs.values() if not found.previous[job.key]]
        for job in sorted(jobs, key=lambda job: (-job.priority, -job.age, job.key)):
            if places := self._policy.allocate(job, found.left):
                wanted[job.key] = places
                found = found.given(job.key, places)
        return wanted

    def _write(self, manifest: Object, allocation: list[str]) -> bool:
        """Whether it was written, or there is nobody left to write it to; else the job has changed meanwhile."""
        around, metadata = self._around, manifest["metadata"]
        body = {
            "metadata": {key: metadata[key] for key in ("uid", "resourceVersion")},
            "status": {"allocation": allocation},
        }
        around.guard()
        name, namespace = metadata["name"], metadata["namespace"]
        try:
            answer = client.patch(around.cluster, api.DI_JOBS, name, body, namespace, "status")
        except NotFoundError:
            return True
        except ConflictError:
            return False
        around.world.wrote(answer)
        around.requeue(Group(namespace, name))
        log.info(
            "allocated", job=f"{namespace}/{name}", replicas=len(allocation), nodes=sorted(set(allocation))
        )
        return True

    def _watching(self) -> "_Watches":
        if self._watches is None:
            self._watches = _Watches(self._around.cluster, self._around.namespace, self._node_changed)
            self._watches.start()
        return self._watches

    def _rest(self) -> None:
        if self._watches is not None:
            self._watches.stop()
            self._watches = None


class _Watches:
    """Nodes and pods."""

    def __init__(self, cluster: Cluster, namespace: str, node_changed: Callable[[Change], None]) -> None:
        source = ClusterSource.of(cluster)
        self.nodes = Informer(source, Scope(api.NODES), keep=kept_node)
        self.pods = Informer(source, Scope(api.PODS, namespace), keep=kept_pod)
        self.nodes.on_change(node_changed)
        for informer in (self.nodes, self.pods):
            informer.on_error(functools.partial(_complain, informer.scope))

    @property
    def synced(self) -> bool:
        """Whether everything is listed."""
        return self.nodes.synced and self.pods.synced

    def start(self) -> None:
        """Begin to watch."""
        self.nodes.start()
        self.pods.start()

    def wait_synced(self, seconds: float) -> bool:
        """Wait until everything is listed; whether that came in time."""
        return self.nodes.wait_synced(seconds) and self.pods.wait_synced(seconds)

    def stop(self) -> None:
        """End both watches."""
        self.nodes.stop()
        self.pods.stop()


def _complain(scope: Scope, error: EdlError, failures: int) -> None:
    if failures % COMPLAIN_EVERY == 1:
        log.warning("preemptible DIJobs can't be placed; trying again", watch=str(scope), error=str(error))


def _preemptible(job: Object) -> bool:
    return (job.get("spec") or {}).get("preemptible") is True


def _over(job: Object) -> bool:
    return (job.get("status") or {}).get("phase") in (Phase.SUCCEEDED, Phase.FAILED)


def _relevant(job: Object) -> tuple[Any, ...]:
    """What an allocation depends on, beside the profilings, which the cycle looks at."""
    metadata = job["metadata"]
    return metadata["uid"], metadata.get("generation"), "deletionTimestamp" in metadata, _over(job)


def _offer(node: Object) -> tuple[Any, ...]:
    """What of a node an allocation depends on."""
    fields = ("allocatable", "unschedulable", "taints", "notReadySince")
    return node["metadata"].get("labels"), *(node[name] for name in fields)


def _parsed(manifest: Object) -> DIJob | None:
    """The job; None for a malformed one, which its own reconcile tells of."""
    try:
        return DIJob.parse(manifest)
    except ManifestError:
        return None


def _possible(found: Snapshot, key: str, places: list[str]) -> bool:
    """Whether an answer keeps to the job's bounds and to nodes that there are."""
    job = found.jobs[key]
    fits = not places or job.min_replicas <= len(places) <= job.max_replicas
    return fits and set(places) <= found.nodes.keys()
