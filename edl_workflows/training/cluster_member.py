"""A training process as a member of its cluster version: what it knows about the version, and what it reports
about itself."""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NoReturn

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import Directive, NodeRef, ProcessState, ServerChanges, ServerReport
from edl_workflows.training.client import MasterClient
from edl_workflows.training.directives import DirectiveWatch
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.own_copies import trains_own_copy
from edl_workflows.training.reports import Reporter

TERMINATED = 143
"""Exit code after SIGTERM."""
_REASON_CHARACTERS = 1024
CLUSTER_LOST_SECONDS = 30.0
"""Time for which a process waits for the next version after its cluster broke, before it exits by itself. The
master learns of a lost parameter server within seconds, because its pod ends."""

log = logging.getLogger(__name__)


class ClusterMember(ABC):
    """The part of `edl_workflows.training.job.Job` that concerns its cluster version, without data and
    checkpoints.

    Args:
        environment: the pod's environment.
        version: cluster version of this process.
        client: connection to the master.
    """

    def __init__(self, environment: NodeEnvironment, version: int, client: MasterClient) -> None:
        self.environment = environment
        self.process = version
        """The version for which this process was started."""
        self.version = version
        """The version to which it belongs now: later than `process` if it continued in place (`go_on_in`)."""
        self.replica_size = 1
        """Number of processes, with consecutive ranks, that hold the model together; 1 if each process holds
        all of it. Set it before `wait_until_active`."""
        self._client = client
        self._followers: list[Callable[[], None]] = []
        self._watch = DirectiveWatch(client, environment.node, self._notify_followers)
        self._reporter = Reporter(client, self._watch, environment.node, version)
        self._servers: ServerReport | None = None
        self._one_model = False
        self._cluster: TrainingCluster | None = None
        self._terminated = False

    @property
    def name(self) -> str:
        """Name of the ElasticJob."""
        return self.environment.job

    @property
    def node(self) -> NodeRef:
        """Type and id of this node."""
        return self.environment.node

    @property
    def rank(self) -> int:
        """Rank of this node: among the workers of its version in a collective job, otherwise among the nodes
        of its type."""
        rank = self.cluster.rank_of(self.node.type, self.node.id) if self.cluster.collective else None
        return self.environment.rank if rank is None else rank

    @property
    def checkpoint_dir(self) -> str:
        """Folder or URI for checkpoints that was given when the job was submitted.

        Raises:
            InvalidError: none was given.
        """
        if directory := os.environ.get(names.ENV_CHECKPOINT_DIR, ""):
            return directory
        raise InvalidError(
            f"the environment variable {names.ENV_CHECKPOINT_DIR} is not set: name a folder or URI for the "
            "job's checkpoints that all its pods can reach, in the container's `env` in the manifest, or by "
            "`edl run --checkpoints s3://bucket/run`"
        )

    @property
    def cluster(self) -> TrainingCluster:
        """The cluster version of this process. Blocks until the master's directive contains it."""
        for cluster in self._watch.latest.clusters:
            if cluster.version == self.version:
                self._cluster = cluster
        while self._cluster is None:
            if self._terminated:
                raise SystemExit(TERMINATED)
            self._watch.wait_for(lambda d: self._contains_own_version(d) or self._terminated)
            if self._contains_own_version(self._watch.latest):
                return self.cluster
        return self._cluster

    @property
    def is_chief(self) -> bool:
        """Whether this node initializes, saves and restores the model. This may change when a lost chief is
        replaced."""
        cluster = self.cluster
        return (cluster.chief_type, cluster.chief_id) == (self.node.type, self.node.id)

    @property
    def active(self) -> bool:
        """Whether the cluster version of this process is the one that trains."""
        active = self._watch.latest.active
        return active is not None and active.version == self.version

    @property
    def drain_requested(self) -> bool:
        """Whether the master wants this process to stop at the next step boundary."""
        return self.active and self._watch.latest.drain

    @property
    def preparing(self) -> bool:
        """Whether this process belongs to the next version, while an earlier one still trains."""
        active = self._watch.latest.active
        return active is not None and active.version < self.version

    @property
    def terminated(self) -> bool:
        """Whether this process was asked to exit."""
        return self._terminated

    def terminate(self) -> None:
        """Exit at the next step boundary, as on SIGTERM. May be called from any thread, but not from a signal
        handler."""
        self._terminated = True
        self._watch.nudge()

    @property
    def saves_only_part(self) -> bool:
        """Whether this process holds a part of the model that the chief does not hold."""
        return self.replica_size > 1 and not self.is_chief

    @property
    def finished(self) -> bool:
        """Whether the job's data is consumed and all workers have exited."""
        return self._watch.latest.finished

    @property
    def successor(self) -> TrainingCluster | None:
        """The active version, if it is later and this process continues in it in place; else None."""
        return self._successor_in(self._watch.latest)

    @property
    def newest_group_over(self) -> int:
        """The newest version whose members can no longer make a step together; 0 if there is none."""
        directive = self._watch.latest
        if directive.active is None:
            return 0
        return directive.active.version - (not (directive.broken or directive.lost))

    def follow_directive(self, changed: Callable[[], None]) -> None:
        """Call a function now, and in another thread after each change of the master's directive."""
        self._followers.append(changed)
        changed()

    def wait_for_successor(self, reason: str) -> TrainingCluster | None:
        """Wait for the version in which this process continues with the model in memory.

        Args:
            reason: why the present version is over, for the log.

        Returns:
            The version; None if this process is not to continue in it, or if none becomes active in time.

        Raises:
            SystemExit: the process was asked to exit.
        """
        told = self.successor is None
        if told:
            log.warning("the group of cluster version %d is over: %s", self.version, reason)
        self._watch.wait_for(lambda d: d.broken or self._decided(d), CLUSTER_LOST_SECONDS)
        if self._watch.latest.broken:  # the master knows of the loss, and waits for more members
            self._watch.wait_for(self._decided)
        if self._terminated:
            self.leave()
        successor = self.successor
        if told and successor is not None:
            count = len(successor.workers)
            workers = f"{count} worker{'s' * (count > 1)}"
            log.warning("training goes on with %s; a step that was not complete is repeated", workers)
        return successor

    def report_presence(self, waiting: Callable[[], float]) -> None:
        """Report to the master every few seconds that this process is alive, and for how many seconds it has
        waited for other members. `waiting` returns these seconds; it is called in another thread. So the
        master knows which members the others wait for."""
        self._reporter.report_presence(waiting)

    def go_on_in(self, cluster: TrainingCluster) -> None:
        """Make this process belong to another version from now on."""
        log.info("going on in cluster version %d with %d members", cluster.version, len(cluster.workers))
        self.version = cluster.version
        self._reporter.go_on_in(cluster.version)

    def wait_until_active(self, *, in_place: bool = False) -> TrainingCluster:
        """Report that this process is prepared, and wait until its cluster version is the one that trains.

        Call it after the imports, when the model is built: the previous version trains until then, whereas
        everything that runs afterwards prolongs the pause in training.

        Args:
            in_place: whether this process can change its group while it runs.

        Raises:
            SystemExit: the process was asked to exit.
        """
        self._reporter.state(
            ProcessState.READY, self._servers, in_place=in_place, replica_size=self.replica_size
        )
        while not self.active:
            if self._terminated:
                self.close()
                raise SystemExit(TERMINATED)
            self._watch.wait_for(lambda _: self.active or self._terminated)
        return self.cluster

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until `true` returns True or this process disconnects. `true` is called after each change of
        the directive, and after each `wake`."""
        self._watch.wait_for(lambda _: true())

    def wake(self) -> None:
        """Make `wait_until` call its function again. May be called from any thread, but not from a signal
        handler."""
        self._watch.nudge()

    def allow_server_changes(
        self, changes: ServerChanges, reason: str = "", warnings: Sequence[str] = ()
    ) -> None:
        """State which changes of the parameter servers the model survives. The master rejects other changes,
        and the job's status shows `reason`, and in `status.warnings` the `warnings` about the model. Call it
        before `wait_until_active`."""
        self._servers = ServerReport(
            changes=changes,
            reason=reason[:_REASON_CHARACTERS],
            warnings=[warning[:_REASON_CHARACTERS] for warning in warnings],
        )

    def declare_one_model(self) -> None:
        """State that the workers train one model, because the program combines what they learn. The adapters
        do that; a program without one calls it before its first step, else the job's status warns that each
        worker trains a copy of its own."""
        self._one_model = True
        self._reporter.report_own_copy(trained=False)

    def declare_separate_copies(self) -> None:
        """State that each worker trains a copy of the model of its own: the job's status warns of it."""
        self._reporter.report_own_copy(trained=True)

    def expect_records(self, total: int) -> None:
        """State how many records all epochs of a collective job have, so that its status shows how much is
        left; 0: there is no end. The adapters do that."""
        self._reporter.records_total = total

    def _note_training(self) -> None:
        """Note that this process takes data for a model that it saves itself."""
        self._reporter.report_own_copy(trained=not self._one_model and trains_own_copy(self.cluster))

    def refuse_version(self, reason: str) -> NoReturn:
        """Reject the version for which this process is prepared, because the model would differ with its
        parameter servers; training continues with the current servers.

        Raises:
            SystemExit: the process was asked to exit.
        """
        self.allow_server_changes(ServerChanges.SAME_COUNT, reason)
        self._reporter.state(ProcessState.UNFIT, self._servers)
        self._wait_for_end()

    def serve(self) -> NoReturn:
        """Report that this process is ready, and block until it is asked to exit. For the main thread of a
        parameter server.

        Raises:
            SystemExit: the process was asked to exit.
        """
        self._reporter.state(ProcessState.READY)
        self._wait_for_end()

    def _wait_for_end(self) -> NoReturn:
        while not self._terminated:
            self._watch.wait_for(lambda _: self._terminated)
        self.close()
        raise SystemExit(TERMINATED)

    @abstractmethod
    def leave(self) -> NoReturn:
        """Exit as on SIGTERM: save if this is the chief of the active version."""

    @abstractmethod
    def close(self) -> None:
        """Send the last messages and disconnect, within seconds."""

    def give_up(self, reason: str, code: int) -> NoReturn:
        """Exit with a code, and a reason for the job's status.

        Raises:
            SystemExit: always.
        """
        self.close()
        # The master reads the cause from the last line.
        print(reason, file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(code)

    def _successor_in(self, directive: Directive) -> TrainingCluster | None:
        active, node = directive.active, self.node
        if active is None or active.version <= self.version or active.rank_of(node.type, node.id) is None:
            return None
        return active if active.process_of(node.type, node.id) == self.process else None

    def _decided(self, directive: Directive) -> bool:
        """Whether the master has decided if this process continues in place."""
        active = directive.active
        return self._terminated or (active is not None and (active.version > self.version or directive.lost))

    def _notify_followers(self) -> None:
        for changed in self._followers:
            changed()

    def _contains_own_version(self, directive: Directive) -> bool:
        return any(cluster.version == self.version for cluster in directive.clusters)

    def _superseded_by(self, directive: Directive) -> bool:
        """Whether the directive contains a later version than that of this process."""
        return any(cluster.version > self.version for cluster in directive.clusters)
