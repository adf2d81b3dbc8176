"""The loop: informers put jobs into a queue, workers reconcile them. Also starts and stops them, and reports
problems."""

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import EdlError, InvalidError, NotFoundError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import check_partitions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.events import EventNote, Recorder
from edl_workflows.runtime.kube.resources import CRDS, Scope
from edl_workflows.runtime.process.partition import CLUSTER_WIDE, Partition
from edl_workflows.services.controller.accounting.ledger import LOOK_SECONDS, UsageLedger
from edl_workflows.services.controller.allocator import Allocator, AllocatorOptions
from edl_workflows.services.controller.apply import Applier
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster
from edl_workflows.services.controller.periodic_loop import RETRY_SECONDS, PeriodicLoop
from edl_workflows.services.controller.progress_budget import ProgressBudget
from edl_workflows.services.controller.queue import WorkQueue
from edl_workflows.services.controller.reconciler import Reconciler
from edl_workflows.services.controller.scaling_loop import ScalingContext, ScalingLoop

if TYPE_CHECKING:
    from edl_workflows.services.controller.autoscaler import AutoscalerOptions

log = structlog.get_logger(__name__)

STOP_SECONDS = 20.0
"""Longest duration of `Manager.stop`, even if decisions are in progress; below a pod's default grace period
of 30 s."""
TAKE_OVER_BACKOFF = Backoff(first=RETRY_SECONDS, most=30.0)
"""After a take-over that failed: it lists all objects, which an overloaded API server refuses."""


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@dataclass(frozen=True)
class ManagerOptions:
    """How to run the loop.

    Attributes:
        namespaces: the namespaces whose jobs are reconciled.
        workers: number of jobs reconciled concurrently; workers mostly wait for the API server.
        settings: settings of the installation.
        kinds: the kinds to reconcile.
        allocator: options of the allocator, which runs if DIJob is one of the kinds.
        autoscaler: options of the autoscaler; None to run without it.
        partitions: number of replicas that share the jobs. If there are several, a status is written only to
            the version of its job on which the decision was based.

    Raises:
        InvalidError: a number is out of range.
    """

    namespaces: NamespaceSelection = field(default_factory=NamespaceSelection)
    workers: int = 16
    settings: InstallationSettings = field(default_factory=InstallationSettings)
    kinds: tuple[Kind, ...] = KINDS
    allocator: AllocatorOptions = field(default_factory=AllocatorOptions)
    autoscaler: "AutoscalerOptions | None" = None
    partitions: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InvalidError(f"{self.workers} workers: at least one is required")
        check_partitions(self.partitions)


def _scaling_loops(
    context: ScalingContext, options: ManagerOptions, recorder: Recorder
) -> Iterator[ScalingLoop]:
    if DI_JOB in options.kinds:
        yield Allocator(context, options.allocator)
    if options.autoscaler is not None:
        # Imported only if it is used, because its algorithm imports numpy, which takes memory.
        from edl_workflows.services.controller.autoscaler import Autoscaler

        yield Autoscaler(context, options.autoscaler, options.kinds, recorder)


class Manager:
    """Runs the loop in its own threads.

    Args:
        cluster: the API server.
        options: see `ManagerOptions`.
        metrics: counts decisions, retries and requests.
        guard: called before each write; raises if this process must not write, or no longer.
        partition: the jobs that it reconciles; by default all.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ManagerOptions,
        metrics: ControllerMetrics,
        guard: Callable[[], None],
        partition: Partition | None = None,
    ) -> None:
        observed = cluster.observed_by(metrics.requested)
        self._options = options
        self._metrics = metrics
        self._partition = partition or Partition()
        self._queue: WorkQueue[JobGroup] = WorkQueue()
        metrics.observe_queue(lambda: len(self._queue))
        metrics.observe_ownership(lambda: self._partition.owns(CLUSTER_WIDE))
        isolated = options.settings.network_policies
        job_kinds = tuple(kind.isolated() if isolated else kind for kind in options.kinds)
        sources = kinds.watched_sources(job_kinds)
        definitions = [kind.source.api for kind in job_kinds]
        self.world = ObservedCluster(
            observed, options.namespaces, sources, definitions, self._enqueue, self._report_failure
        )
        for api in definitions:
            metrics.observe_definition(api.kind, partial(self.world.is_missing, api))
        recorder = Recorder(observed, names.CONTROLLER)
        self._applier = Applier(observed, self.world, recorder, guard, fenced=options.partitions > 1)
        context = ScalingContext(
            observed,
            options.namespaces.scopes,
            self.world,
            options.settings,
            guard,
            self._enqueue,
            metrics,
            self._partition,
        )
        budget = ProgressBudget(context)
        self.ledger = self._account_for(job_kinds)
        self._reconciler = Reconciler(
            self.world,
            self._applier,
            job_kinds,
            options.settings,
            _now,
            metrics,
            lambda: budget.period,
            ledger=self.ledger,
        )
        self._scaling = list(_scaling_loops(context, options, recorder))
        self.world.on_namespace(lambda _namespace, _served: self._ask_scaling())
        take_over = PeriodicLoop("take-over", self._take_over, self.world.wait_synced, RETRY_SECONDS)
        self._failed_take_overs, self._take_over_due = 0, 0.0
        self._partition.on_gone(lambda: take_over.ask(everything=True))
        accounts = PeriodicLoop("accounts", self.ledger.look, self.world.wait_synced, LOOK_SECONDS)
        self._loops: list[ScalingLoop | PeriodicLoop] = [*self._scaling, take_over, accounts]
        if ELASTIC_JOB in options.kinds:
            self._loops.append(budget.loop)
        self._stopped = threading.Event()
        self._threads = list(map(self._make_worker, range(options.workers)))

    def _account_for(self, job_kinds: Sequence[Kind]) -> UsageLedger:
        ledger = UsageLedger(self.world, job_kinds, _now, self._enqueue)
        self._metrics.jobs.observe(self.world, ledger, self._partition.owns, _now)
        return ledger

    def _make_worker(self, index: int) -> threading.Thread:
        return threading.Thread(target=self._work, name=f"worker {index}", daemon=True)

    def start(self) -> None:
        """Start the watches. Workers begin when everything is listed."""
        self.world.start()
        for thread in self._threads:
            thread.start()
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Finish the decisions in progress, then stop. A decision that is not finished in time can no longer
        write once the lease is released.
        """
        deadline = time.monotonic() + STOP_SECONDS
        self._stopped.set()
        self._queue.close()
        for loop in self._loops:
            loop.stop(_left(deadline))
        for thread in self._threads:
            thread.join(_left(deadline))
        self._applier.stop()
        self.world.stop(_left(deadline))

    def waits_for(self) -> list[str]:
        """The resources that must be listed before decisions are made; empty when ready."""
        plurals = dict.fromkeys(scope.resource.plural for scope in self.world.unlisted)
        return [f"not listed yet: {plural}" for plural in plurals]

    def problems(self) -> list[str]:
        """Problems that only a restart of the process solves."""
        if self._stopped.is_set():
            return []
        dead = [f"{thread.name} ended" for thread in self._threads if thread.ident and not thread.is_alive()]
        return dead + [problem for loop in self._loops for problem in loop.problems()]

    @property
    def idle(self) -> bool:
        """Whether no job waits for a worker or is being worked on."""
        return self._queue.idle

    def _work(self) -> None:
        while not self._stopped.is_set() and not self.world.wait_synced(0.5):
            pass  # `wait_synced` already waits
        while (group := self._queue.get()) is not None:
            try:
                with self._partition.acting(str(group)) as owned:
                    if owned and self.world.serves_namespace(group.namespace):
                        self._reconcile(group)
                    else:
                        self._queue.forget(group)
            finally:
                self._queue.done(group)

    def _reconcile(self, group: JobGroup) -> None:
        outcome = self._reconciler.reconcile(group)
        if outcome.failed:
            self._metrics.retried()
            self._queue.retry(group)
        else:
            self._queue.forget(group)
        if outcome.changed:
            # Our writes are in the cache already, so the watch reports no change for them: reconcile again
            # until nothing changes.
            self._queue.add(group)
        if outcome.requeue_after is not None:
            self._queue.add_after(group, outcome.requeue_after)

    def _enqueue(self, group: JobGroup) -> None:
        if self._partition.owns(str(group)):
            self._queue.add(group)

    def _take_over(self, _everything: bool, /) -> float | None:
        """Reconcile the jobs of replicas that are gone, once their last writes are seen."""
        if time.monotonic() < self._take_over_due:
            return None  # the next renewal of the Lease asks again
        gone = self._partition.plan_take_over()
        if not gone:
            return None
        try:
            self.world.refresh()
        except EdlError:
            self._failed_take_overs += 1
            self._take_over_due = time.monotonic() + TAKE_OVER_BACKOFF.delay(self._failed_take_overs)
            raise
        self._failed_take_overs = 0
        self._partition.take_over()
        log.info("took over jobs of lost replicas", slots=sorted(gone))
        self.world.notify_all()
        self._ask_scaling()
        return None

    def _ask_scaling(self) -> None:
        for loop in self._scaling:
            loop.ask()

    def _report_failure(self, scope: Scope, error: EdlError) -> None:
        resource = scope.resource
        if not isinstance(error, NotFoundError):
            log.warning("watch failed; trying again", watch=str(scope), error=str(error))
            return
        definition = f"{resource.plural}.{resource.group}"
        if not self.world.is_missing(resource):
            log.error(
                "the API server does not have this kind: it is older than Kubernetes 1.29; trying again",
                resource=definition,
            )
            return
        message = (
            f"the API server does not have {resource.kind}s, so they are not reconciled: install the "
            f"definitions with `edl crds install {resource.plural}`"
        )
        log.error(message, resource=definition)
        if not self._partition.owns(CLUSTER_WIDE):
            return
        # Events about objects without a namespace are in `default`, where this process may have no rights.
        metadata = {"name": definition, "namespace": self._options.namespaces.scopes[0] or "default"}
        crd = {"apiVersion": CRDS.api_version, "kind": CRDS.kind, "metadata": metadata}
        note = EventNote("DefinitionMissing", message, "Warning")
        self._applier.record_event(crd, note, dt.datetime.now(dt.UTC))
