"""Adds the account of what a job's pods hold (`edl_workflows.core.jobs.usage`) to the job's status.

The status has the account until some moment. What pods have held since then is seen from the pods that exist,
and from those that have gone while this process watched. So the account is written only together with a
status that is written anyway, once more after the last pod of a job has ended, and at least about once an
hour while pods run. What is lost with a controller that is killed is what pods held since then that end
before the next controller sees them.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from edl_workflows.core.jobs import left_alone, manifests
from edl_workflows.core.jobs.actions import Actions, Manifest, merge_patch
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.usage.account import count_usage
from edl_workflows.core.jobs.usage.model import UsageStatus, read_usage
from edl_workflows.core.jobs.usage.spans import PodSpan, read_span
from edl_workflows.core.kubernetes.api import PODS
from edl_workflows.runtime.kube.resources import Object
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster

LOOK_SECONDS = 60.0
"""Seconds between two searches for accounts that were written long ago."""
WRITE_SECONDS = 3600.0
"""Age at which an account is written although nothing else is."""
MOST_WRITES = 60
"""Accounts that are written in `LOOK_SECONDS` for their age, the oldest first."""
YOUNG_SECONDS = 1.0
"""Age up to which an account is not written again. An API server with an older definition may drop all else
of a status. A write that changes nothing ends the attempts to write it, but a new account would change
something each time."""

_FINAL = ("succeeded", "failed")


class UsageLedger:
    """The accounts of all jobs.

    Args:
        world: the observed jobs and pods.
        kinds: the kinds to reconcile.
        clock: the time, with a zone.
        requeue: called with each job whose account must be written.
    """

    def __init__(
        self,
        world: ObservedCluster,
        kinds: Iterable[Kind],
        clock: Callable[[], datetime],
        requeue: Callable[[JobGroup], None],
    ) -> None:
        self.kinds = tuple(kind for kind in kinds if kind.view is not None and _has_pods(kind))
        self._names = frozenset(kind.name for kind in self.kinds)
        self._world, self._clock, self._requeue = world, clock, requeue
        self._lock = threading.Lock()
        self._gone: dict[str, dict[str, PodSpan]] = {}
        """The spans of pods that are gone, by the uids of their jobs and their own."""
        self._due: set[str] = set()
        """The uids of the jobs whose accounts are old, until they are written."""
        self._tried: dict[str, float] = {}
        """When they were found old. An older definition of a kind drops the account."""
        world.on_leave(self._note_leaving)

    def extend(self, kind: Kind, manifest: Manifest, actions: Actions, now: datetime) -> Actions:
        """A decision, with the account in its status if a status is written anyway, or must be for the
        account."""
        if kind.name not in self._names or actions.status_version or left_alone.is_left_alone(manifest):
            return actions
        uid = str(manifest["metadata"].get("uid"))
        over = is_over(manifest, actions.status)
        with self._lock:
            due = uid in self._due
        if not (actions.status or over or due):
            return actions
        spans = self._spans(kind, manifest)
        needed = due or (over and _is_last(manifest, spans))
        if not spans or not (actions.status or needed):
            return actions
        usage = self._count(kind, manifest, spans, now, over=over)
        ends = over and not is_over(manifest)
        if not (needed or ends) and _is_young(read_usage(manifest), usage, now):
            return actions
        before = (manifest.get("status") or {}).get("usage") or {}
        patch = merge_patch({"usage": before}, {"usage": usage.to_dict()})
        return replace(actions, status={**(actions.status or {}), **(patch or {})})

    def note_written(self, manifest: Manifest) -> None:
        """Note that a decision about a job has been carried out with the status that `extend` returned."""
        with self._lock:
            self._due.discard(str(manifest["metadata"].get("uid")))

    def measure(self, kind: Kind, manifest: Manifest) -> UsageStatus | None:
        """A job's account until now; None if its pods have held nothing."""
        spans = self._spans(kind, manifest)
        if not spans:
            return read_usage(manifest)
        return self._count(kind, manifest, spans, self._clock(), over=is_over(manifest))

    def look(self, _everything: bool = True, /) -> float:
        """Have the accounts written that are old, a few at a time.

        Returns:
            Seconds until the next call.
        """
        now = self._clock().timestamp()
        self._tried = {uid: at for uid, at in self._tried.items() if now - at < WRITE_SECONDS}
        with self._lock:
            remembered = self._gone.keys() | self._due
        old: list[tuple[float, str, JobGroup]] = []
        for kind in self.kinds:
            for manifest in self._world.items(kind.source):
                uid = str(manifest["metadata"].get("uid"))
                remembered.discard(uid)
                if uid not in self._tried and (at := self._last_written(kind, manifest, now)) is not None:
                    old.append((at, uid, group_of_job(manifest)))
        due = sorted(old)[:MOST_WRITES]
        self._tried |= {uid: now for _, uid, _ in due}
        with self._lock:
            self._due.update(uid for _, uid, _ in due)
            for uid in remembered:  # jobs that are deleted
                self._due.discard(uid)
                self._gone.pop(uid, None)
        for _, _, group in due:
            self._requeue(group)
        return LOOK_SECONDS

    def _last_written(self, kind: Kind, manifest: Manifest, now: float) -> float | None:
        """When the account of a job was written, 0 for never; None if it need not be written now: it is not
        old, or the job holds nothing."""
        if is_over(manifest) or left_alone.is_left_alone(manifest):
            return None
        usage = read_usage(manifest)
        at = usage.time.timestamp() if usage else 0.0
        if now - at <= WRITE_SECONDS:
            return None
        return at if any(span.ended is None for span in self._spans(kind, manifest)) else None

    def _count(
        self, kind: Kind, manifest: Manifest, spans: Sequence[PodSpan], now: datetime, *, over: bool
    ) -> UsageStatus:
        created = manifests.parse_time(manifest["metadata"].get("creationTimestamp"))
        before = read_usage(manifest)
        if over and (last := _last_end(spans)) is not None:
            # A node's clock may be ahead. Otherwise the account would be written until its end has come.
            now = max(now, datetime.fromtimestamp(last, UTC))
        return count_usage(before, spans, now, kind.spent(manifest), created=created, over=over)

    def _spans(self, kind: Kind, manifest: Manifest) -> list[PodSpan]:
        """The spans of a job's pods, including those that have gone since its account was written."""
        uid = str(manifest["metadata"].get("uid"))
        pods = self._world.of_group(kind.pods, group_of_job(manifest))
        spans = {
            str(pod["metadata"]["uid"]): read_span(pod)
            for pod in pods
            if manifests.owner_of(pod).get("uid") == uid
        }
        with self._lock:
            spans |= self._gone.get(uid, {})
        return [span for span in spans.values() if span is not None]

    def _note_leaving(self, obj: Object) -> None:
        """Remember a pod that is deleted and leaves the cache next."""
        for kind in self.kinds if obj.get("kind") == PODS.kind else ():
            if kind.pods.selects(obj):
                self._note_gone(kind, obj)

    def _note_gone(self, kind: Kind, pod: Object) -> None:
        span, group = read_span(pod), kind.pods.job_of(pod)
        if span is None or not group:
            return
        job = self._find_job(kind, pod, group)
        if job is None:
            return
        if span.ended is None:
            span = replace(span, ended=self._clock().timestamp())
        uid, usage = str(job["metadata"].get("uid")), read_usage(job)
        written = usage.time.timestamp() if usage else 0.0
        with self._lock:
            gone = {key: old for key, old in self._gone.get(uid, {}).items() if (old.ended or 0.0) > written}
            self._gone[uid] = gone | {str(pod["metadata"]["uid"]): span}
        if is_over(job):
            self._requeue(group_of_job(job))

    def _find_job(self, kind: Kind, pod: Object, name: str) -> Object | None:
        owner = manifests.owner_of(pod).get("uid")
        group = JobGroup(pod["metadata"].get("namespace") or "", name)
        jobs = self._world.of_group(kind.source, group)
        return next((job for job in jobs if job["metadata"].get("uid") == owner), None)


def _has_pods(kind: Kind) -> bool:
    return any(source.api is PODS for source in kind.observes)


def group_of_job(manifest: Manifest) -> JobGroup:
    """The group of a job's objects."""
    metadata = manifest["metadata"]
    return JobGroup(metadata.get("namespace") or "", metadata["name"])


def is_over(manifest: Manifest, patch: Manifest | None = None) -> bool:
    """Whether a job has ended, by its status with a patch."""
    status = manifest.get("status") or {}
    phase = (patch or {}).get("phase") or status.get("phase") or ""
    return str(phase).lower() in _FINAL


def _is_last(manifest: Manifest, spans: Sequence[PodSpan]) -> bool:
    """Whether all pods have ended, and one of them since the account was written."""
    usage = read_usage(manifest)
    written = usage.time.timestamp() if usage else 0.0
    last = _last_end(spans)
    return last is not None and last > written


def _last_end(spans: Sequence[PodSpan]) -> float | None:
    """When the last pod ended; None while one has not, or without any."""
    ends = [span.ended for span in spans]
    return None if None in ends else max(filter(None, ends), default=None)


def _is_young(before: UsageStatus | None, usage: UsageStatus, now: datetime) -> bool:
    """Whether a stored account is young and has all that the new one has but what was held since then."""
    if before is None or (before.queue_seconds is None and usage.queue_seconds is not None):
        return False
    return now.timestamp() - before.time.timestamp() < YOUNG_SECONDS
