"""The cluster monitor: watches nodes, pods, jobs of all kinds and ScalePlans, and writes them to the Brain's
store.

One LIST+WATCH per resource type maintains a cache. In a fixed cycle, the monitor writes the differences
between the caches and the store, and a sample of the whole cluster. What it writes depends only on the caches
and the store, so the next cycle makes up for a failed write, and a new process also marks the jobs that were
deleted while no monitor ran.

While a watch is down, no samples are written: a gap in a chart is better than an outdated value. A kind that
is not installed is skipped until it is.
"""

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from edl_workflows.core.exceptions import EdlError, NotFoundError
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import api, demand
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.informer_group import InformerGroup
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, ApiResource, Scope
from edl_workflows.services.brain import observations
from edl_workflows.services.brain.observations import (
    ChangeObservation,
    ClusterObservation,
    JobObservation,
)

log = structlog.get_logger(__name__)

NODE_METRICS = ApiResource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", namespaced=False)
"""The metrics API, which a metrics server provides if the cluster has one. It cannot be watched."""

Row = TypeVar("Row", bound=JobObservation | ChangeObservation)


class MonitorStore(Protocol):
    """The interface of the Brain's store for the monitor. Each call is one transaction and may be
    repeated."""

    def open_jobs(self, kind: str, namespace: str) -> Collection[str]:
        """Uids of a kind's stored jobs that are not marked as gone, in one namespace or, if it is empty, in
        all."""

    def open_plans(self, namespace: str) -> Collection[str]:
        """The same for ScalePlans."""

    def record_jobs(self, jobs: Collection[JobObservation], gone: Collection[str], now: float) -> None:
        """Store these jobs, and mark the jobs with the uids in `gone` as gone."""

    def record_plans(self, plans: Collection[ChangeObservation], gone: Collection[str], now: float) -> None:
        """The same for ScalePlans."""

    def record_cluster(self, sample: ClusterObservation) -> None:
        """Store a sample."""


@dataclass(frozen=True)
class MonitorOptions:
    """Options of the monitor.

    Attributes:
        namespace: namespace of the watched jobs and pods, or `ALL_NAMESPACES`.
        period: seconds between two samples. Changes of jobs are written at the same interval.
    """

    namespace: str = ALL_NAMESPACES
    period: float = 15.0


class ClusterMonitor:
    """The watches, and a thread that writes to the store.

    Args:
        cluster: the API server.
        store: the store to write to.
        options: see `MonitorOptions`.
        clock: the clock, in Unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: MonitorStore,
        options: MonitorOptions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        source = ClusterSource.of(cluster)
        self._metrics = cluster.with_policy(CallPolicy(attempts=1, read_seconds=5.0))
        self._store = store
        self._options = options
        self._clock = clock
        self._nodes = Informer(source, Scope(api.NODES), keep=observations.reduce_node)
        self._pods = Informer(source, Scope(api.PODS, options.namespace), keep=observations.reduce_pod)
        self._kinds = {
            kind: Informer(
                source, Scope(kind.source.api, options.namespace), keep=observations.reducer_of(kind)
            )
            for kind in KINDS
        }
        self._jobs = {
            kind: _StoreSync(
                functools.partial(store.open_jobs, kind.name, options.namespace), store.record_jobs
            )
            for kind in KINDS
            if kind.view is not None
        }
        self._plans = _StoreSync(functools.partial(store.open_plans, options.namespace), store.record_plans)
        self._watches = InformerGroup((self._nodes, self._pods, *self._kinds.values()), _log_failure)
        self.waits_for = self._watches.waits_for
        """Returns what has not been listed yet, in words."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster monitor", daemon=True)

    def start(self) -> None:
        self._watches.start()
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Stop the monitor. Wait at most `seconds` for writes in progress."""
        self._stopped.set()
        self._watches.stop()
        if self._thread.ident:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """Problems that only a restart of the process solves."""
        dead = self._thread.ident and not self._thread.is_alive() and not self._stopped.is_set()
        return ["the cluster monitor ended"] if dead else []

    def _run(self) -> None:
        # The first lists take a moment. The first sample should not have to wait for a whole period.
        deadline = time.monotonic() + min(5.0, self._options.period)
        while self.waits_for() and time.monotonic() < deadline and not self._stopped.wait(0.05):
            pass
        while not self._stopped.is_set():
            try:
                self._record_observations()
            except EdlError as error:
                log.warning("monitor could not write to the store; retrying", error=str(error))
            except Exception:
                # A bug must not stop the monitor.
                log.exception("unexpected error in the cluster monitor")
            self._stopped.wait(self._options.period)

    def _record_observations(self) -> None:
        now = self._clock()
        held = observations.requests_by_job(self._pods.cache.items())
        for kind, informer in self._kinds.items():
            if not informer.synced:
                continue
            seen = [obj[observations.SEEN] for obj in informer.cache.items()]
            if kind in self._jobs:
                self._jobs[kind].write_changes(
                    [observations.with_requests(job, kind.labels[0], held) for job in seen], now
                )
            else:
                self._plans.write_changes([plan for plan in seen if plan is not None], now)
        if all(informer.synced and informer.last_error is None for informer in (self._nodes, self._pods)):
            nodes, pods = self._nodes.cache.items(), self._pods.cache.items()
            self._store.record_cluster(observations.sample_cluster(nodes, pods, self._used(), now))

    def _used(self) -> demand.Amounts:
        try:
            return observations.total_usage(client.list_objects(self._metrics, Scope(NODE_METRICS)).items)
        except EdlError:  # there is no metrics server, or it does not respond
            return {}


class _StoreSync(Generic[Row]):
    """Keeps the stored objects of a kind up to date.

    Args:
        stored_uids: returns the uids of the objects that an earlier process stored.
        record: writes rows to the store.
    """

    def __init__(
        self,
        stored_uids: Callable[[], Collection[str]],
        record: Callable[[Collection[Row], Collection[str], float], None],
    ) -> None:
        self._stored_uids = stored_uids
        self._record = record
        self._stored: Mapping[str, Row | None] | None = None

    def write_changes(self, seen: Collection[Row], now: float) -> None:
        """Write the changed objects, and mark those that no longer exist as gone."""
        stored = dict.fromkeys(self._stored_uids()) if self._stored is None else self._stored
        changed, gone = diff_rows(stored, seen)
        if changed or gone:
            self._record(changed, gone, now)
        self._stored = {observation.uid: observation for observation in seen}


def diff_rows(stored: Mapping[str, Row | None], seen: Collection[Row]) -> tuple[list[Row], list[str]]:
    """The rows that are new or changed, and the uids of objects that no longer exist.

    Args:
        stored: the stored row for each uid; None if only the uid is known.
        seen: the current rows.
    """
    existing_uids = {observation.uid for observation in seen}
    changed = [observation for observation in seen if stored.get(observation.uid) != observation]
    return changed, [uid for uid in stored if uid not in existing_uids]


def _log_failure(scope: Scope, error: EdlError) -> None:
    if isinstance(error, NotFoundError):
        log.warning(
            "the API server does not have this kind, so it is skipped: install the CRDs with `edl crds "
            "install`",
            watch=str(scope),
        )
    else:
        log.warning("watch failed; retrying", watch=str(scope), error=str(error))
