"""The job as training code sees it: its cluster, its data, its progress, its checkpoints.

A training process belongs to one cluster version. Whatever the master wants of it (save, drain, end) is done between
two steps: `Job.batches` and `Job.shards` see to it by themselves, a loop of another shape calls `Job.between_steps`.
Calls in the loop cost microseconds; the talking is done in background threads.

Free of any framework; TensorFlow's adapter is `edl_workflows.agent.tensorflow`. The members of a collective job step and stop
together: their loop is `edl_workflows.agent.world`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.directives import DirectiveWatch
from edl_workflows.agent.environment import NodeEnvironment, cluster_version, snapshots
from edl_workflows.agent.model_check import ModelCheck
from edl_workflows.agent.patience import patiently
from edl_workflows.agent.reports import Reporter
from edl_workflows.agent.restoring import Restoring
from edl_workflows.agent.saving import Saving
from edl_workflows.agent.shards import Batch, ShardReader, consumed, dataset_params
from edl_workflows.agent.signals import call_on_signals, die_with_parent, dump_stacks_on_signal
from edl_workflows.exceptions import CheckpointError, EdlError
from edl_workflows.protocol.cluster import CheckpointRef, Cluster
from edl_workflows.protocol.datasets import LeaseRequest, Shard
from edl_workflows.protocol.nodes import (
    CHECKPOINT_EXIT_CODE,
    CLUSTER_LOST_EXIT_CODE,
    Directive,
    NodeRef,
    ProcessState,
    ServerChanges,
    ServerReport,
)
from edl_workflows.protocol.sync import SyncJoin

if TYPE_CHECKING:  # they need numpy, which a program that saves by itself may not have
    from edl_workflows.agent.tensors import Loaded
    from edl_workflows.agent.two_stages import TwoStages

TERMINATED = 143
REASON_CHARACTERS = 1024
CLOSE_SECONDS = 5.0
"""What an ending process grants to its last messages."""
CLUSTER_LOST_SECONDS = 30.0
"""How long a process whose cluster broke waits for the master to name the next one before it ends by itself. The master
learns of a lost parameter server from its pod's end, within seconds."""
SETTLE_SECONDS = 1.0
DRAINED_SECONDS = 1.0
"""How often a drained process looks whether it was told to end or to save again."""
LAST_SAVE_SECONDS = 300.0
"""How long the last checkpoint of a training is tried: the model is there, and a full disk can be mended."""
LAST_SAVE_PAUSE = 5.0
MEETING_SECONDS = 2.0
"""How often a process that waits for the others (`Job.sync`, `Job.barrier`) serves the master's wishes."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Job:
    """A training process's view of its job. Made by `connect`.

    Args:
        environment: of the pod.
        version: the cluster version of this process.
        client: to the master.
    """

    def __init__(self, environment: NodeEnvironment, version: int, client: MasterClient) -> None:
        self.environment = environment
        self.version = version
        self._client = client
        self._watch = DirectiveWatch(client, environment.node)
        self._reporter = Reporter(client, self._watch, environment.node, version)
        self._readers: list[ShardReader] = []
        self._cluster: Cluster | None = None
        self._snapshots = snapshots(os.environ)
        self._restoring = Restoring(client, environment.node, version, self._snapshots)
        self.model_check = ModelCheck(client, environment.node, version)
        self._saving = Saving(
            client,
            self._watch,
            self._reporter,
            environment.node,
            version,
            lambda: consumed(self._readers),
            self.model_check.before,
        )
        self._servers: ServerReport | None = None
        self._terminated = False
        self._closed = False
        self._watch.start()
        self._reporter.start()
        self._reporter.state(ProcessState.CONNECTED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.save_last()
        finally:
            self.close()

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
        """Rank of this node in the world of a collective job, else among the nodes of its type."""
        rank = self.cluster.rank_of(self.node.type, self.node.id) if self.cluster.collective else None
        return self.environment.rank if rank is None else rank

    @property
    def cluster(self) -> Cluster:
        """The cluster version of this process. Waits for the master's first word."""
        for known in self._watch.latest.clusters:
            if known.version == self.version:
                self._cluster = known
        while self._cluster is None:
            if self._terminated:
                raise SystemExit(TERMINATED)
            self._watch.wait_for(lambda d: self._names_us(d) or self._terminated)
            if self._names_us(self._watch.latest):
                return self.cluster
        return self._cluster

    @property
    def is_chief(self) -> bool:
        """Whether this node initialises, saves and restores. May change: a lost chief is replaced by another node."""
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
        """Whether this process is the successor of a version that trains."""
        active = self._watch.latest.active
        return active is not None and active.version < self.version

    @property
    def terminated(self) -> bool:
        """Whether this process was told to end."""
        return self._terminated

    @property
    def finished(self) -> bool:
        """Whether the job's data is consumed and all workers have ended."""
        return self._watch.latest.finished

    def wait_until_active(self) -> Cluster:
        """Say that all is prepared, and wait until this process's cluster version is the one that trains.

        Call it when imports are done and the model is built: what comes before costs training nothing, what comes after
        is the stall.

        Raises:
            SystemExit: told to end instead.
        """
        self._reporter.state(ProcessState.READY, self._servers)
        while not self.active:
            if self._terminated:
                self.close()
                raise SystemExit(TERMINATED)
            self._watch.wait_for(lambda _: self.active or self._terminated)
        return self.cluster

    def allow_server_changes(self, changes: ServerChanges, reason: str = "") -> None:
        """Say which changes of parameter servers the model survives. Others are refused; the job's status says so, and why.
        Call it before `wait_until_active`."""
        self._servers = ServerReport(changes=changes, reason=reason[:REASON_CHARACTERS])

    def refuse_version(self, reason: str) -> NoReturn:
        """Say that with the servers of this version, which is only prepared, the model would be another: training goes on with those
        that there are.

        Raises:
            SystemExit: told to end.
        """
        self.allow_server_changes(ServerChanges.SAME_COUNT, reason)
        self._reporter.state(ProcessState.UNFIT, self._servers)
        self._wait_for_end()

    def start_from(self, store: CheckpointStore) -> CheckpointRef | None:
        """The checkpoint to start from: that which the master names, else the newest whole one in the folder. Of the latter the
        master hears, if this is the chief, and the data goes to the position in its manifest.

        Call it when this process's version is active, and before anything is trained in it.

        Args:
            store: of the job.

        Returns:
            A whole checkpoint; None if there is none yet.

        Raises:
            SystemExit: it is damaged. The master was told, and names an older one or gives the job up.
        """
        named = self.cluster.restore
        try:
            found = self._restoring.find(named, store)
            if found is not None and named is None and self.active and self.is_chief:
                self._restoring.tell(found, store)
        except EdlError as error:
            self.cluster_lost(str(error))
        return found

    def checkpoint_damaged(self, checkpoint: CheckpointRef, error: CheckpointError) -> NoReturn:
        """Stop because a checkpoint that looked whole can't be restored; as when `start_from` finds it damaged."""
        self._restoring.report(checkpoint.uri, error)
        self.cluster_lost(str(error))

    def serve(self) -> NoReturn:
        """Say that all is prepared, and wait for the end: what the main thread of a server does.

        Raises:
            SystemExit: told to end.
        """
        self._reporter.state(ProcessState.READY)
        self._wait_for_end()

    def _wait_for_end(self) -> NoReturn:
        while not self._terminated:
            self._watch.wait_for(lambda _: self._terminated)
        self.close()
        raise SystemExit(TERMINATED)

    def shards(self, name: str, *, ahead: int = 4, **params: Any) -> Iterator[Shard]:
        """Shards of a data set until all workers together have consumed it; acknowledged when the loop comes back.

        Args:
            name: of the data set.
            ahead: shards to hold beyond the one being processed.
            params: the other fields of `DatasetParams`: ``size``, ``shard_size``, ``batch_size``, ``num_epochs``,
                ``shuffle``, ``seed``, …; the same in every worker.

        Raises:
            InvalidError, ConflictError: bad parameters, or not those that the data set was registered with.
            JobFailedError: a shard failed too often.
            SystemExit: told to end; all is given back and, by the chief, saved.
        """
        reader = self._reader({"name": name, **params}, ahead)
        return self._noted(reader.shards(), reader)

    def batches(self, name: str, *, ahead: int = 4, **params: Any) -> Iterator[Batch]:
        """As `shards`, cut into batches of ``batch_size`` records: one for each step."""
        reader = self._reader({"name": name, **params}, ahead)
        return self._noted(reader.batches(), reader)

    def report_step(self, step: int, loss: float | None = None, records: int = 0) -> None:
        """Say that a step is done. Cheap; the newest is sent twice a second.

        Args:
            step: the global step.
            loss: of the step, for the job's statistics.
            records: that are done by now, of all epochs; only where the job is collective.
        """
        self._saving.trained = True
        self._reporter.step(step, loss, records)

    def save_with(self, save: Callable[[], CheckpointRef], every_seconds: float | None = None) -> None:
        """How to save a checkpoint. It is called between two steps, on the chief only.

        Args:
            save: saves, and says where and at which step (see `CheckpointStore.publish`).
            every_seconds: also save so often unasked; None: only on request and before the end.
        """
        self._saving.configure(save, every_seconds)

    def save_in_two_stages(self, options: TwoStages) -> None:
        """Save by copying the state into shared memory, from which the agent brings it to storage while training goes on;
        in place of `save_with`. If the training process dies, the agent persists what it had copied last.

        Args:
            options: what to copy, where it goes, and how often.

        Raises:
            InvalidError: the state has a tensor of a type that can't be saved.
        """
        from edl_workflows.agent.two_stages import FirstStage

        first = FirstStage(options, self._snapshots, self.version)
        if self.is_chief:
            first.reserve()
        self._saving.configure_stages(options, first)

    @contextlib.contextmanager
    def state(self, checkpoint: CheckpointRef, store: CheckpointStore) -> Iterator[Loaded]:
        """The state in a checkpoint that was saved in two stages: from this node's shared memory if it is there, else
        from storage. Its tensors are valid within the context.

        Raises:
            CheckpointError: it holds no such state (see `checkpoint_damaged`).
        """
        with self._restoring.state(checkpoint, store) as loaded:
            yield loaded

    def holds(self, checkpoint: CheckpointRef) -> bool:
        """Whether this node's shared memory has a copy of a checkpoint."""
        return self._restoring.holds(checkpoint)

    def compare_model(self, evaluate: Callable[[], float]) -> None:
        """Have a plan that changes the members compared before and after: call it when the variables have their values, and before
        anything is trained. Of a version whose model turns out to be another the old members take over again.

        Args:
            evaluate: gives one number that the variables determine, such as the loss of records that the program chooses, the
                same ones in each process. It must not depend on how many members there are.

        Raises:
            SystemExit: the model is another than before.
        """
        if self.active and self.is_chief and (refused := self.model_check.confirm(evaluate)):
            self.cluster_lost(refused)
        self.model_check.evaluate_with(evaluate)

    @property
    def data_position(self) -> Mapping[str, Any] | None:
        """Which data was consumed when the newest checkpoint was begun, for its manifest (`CheckpointStore.publish`)."""
        return self._saving.position

    def should_checkpoint(self) -> bool:
        """Whether this process is the chief and a checkpoint is due now, requested or periodic.

        `between_steps` looks by itself; this is for loops that prepare something for it.
        """
        return self.active and self._saving.due(self._watch.latest) and self.is_chief

    def checkpoint(self, patience: float = 0.0, *, stored: bool = False) -> CheckpointRef | None:
        """Save now, as `save_with` or `save_in_two_stages` says, together with the data position.

        Args:
            patience: seconds to wait for a master that is away.
            stored: wait until it stands on storage, also where that is done in two stages; else until the master knows it.
                For the last one of a training.

        Returns:
            The checkpoint; None if the master was away or did not want it (a later boundary tries again), or saving
            failed, which the master is told. In two stages it may stand on storage a little later.
        """
        return self._saving.save(patience, self._stopped, stored=stored)

    def save_last(self, *, always: bool = False) -> None:
        """Save what was trained since the newest checkpoint, if this is the chief and it has said how to save; returns when that
        stands on storage and the master knows. Called by itself at the end of a ``with`` block of the job that ended without an
        error. On a closed job it does nothing.

        Args:
            always: also where nothing was trained, unless this process has saved before. Without it that holds only for a job
                with parameter servers, whose model a lost chief may have trained.

        Raises:
            SystemExit: it can't be saved, and was tried for `LAST_SAVE_SECONDS`; or told to end.
        """
        if not self._unsaved(always):
            return
        deadline = time.monotonic() + LAST_SAVE_SECONDS
        while self._saving.save(float("inf"), self._stopped, stored=True, last=True) is None:
            over = self._terminated or self._replaced(self._watch.latest) or time.monotonic() > deadline
            if over or not self._saving.error:
                # Most likely a parameter server went a moment too early.
                why = f"the last checkpoint could not be saved: {self._saving.error or 'its cluster is gone'}"
                self.cluster_lost(why, CHECKPOINT_EXIT_CODE)
            log.warning("the last checkpoint could not be saved, trying again: %s", self._saving.error)
            self._watch.wait_for(lambda d: self._terminated or self._replaced(d), LAST_SAVE_PAUSE)

    def _unsaved(self, always: bool = False) -> bool:
        """Whether this process has to save a last checkpoint; see `save_last`."""
        saving = self._saving
        always = always or (self.active and bool(self.cluster.ps))
        needed = saving.trained or (always and not saving.saved)
        return needed and saving.configured and not self._closed and self.is_chief

    def _stopped(self) -> bool:
        return self._terminated or self._closed

    def between_steps(self) -> None:
        """Do what the master wants done between two steps: save, drain and wait, or end.

        Raises:
            SystemExit: told to end; all is given back and, by the chief, saved.
        """
        directive = self._watch.latest
        quiet = not (self._terminated or directive.drain or directive.save)
        if quiet and self.active and time.monotonic() < self._saving.next_periodic:
            return
        self._serve_wishes()

    def drain(self) -> None:
        """Stop between two steps because another member of the collective version was asked to: wait as long as the master
        wants that, and do what else it wants then.

        Asks the master afresh. It may have called the drain off since, or its word to this node is still on its way.

        Raises:
            SystemExit: told to end.
        """
        try:
            patiently(self._watch.refresh, threading.Event())
        except EdlError as error:
            log.warning("%s", error)
        self.between_steps()

    def sync(self, name: str) -> None:
        """Wait until all workers that ran when the first came here have come here too.

        Raises:
            EdlError: the master refused.
        """
        stop = threading.Event()
        state = patiently(lambda: self._client.join_sync(name, SyncJoin(node=self.node)), stop)
        while state is None or not state.finished:
            self.between_steps()
            state = patiently(lambda: self._client.sync(name, MEETING_SECONDS), stop)

    def barrier(self, name: str) -> None:
        """Wait until somebody opens the barrier (`open_barrier`)."""
        stop = threading.Event()
        state = None
        while state is None or not state.open:
            self.between_steps()
            state = patiently(lambda: self._client.barrier(name, MEETING_SECONDS), stop)

    def open_barrier(self, name: str) -> None:
        """Let all through that wait at a barrier, now and later."""
        patiently(lambda: self._client.open_barrier(name, SyncJoin(node=self.node)), threading.Event())

    def cluster_lost(self, reason: str, code: int = CLUSTER_LOST_EXIT_CODE) -> NoReturn:
        """Stop because the cluster does not answer: most likely a parameter server was lost.

        Waits for the master to name the next cluster version and then to be ended; if it names none, ends the process
        with a code that tells so.

        Args:
            reason: for the log; the last words of the process.
            code: that it ends with.

        Raises:
            SystemExit: always.
        """
        log.warning("cluster version %d is broken: %s", self.version, reason)
        while not (self.terminated or self._closed):
            self._watch.wait_for(lambda d: self._terminated or self._replaced(d), CLUSTER_LOST_SECONDS)
            if not self._replaced(self._watch.latest):
                self.close()
                print(reason, file=sys.stderr, flush=True)  # noqa: T201 - what the master takes for the cause, whatever logs
                raise SystemExit(TERMINATED if self._terminated else code)
            # The next version of a plan may be withdrawn: then nobody would end us.
            self._watch.wait_for(lambda d: self._terminated or not self._replaced(d))
        raise SystemExit(TERMINATED)

    def terminate(self) -> None:
        """End at the next boundary, as on SIGTERM. Callable from any thread, not from a signal handler."""
        self._terminated = True
        self._watch.nudge()

    def close(self) -> None:
        """Give leases back and send the last messages, within seconds. Done at the process's end by itself."""
        if not self._closed:
            self._closed = True
            for reader in self._readers:
                reader.close(CLOSE_SECONDS)
            self._reporter.close(CLOSE_SECONDS)
            self._watch.close()
            self._client.close()

    def _reader(self, fields: dict[str, Any], ahead: int) -> ShardReader:
        params = dataset_params(fields)
        patiently(lambda: self._client.dataset(params), threading.Event())
        reader = ShardReader(
            self._client,
            LeaseRequest(node=self.node, version=self.version, max_shards=max(1, ahead)),
            params,
            may_lease=lambda: self.active and not self._watch.latest.drain and not self._terminated,
            between=self.between_steps,
        )
        self._readers.append(reader)
        return reader

    def _noted(self, parts: Iterator[T], reader: ShardReader) -> Iterator[T]:
        """The same parts; notes what is trained, and saves at the end: once, since training may go on with other data."""
        for part in parts:
            self._saving.trained = True
            yield part
        if reader.trains and self._unsaved():
            self.checkpoint(patience=float("inf"), stored=True)

    def _serve_wishes(self) -> None:
        drained: int | None = None
        while not self._closed:
            directive = self._watch.latest
            if self._terminated:
                self._leave()
            elif not self.active:
                self._watch.wait_for(lambda _: self._terminated or self.active)
            elif directive.drain and drained is None:
                drained = _prepared(directive) if self._drain() else None
                self._saving.drained = drained is not None
            elif self._saving.due(directive) and self.is_chief:
                self.checkpoint()
                if not directive.drain:
                    break  # a step first, even where saving takes longer than its period
            elif directive.drain and drained == _prepared(directive):
                self._watch.wait_for(
                    lambda d, seen=directive: d is not seen or self._terminated,  # type: ignore[misc]
                    DRAINED_SECONDS,
                )
            else:
                # Called off. Also where it is wanted again by now, for another version: members of a collective version
                # that have seen the pause between take a step, and need us for it.
                break
        self._saving.drained = False
        if drained is not None:
            for reader in self._readers:
                reader.resume()

    def _drain(self) -> bool:
        """Settle and say so; False if told to end meanwhile. The switch checkpoint comes after: what is acknowledged by
        then is not processed again."""
        for reader in self._readers:
            while not reader.settle(SETTLE_SECONDS):
                if self._terminated:
                    return False
        self._reporter.state(ProcessState.DRAINED)
        return True

    def _leave(self) -> NoReturn:
        """End after SIGTERM: save if this is the chief of the cluster that trains, give leases back."""
        if self.active and not self._watch.latest.drain and self._saving.configured and self.is_chief:
            self.checkpoint()
        self.close()
        raise SystemExit(TERMINATED)

    def _names_us(self, directive: Directive) -> bool:
        return any(cluster.version == self.version for cluster in directive.clusters)

    def _replaced(self, directive: Directive) -> bool:
        """Whether the master has named a later version than ours."""
        return any(cluster.version > self.version for cluster in directive.clusters)


def _prepared(directive: Directive) -> int:
    """The version that is prepared; 0 if none is."""
    return directive.next.version if directive.next else 0


def connect() -> Job:
    """Connect to the job's master; the environment, which the agent provides, says where it is.

    Call it in the main thread and early: from then on SIGTERM means *save, give back, end at the next boundary*, and
    the process ends with its agent. SIGUSR2 writes the stacks of its threads to stderr, which the agent asks for when
    training stands still.

    Raises:
        InvalidError: not started by ``edl agent run``; the message names the variable that is missing.
    """
    environment = NodeEnvironment.read()
    version = cluster_version(os.environ)
    die_with_parent()
    dump_stacks_on_signal()
    job = Job(environment, version, MasterClient(environment.master, environment.token))
    call_on_signals((signal.SIGTERM,), job.terminate)
    atexit.register(job.close)
    return job
