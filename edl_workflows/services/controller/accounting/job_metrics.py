"""What Prometheus sees of the jobs: how many there are in each phase, how long they waited, why they were
restarted, and what they hold.

Jobs are looked at when Prometheus asks, apart from restarts, ends and waiting times, which are noted when
they happen. Only jobs that this process owns are exported, so that replicas don't export a job twice.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest
from edl_workflows.core.jobs.elastic_job.faults import RESTART_CAUSES
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.usage.model import (
    SECONDS_PER_HOUR,
    HeldResource,
    UsageStatus,
    pipeline_of,
    read_usage,
)
from edl_workflows.core.jobs.usage.spans import failure_cause
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.monitoring import controller as declared
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.process.metrics import make_counter, make_gauge_family, make_histogram
from edl_workflows.services.controller.accounting.ledger import UsageLedger, group_of_job, is_over
from edl_workflows.services.controller.accounting.namespace_series import NamespaceSeries
from edl_workflows.services.controller.observed_cluster import ObservedCluster

KEPT_SECONDS = 600.0
"""How long after its end a job's own series are exported, so that Prometheus sees the last figures; and those
of a namespace after its last job."""

OTHER_CAUSE = "Other"
"""The cause of restarts whose cause is unknown, so that there are few series whatever masters write."""

_HOURS = {
    HeldResource.CPU: declared.CPU_HOURS,
    HeldResource.MEMORY: declared.MEMORY_HOURS,
    HeldResource.GPU: declared.GPU_HOURS,
}


class ExportedJobs(Collector):
    """The metrics of the jobs of one controller.

    Args:
        registry: exports them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queue_seconds = make_histogram(declared.QUEUE_SECONDS, registry)
        self._restarts = make_counter(declared.RESTARTS, registry)
        self._ended = make_counter(declared.ENDED, registry)
        self._series = NamespaceSeries(KEPT_SECONDS)
        self._observed: _ObservedJobs | None = None
        registry.register(self)

    def observe(
        self,
        world: ObservedCluster,
        ledger: UsageLedger,
        owns: Callable[[str], bool],
        clock: Callable[[], datetime],
    ) -> None:
        """Export the jobs of a world.

        Args:
            world: the observed jobs.
            ledger: their accounts.
            owns: whether this process owns the job with a key.
            clock: the time, with a zone.
        """
        self._observed = _ObservedJobs(world, ledger, owns, clock)
        for kind in ledger.kinds:
            if kind.restarts is None:
                world.listen(kind.pods, partial(self._note_pod, kind, owns))
            else:
                world.listen(kind.source, partial(self._note_job, kind, owns))

    def collect(self) -> Iterator[MetricFamily]:
        """The gauges at a scrape."""
        if self._observed is not None:
            self._series.drop_old(*self._observed.namespaces())
            yield from self._observed.collect()
            return
        for metric in (declared.JOBS, declared.LONGEST_WAIT, *_HOURS.values()):
            yield make_gauge_family(metric)

    def note_stored(self, kind: Kind, before: Manifest, stored: Manifest) -> None:
        """Note what a stored job says for the first time: how long it waited, and that it has ended.

        Args:
            kind: the job's kind.
            before: the job as it was before its status was written.
            stored: the job as the API server has it now, perhaps without the account, which an older
                definition lacks.
        """
        seconds = _queue_seconds_of(stored)
        if seconds is not None and _queue_seconds_of(before) is None:
            self._series.labelled(self._queue_seconds, kind.name, _namespace_of(before)).observe(seconds)
        if kind.view is not None and is_over(stored) and not is_over(before):  # a ScalePlan is no job
            phase = str(stored["status"]["phase"]).capitalize()  # a TrainingJob's is in lower case
            self._series.labelled(self._ended, kind.name, _namespace_of(before), phase).inc()

    def _note_job(self, kind: Kind, owns: Callable[[str], bool], change: ObjectChange) -> None:
        """Count what a job's master has restarted since its last report."""
        if change.old is None or kind.restarts is None:
            return  # seen for the first time: it was restarted before this process watched
        counts, before = kind.restarts(change.object), kind.restarts(change.old)
        if counts is before or counts == before or not owns(str(group_of_job(change.object))):
            return
        for cause, count in counts.items():
            known = cause if cause in RESTART_CAUSES else OTHER_CAUSE
            self._count_restarts(kind, change.object, known, count - before.get(cause, 0))

    def _note_pod(self, kind: Kind, owns: Callable[[str], bool], change: ObjectChange) -> None:
        """Count a pod that has failed since its last state."""
        new, old = change.object, change.old
        if old is None or pod_state.pod_phase(new) != "Failed" or pod_state.pod_phase(old) == "Failed":
            return
        if owns(f"{_namespace_of(new)}/{kind.pods.job_of(new)}"):
            self._count_restarts(kind, new, failure_cause(new), 1)

    def _count_restarts(self, kind: Kind, obj: Manifest, cause: str, count: int) -> None:
        if count > 0:
            self._series.labelled(self._restarts, kind.name, _namespace_of(obj), cause).inc(count)


class _ObservedJobs:
    """The gauges of a world's jobs; see `ExportedJobs.observe`."""

    def __init__(
        self,
        world: ObservedCluster,
        ledger: UsageLedger,
        owns: Callable[[str], bool],
        clock: Callable[[], datetime],
    ) -> None:
        self._world, self._ledger, self._owns, self._clock = world, ledger, owns, clock
        self._phases: dict[tuple[Any, ...], JobPhase] = {}
        """The common phases of jobs, by what they depend on."""

    def namespaces(self) -> tuple[frozenset[str], datetime]:
        """The namespaces that have jobs, and the time."""
        jobs = chain.from_iterable(self._world.items(kind.source) for kind in self._ledger.kinds)
        return frozenset(map(_namespace_of, jobs)), self._clock()

    def collect(self) -> Iterator[MetricFamily]:
        """The gauges now."""
        jobs, longest = make_gauge_family(declared.JOBS), make_gauge_family(declared.LONGEST_WAIT)
        hours = {resource: make_gauge_family(metric) for resource, metric in _HOURS.items()}
        now = self._clock()
        for kind in self._ledger.kinds:
            owned = [job for job in self._world.items(kind.source) if self._owns(str(group_of_job(job)))]
            counts = Counter((_namespace_of(job), self._phase_of(kind, job)) for job in owned)
            for namespace in sorted({namespace for namespace, _ in counts}):
                for phase in JobPhase:
                    jobs.add_metric((kind.name, namespace, str(phase)), counts[namespace, phase])
            waiting = []
            for job in owned:
                usage = None if _ended_long_ago(job, now) else self._ledger.measure(kind, job)
                if usage is not None:
                    _add_hours(hours, kind, job, usage)
                if _waits(self._phase_of(kind, job), usage):
                    waiting.append(job)
            for namespace, begun in _first_times(waiting).items():
                longest.add_metric((kind.name, namespace), max(0.0, (now - begun).total_seconds()))
        yield from (jobs, longest, *hours.values())

    def _phase_of(self, kind: Kind, job: Manifest) -> JobPhase:
        """The phase as all kinds have it. It depends on a few fields only, so that few jobs are parsed."""
        status = job.get("status") or {}
        conditions = tuple((c.get("type"), c.get("status")) for c in status.get("conditions") or ())
        key = (kind.name, status.get("phase"), conditions)
        if key not in self._phases:
            self._phases[key] = kind.view_stored(job).phase
        return self._phases[key]


def _namespace_of(obj: Manifest) -> str:
    return obj["metadata"].get("namespace") or ""


def _add_hours(hours: Mapping[HeldResource, Any], kind: Kind, job: Manifest, usage: UsageStatus) -> None:
    metadata = job["metadata"]
    pipeline = pipeline_of(metadata.get("annotations") or {})
    labels = (kind.name, _namespace_of(job), metadata["name"], pipeline)
    for resource, family in hours.items():
        for part, seconds in usage.held(resource).items():
            family.add_metric((*labels, str(part)), seconds / SECONDS_PER_HOUR)


def _waits(phase: JobPhase, usage: UsageStatus | None) -> bool:
    """Whether a job waits for pods. An ElasticJob is Running as soon as its master runs, but its workers may
    wait for machines."""
    if phase.final or phase is JobPhase.SUSPENDED:
        return False
    return phase is JobPhase.PENDING or usage is None or usage.queue_seconds is None


def _queue_seconds_of(job: Manifest) -> float | None:
    usage = read_usage(job)
    return None if usage is None else usage.queue_seconds


def _first_times(jobs: Iterable[Manifest]) -> dict[str, datetime]:
    """Since when the job of each namespace waits that has waited longest."""
    first: dict[str, datetime] = {}
    for job in jobs:
        conditions = (job.get("status") or {}).get("conditions") or ()
        times = [c.get("lastTransitionTime") for c in conditions if c.get("status") == "True"]
        since = manifests.parse_time(max(filter(None, times), default=job["metadata"]["creationTimestamp"]))
        namespace = _namespace_of(job)
        if since is not None:
            first[namespace] = min(since, first.get(namespace, since))
    return first


def _ended_long_ago(job: Manifest, now: datetime) -> bool:
    end = manifests.parse_time((job.get("status") or {}).get("completionTime"))
    return is_over(job) and (end is None or (now - end).total_seconds() > KEPT_SECONDS)
