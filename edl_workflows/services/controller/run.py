"""Runs the controller as a process."""

import threading
from dataclasses import dataclass, field
from functools import partial

import structlog

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.leader_process import LeaderProcess, ProcessOptions
from edl_workflows.runtime.process.partition import Partition
from edl_workflows.runtime.process.partition_member import PartitionMember
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunOptions(ProcessOptions):
    """How to run a controller.

    Attributes:
        manager: options of the loop.

    Raises:
        InvalidError: replicas share the jobs, but elect no leaders.
    """

    manager: ManagerOptions = field(default_factory=ManagerOptions)

    def __post_init__(self) -> None:
        if self.manager.partitions > 1 and self.election is None:
            raise InvalidError(
                f"{self.manager.partitions} partitions: replicas share the jobs by Leases, so leave "
                "--no-leader-elect out"
            )


class Controller:
    """A manager of a partition, with leader election and endpoints; `run` lasts from its start to its end.

    Args:
        cluster: the API server.
        options: see `RunOptions`.
    """

    def __init__(self, cluster: Cluster, options: RunOptions) -> None:
        self._options = options
        self.metrics = ControllerMetrics()
        partition = Partition()
        member = partial(PartitionMember, slots=options.manager.partitions, partition=partition)
        self._process = LeaderProcess(cluster, options, self.metrics, member)
        self.manager = Manager(cluster, options.manager, self.metrics, self._process.guard, partition)

    def run(self, stop: threading.Event) -> None:
        """Lead and reconcile until `stop` is set.

        Raises:
            LeadershipLostError: another process leads now; this one must end.
            UnavailableError: the endpoints' port is taken.
        """
        self._process.run(stop, self._reconcile, alive=self.manager.problems, ready=self.manager.waits_for)

    def _reconcile(self, stop: threading.Event) -> None:
        self.manager.start()
        log.info("controller started", namespaces=str(self._options.manager.namespaces))
        try:
            self._process.keep(stop)
        finally:
            with self._process.renewing():
                self.manager.stop()
            log.info("controller stopped")
