"""The cluster monitor: nodes, pods, jobs of all kinds and ScalePlans, watched and told to Brain's store.

One LIST+WATCH a resource type keeps a cache; in a fixed cycle what differs from what the store was told is written, and a
sample of the whole cluster. What is written follows from the caches alone: a failed write is made up for in the next cycle,
and a new process begins with what the store says is still there, so that jobs which went meanwhile are marked, too.

While a watch is down nothing is sampled: a gap in a chart says more than an old number. A kind that the API server does
not have is left out until it has it.
"""

import functools
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from edl_workflows.brain import rows
from edl_workflows.brain.seen import Amounts, ClusterSample, JobSeen, PlanSeen
from edl_workflows.exceptions import EdlError, NotFoundError
from edl_workflows.jobs import api
from edl_workflows.jobs.kinds import KINDS
from edl_workflows.kube import client
from edl_workflows.kube.connect import CallPolicy, Cluster, ClusterSource
from edl_workflows.kube.informer import Informer
from edl_workflows.kube.resources import ALL_NAMESPACES, ApiResource, Scope

log = structlog.get_logger(__name__)

NODE_METRICS = ApiResource("metrics.k8s.io", "v1beta1", "nodes", "NodeMetrics", namespaced=False)
"""What a metrics server serves, where a cluster has one. It can't be watched."""
COMPLAIN_EVERY = 20
"""A watch that fails is logged the first time and then every 20th, which at the longest delay is every five minutes."""

Row = TypeVar("Row", bound=JobSeen | PlanSeen)


class Store(Protocol):
    """What the monitor asks of Brain's store. Each call is one transaction, and may be repeated."""

    def open_jobs(self, kind: str, namespace: str) -> Collection[str]:
        """Uids of the jobs told by `record_jobs` that are not gone: of a kind, in one namespace or in all ("")."""

    def open_plans(self, namespace: str) -> Collection[str]:
        """The same of ScalePlans."""

    def record_jobs(self, jobs: Collection[JobSeen], gone: Collection[str], now: float) -> None:
        """Write these jobs, and that the objects of others are gone."""

    def record_plans(self, plans: Collection[PlanSeen], gone: Collection[str], now: float) -> None:
        """The same of ScalePlans."""

    def record_cluster(self, sample: ClusterSample) -> None:
        """Add a sample."""


@dataclass(frozen=True)
class MonitorOptions:
    """How to watch.

    Attributes:
        namespace: whose jobs and pods, or `ALL_NAMESPACES`.
        period: seconds between two samples; changes of jobs are told as often.
    """

    namespace: str = ALL_NAMESPACES
    period: float = 15.0


class Monitor:
    """The watches, and a thread that tells.

    Args:
        cluster: the API server.
        store: who is told.
        options: see there.
        clock: Unix seconds.
    """

    def __init__(
        self, cluster: Cluster, store: Store, options: MonitorOptions, clock: Callable[[], float] = time.time
    ) -> None:
        source = ClusterSource.of(cluster)
        self._metrics = cluster.with_policy(CallPolicy(attempts=1, read_seconds=5.0))
        self._store = store
        self._options = options
        self._clock = clock
        self._nodes = Informer(source, Scope(api.NODES), keep=rows.kept_node)
        self._pods = Informer(source, Scope(api.PODS, options.namespace), keep=rows.kept_pod)
        self._kinds = {
            kind: Informer(source, Scope(kind.source.api, options.namespace), keep=rows.keeper(kind))
            for kind in KINDS
        }
        self._jobs = {
            kind: _Told(functools.partial(store.open_jobs, kind.name, options.namespace), store.record_jobs)
            for kind in KINDS
            if kind.view is not None
        }
        self._plans = _Told(functools.partial(store.open_plans, options.namespace), store.record_plans)
        for informer in self._informers:
            informer.on_error(functools.partial(_complain, informer.scope))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster monitor", daemon=True)

    def start(self) -> None:
        """Begin."""
        for informer in self._informers:
            informer.start()
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """End; wait so long for the writes in hand."""
        self._stopped.set()
        for informer in self._informers:
            informer.stop()
        if self._thread.ident:
            self._thread.join(seconds)

    def problems(self) -> list[str]:
        """What only a new process cures."""
        dead = self._thread.ident and not self._thread.is_alive() and not self._stopped.is_set()
        return ["the cluster monitor ended"] if dead else []

    def waits_for(self) -> list[str]:
        """What is not listed yet."""
        return [f"not listed yet: {one.scope}" for one in self._informers if not one.synced]

    @property
    def _informers(self) -> tuple[Informer, ...]:
        return (self._nodes, self._pods, *self._kinds.values())

    def _run(self) -> None:
        # The first lists take a moment: not a whole period shall pass without a row.
        deadline = time.monotonic() + min(5.0, self._options.period)
        while self.waits_for() and time.monotonic() < deadline and not self._stopped.wait(0.05):
            pass
        while not self._stopped.is_set():
            try:
                self._look()
            except EdlError as error:
                log.warning("the store was not told; trying again", error=str(error))
            except Exception:
                # A defect must not end the watch of everything else.
                log.exception("defect in the cluster monitor")
            self._stopped.wait(self._options.period)

    def _look(self) -> None:
        now = self._clock()
        held = rows.requests_by_job(self._pods.cache.items())
        for kind, informer in self._kinds.items():
            if not informer.synced:
                continue
            seen = [obj[rows.SEEN] for obj in informer.cache.items()]
            if kind in self._jobs:
                self._jobs[kind].tell([rows.held_by(row, kind.labels[0], held) for row in seen], now)
            else:
                self._plans.tell([row for row in seen if row is not None], now)
        if all(one.synced and one.last_error is None for one in (self._nodes, self._pods)):
            nodes, pods = self._nodes.cache.items(), self._pods.cache.items()
            self._store.record_cluster(rows.cluster_sample(nodes, pods, self._used(), now))

    def _used(self) -> Amounts:
        try:
            return rows.usage(client.list_objects(self._metrics, Scope(NODE_METRICS)).items)
        except EdlError:  # there is no metrics server, or it has a bad moment
            return {}


class _Told(Generic[Row]):
    """What the store knows of a kind's objects.

    Args:
        there: uids of those that an earlier process told it.
        record: tells it.
    """

    def __init__(
        self,
        there: Callable[[], Collection[str]],
        record: Callable[[Collection[Row], Collection[str], float], None],
    ) -> None:
        self._there = there
        self._record = record
        self._told: Mapping[str, Row | None] | None = None

    def tell(self, seen: Collection[Row], now: float) -> None:
        """Make it know these, and that others are gone."""
        told = dict.fromkeys(self._there()) if self._told is None else self._told
        changed, gone = differences(told, seen)
        if changed or gone:
            self._record(changed, gone, now)
        self._told = {row.uid: row for row in seen}


def differences(told: Mapping[str, Row | None], seen: Collection[Row]) -> tuple[list[Row], list[str]]:
    """What the store does not know: rows that are new or changed, and uids of those that are gone.

    Args:
        told: by uid what it was told; None where only that is known.
        seen: what there is.
    """
    there = {row.uid for row in seen}
    return [row for row in seen if told.get(row.uid) != row], [uid for uid in told if uid not in there]


def _complain(scope: Scope, error: EdlError, failures: int) -> None:
    if failures % COMPLAIN_EVERY != 1:
        return
    if isinstance(error, NotFoundError):
        log.warning(
            "the API server does not have this kind, which is left out: install the CRDs with `edl crds install`",
            watch=str(scope),
        )
    else:
        log.warning("watch failed; trying again", watch=str(scope), error=str(error))
