"""Base of the allocator and the autoscaler: a loop that sizes the jobs of a cluster."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.partition import CLUSTER_WIDE, Partition
from edl_workflows.services.controller.cluster_watches import OnDemandWatches
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster
from edl_workflows.services.controller.periodic_loop import PeriodicLoop


def check_period(loop: str, seconds: float) -> None:
    """Check the time between two decisions of a loop.

    Raises:
        InvalidError: it is not above 0.
    """
    if not 0 < seconds < math.inf:
        raise InvalidError(f"{seconds:g} s between decisions of the {loop}: choose a number above 0")


@dataclass(frozen=True)
class ScalingContext:
    """The environment of the allocator, the autoscaler and the budget of progress.

    Attributes:
        cluster: the API server.
        namespaces: namespaces of the pods that are counted, as `NamespaceSelection.scopes`.
        world: the observed jobs.
        settings: settings of the installation.
        guard: called before each write; raises if this process must not write, or no longer.
        requeue: called with each job that was changed, so that it is reconciled.
        metrics: the controller's metrics.
        partition: the jobs that this process owns. It scales those of all partitions if it owns
            `CLUSTER_WIDE`.
    """

    cluster: Cluster
    namespaces: Collection[str]
    world: ObservedCluster
    settings: InstallationSettings
    guard: Callable[[], None]
    requeue: Callable[[JobGroup], None]
    metrics: ControllerMetrics = field(repr=False)
    partition: Partition = field(default_factory=Partition, repr=False)


class ScalingLoop(ABC):
    """The loop, in a thread of its own. Nodes and pods are watched only while there are jobs to size.

    Args:
        context: see `ScalingContext`.
        name: of the loop, for the log.
        period: seconds until the next round after an unexpected error.
        without: the consequence if nodes and pods can't be watched, for the log.
    """

    freed_room_seconds = math.inf
    """How soon all jobs are sized after a pod has left its node; infinite: with the next period."""

    def __init__(self, context: ScalingContext, name: str, period: float, without: str) -> None:
        self._context = context
        self._cycle = PeriodicLoop(name, self._scale_if_owned, context.world.wait_synced, period)
        self._watches = OnDemandWatches(
            context.cluster,
            context.namespaces,
            lambda: self._cycle.ask(everything=True),
            lambda: self._cycle.ask_within(self.freed_room_seconds),
            without,
        )

    @abstractmethod
    def _scale_jobs(self, everything: bool, /) -> float | None:
        """Decide once, for all jobs or only for new ones, and write the changes.

        Returns:
            Seconds until the next decision about all jobs; None: not before the next request.
        """

    def _scale_if_owned(self, everything: bool, /) -> float | None:
        with self._context.partition.acting(CLUSTER_WIDE) as owned:
            if owned:
                return self._scale_jobs(everything)
        self._watches.rest()
        return None

    def ask(self) -> None:
        """Decide about all jobs soon."""
        self._cycle.ask(everything=True)

    def start(self) -> None:
        """Start. The first round begins when all jobs are listed."""
        self._cycle.start()

    def stop(self, seconds: float) -> None:
        """Stop. Wait at most this long for a round in progress and for the watches."""
        deadline = time.monotonic() + seconds
        self._cycle.stop(seconds)
        self._watches.rest(max(0.0, deadline - time.monotonic()))

    def problems(self) -> list[str]:
        """Problems that only a restart of the process solves."""
        return self._cycle.problems()
