"""The job as training code sees it: its cluster, data, progress and checkpoints.

A training process belongs to one cluster version. What the master asks of it (save, drain, exit) happens
between two steps: `Job.batches` and `Job.shards` take care of that; any other loop calls `Job.between_steps`.
Calls inside the loop take microseconds, because background threads talk to the master.

Independent of any framework. TensorFlow's adapter is `edl_workflows.training.frameworks.tensorflow`.
Collective jobs, whose members step and stop together, use the loop in
`edl_workflows.training.collective.world`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from edl_workflows.core.exceptions import CheckpointError, EdlError
from edl_workflows.core.protocol.cluster import CheckpointRef, TrainingCluster
from edl_workflows.core.protocol.datasets import LeaseRequest, Shard
from edl_workflows.core.protocol.metrics import check_metrics
from edl_workflows.core.protocol.nodes import (
    CHECKPOINT_EXIT_CODE,
    CLUSTER_LOST_EXIT_CODE,
    Directive,
    ProcessState,
)
from edl_workflows.core.protocol.sync import SyncJoin
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.restoring import CheckpointRestorer, ModelCheck
from edl_workflows.training.checkpoints.saving import CheckpointSaver, SaveWish
from edl_workflows.training.client import MasterClient, call_until_answered
from edl_workflows.training.cluster_member import CLUSTER_LOST_SECONDS, TERMINATED, ClusterMember
from edl_workflows.training.data.shards import Batch, ShardReader, consumed_by_dataset, dataset_params
from edl_workflows.training.directives import prepared_version
from edl_workflows.training.environment import NodeEnvironment, open_snapshots

if TYPE_CHECKING:  # these need numpy, which a program with its own saver may not have
    from edl_workflows.training.checkpoints.tensors import Loaded
    from edl_workflows.training.checkpoints.two_stages import TwoStages

CLOSE_SECONDS = 5.0
"""Time that an exiting process has for its last messages."""
SETTLE_SECONDS = 1.0
DRAINED_SECONDS = 1.0
"""Interval at which a drained process checks whether to exit or to save again."""
LAST_SAVE_SECONDS = 300.0
"""Time during which the last checkpoint of a training is retried, since somebody may free a full disk."""
LAST_SAVE_PAUSE = 5.0
SYNC_WAIT_SECONDS = 2.0
"""Interval at which a process that waits in `Job.sync` or `Job.barrier` follows the master's directive."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Job(ClusterMember):
    """A training process's view of its job. Created by `connect`.

    Args:
        environment: the pod's environment.
        version: cluster version of this process.
        client: connection to the master.
    """

    def __init__(self, environment: NodeEnvironment, version: int, client: MasterClient) -> None:
        super().__init__(environment, version, client)
        self._readers: list[ShardReader] = []
        self._snapshots = open_snapshots(os.environ)
        self._restoring = CheckpointRestorer(client, environment.node, version, self._snapshots)
        self.model_check = ModelCheck(client, environment.node, version)
        self._saving = CheckpointSaver(
            client,
            self._watch,
            self._reporter,
            environment.node,
            version,
            lambda: consumed_by_dataset(self._readers),
            self.model_check.before,
        )
        self._closed = False
        self._at_close: list[Callable[[], None]] = [lambda: self._saving.close(CLOSE_SECONDS)]
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

    def start_from(self, store: CheckpointStore) -> CheckpointRef | None:
        """The checkpoint to start from: the one that the master names, else the newest complete one in the
        store. In the latter case the chief reports it, and the data position goes back to the one in its
        manifest.

        Call it when this process's version is active, before any training.

        Args:
            store: checkpoints of the job.

        Returns:
            A complete checkpoint; None if there is none yet.

        Raises:
            SystemExit: the checkpoint is damaged. The master was told; it names an older one or fails the
                job.
        """
        named = self.cluster.restore
        try:
            checkpoint = self._restoring.find(named, store)
            if checkpoint is not None and named is None and self.active and self.is_chief:
                self._restoring.report_restore(checkpoint, store)
        except EdlError as error:
            self.cluster_lost(str(error))
        return checkpoint

    def checkpoint_damaged(self, checkpoint: CheckpointRef, error: CheckpointError) -> NoReturn:
        """Exit because a checkpoint that looked complete can't be restored, as when `start_from` finds it
        damaged."""
        self._restoring.report(checkpoint.uri, error)
        self.cluster_lost(str(error))

    def shards(self, name: str, *, ahead: int = 4, **params: Any) -> Iterator[Shard]:
        """Shards of a data set until all workers together have consumed it. A shard is acknowledged
        when the loop asks for the next one.

        Args:
            name: of the data set.
            ahead: shards to hold beyond the one being processed.
            params: the other fields of `DatasetParams`: ``size``, ``shard_size``, ``batch_size``,
                ``num_epochs``, ``shuffle``, ``seed``, …; the same in every worker.

        Raises:
            InvalidError, ConflictError: parameters are wrong, or differ from those of its registration.
            JobFailedError: a shard failed too often.
            SystemExit: the process was asked to exit; leases are returned and, on the chief, a checkpoint is
                saved.
        """
        reader = self._reader({"name": name, **params}, ahead)
        return self._tracked(reader.shards(), reader)

    def batches(self, name: str, *, ahead: int = 4, **params: Any) -> Iterator[Batch]:
        """Like `shards`, cut into batches of ``batch_size`` records: one for each step."""
        reader = self._reader({"name": name, **params}, ahead)
        return self._tracked(reader.batches(), reader)

    def report_step(self, step: int, loss: float | None = None, records: int = 0) -> None:
        """Report that a step is done. Cheap; the newest step is sent at most twice a second.

        Args:
            step: the global step.
            loss: of the step, for the job's statistics.
            records: records processed so far in all epochs; collective jobs only.
        """
        self._saving.trained = True
        self._reporter.step(step, loss, records)

    def report(self, step: int, metrics: Mapping[str, object]) -> None:
        """Report metrics of a step, such as ``{"accuracy": 0.98}``: their newest values reach the job's
        status, and pipelines. As cheap as `report_step`, whose call for the same step may come before or
        after. Values that are not finite are left out.

        Raises:
            InvalidError: a name is malformed, a value is no number, or there are more than 20.
        """
        self._saving.trained = True
        self._reporter.step(step, None, 0, check_metrics(metrics))

    def save_with(self, save: Callable[[], CheckpointRef], every_seconds: float | None = None) -> None:
        """Set how a checkpoint is saved. Called between two steps, on the chief only.

        Args:
            save: saves, and returns URI and step (see `CheckpointStore.publish`).
            every_seconds: interval of periodic checkpoints; None: only on request and before the end.
        """
        self._saving.configure(save, every_seconds)

    def save_in_two_stages(self, options: TwoStages) -> None:
        """Save by copying the state to shared memory, from where the agent writes it to storage while
        training continues. Replaces `save_with`. If the training process dies, the agent persists the last
        copy.

        Args:
            options: what to copy, where to store it, and how often.

        Raises:
            InvalidError: the state has a tensor of an unsupported type.
        """
        from edl_workflows.training.checkpoints.two_stages import FirstStage

        first = FirstStage(options, self._snapshots, self.version, self.environment.token)
        self._saving.configure_stages(options, first)
        self.reserve_memory()

    def reserve_memory(self) -> None:
        """Allocate shared memory for copies of the state, in another thread. Called again when the state has
        grown, as by the averages that an optimizer has after its first step."""
        self._saving.reserve_memory(chief=self.is_chief)

    def state(self, checkpoint: CheckpointRef, store: CheckpointStore) -> AbstractContextManager[Loaded]:
        """The state in a checkpoint that was saved in two stages, from this node's shared memory if it is
        there, else from storage. The tensors are valid within the context.

        Raises:
            CheckpointError: the checkpoint holds no such state (see `checkpoint_damaged`).
            InvalidError: this image lacks a package that the state's types need; the checkpoint is intact.
        """
        return self._restoring.state(checkpoint, store)

    def state_parts(
        self, checkpoint: CheckpointRef, store: CheckpointStore
    ) -> AbstractContextManager[Iterator[Loaded]]:
        """Like `state`, the parts of a checkpoint that all members saved together. Those in this node's
        shared memory come first: a member that needs only its own part reads no other."""
        return self._restoring.parts(checkpoint, store)

    def holds(self, checkpoint: CheckpointRef) -> bool:
        """Whether this node's shared memory holds a copy of a checkpoint, or of a part."""
        return self._restoring.holds(checkpoint)

    def compare_model(self, evaluate: Callable[[], float]) -> None:
        """Have the model compared before and after a plan that changes the members. Call it when the
        variables have their values and nothing is trained yet. If the model differs in the new version, the
        old members resume.

        Args:
            evaluate: returns one number that the variables determine, such as the loss of fixed records, the
                same in each process. It must not depend on the number of members.

        Raises:
            SystemExit: the model differs from the one before.
        """
        if self.active and self.is_chief and (refused := self.model_check.confirm(evaluate)):
            self.cluster_lost(refused)
        self.model_check.evaluate_with(evaluate)

    @property
    def data_position(self) -> Mapping[str, Any] | None:
        """The data consumed when the newest checkpoint began (see `CheckpointStore.publish`)."""
        return self._saving.position

    def should_checkpoint(self) -> bool:
        """Whether this process is the chief and a requested or periodic checkpoint is due. For loops that
        prepare something for the checkpoint; `between_steps` checks it, too."""
        return self.active and self._saving.due(self._watch.latest) and self.is_chief

    def checkpoint_wish(self) -> SaveWish:
        """On the chief, what all members should save together after this step (`checkpoint_part`)."""
        return self._saving.wish(self._watch.latest) if self.active and self.is_chief else SaveWish.NOTHING

    def checkpoint_part(self, wish: SaveWish) -> None:
        """Save this member's part of a checkpoint (`TwoStages.part`). All members call it after the same
        step, with the chief's wish. The chief's agent publishes the checkpoint when all parts are there."""
        self._saving.save_part(wish, chief=self.is_chief)

    def checkpoint(self, patience: float = 0.0, *, stored: bool = False) -> CheckpointRef | None:
        """Save now, as set by `save_with` or `save_in_two_stages`, together with the data position. If the
        model is sharded, all members call it after the same step, and each saves its part.

        Args:
            patience: seconds to wait for an unreachable master.
            stored: wait until the checkpoint is on storage, also when saving in two stages; without stages,
                until the master knows it. For the last checkpoint of a training.

        Returns:
            The checkpoint; None if this is not the chief, the master was unreachable or rejected it (a later
            boundary tries again), or saving failed. In two stages it may reach storage a little later.
        """
        if self.saves_only_part:
            self.checkpoint_part(SaveWish.CHECKPOINT)
            return None
        return self._saving.save(patience, self._stopped, stored=stored)

    def save_last(self, *, always: bool = False) -> None:
        """Save what was trained since the newest checkpoint; returns when it is on storage and the master
        knows it. Does nothing where another process saves this one's model, or no way to save is set, or the
        job is closed. A ``with`` block of the job that ends without an error calls it.

        Args:
            always: save also when nothing was trained, unless this process saved before. For a job with
                parameter servers that is the default, because a lost chief may have trained their model.

        Raises:
            SystemExit: saving failed for `LAST_SAVE_SECONDS` (or once, if several processes hold parts
                of the model), the job's cluster is gone, or the process was asked to exit.
        """
        if not self._unsaved(always):
            return
        if self.saves_only_part:
            self.checkpoint_part(SaveWish.CHECKPOINT)
            return
        alone = self.replica_size == 1  # else the others would have to save their parts again, too
        deadline = time.monotonic() + LAST_SAVE_SECONDS * alone
        while self._saving.save(float("inf"), self._stopped, stored=True, last=True) is None:
            if self.successor is not None:
                return  # the chief of that version saves
            over = self._terminated or self._superseded_by(self._watch.latest) or time.monotonic() > deadline
            if over or not self._saving.error:
                # Most likely a parameter server exited a moment too early.
                error = self._saving.error or "its cluster is gone"
                self.cluster_lost(f"the last checkpoint could not be saved: {error}", CHECKPOINT_EXIT_CODE)
            log.warning("the last checkpoint could not be saved, trying again: %s", self._saving.error)
            self._watch.wait_for(lambda d: self._terminated or self._superseded_by(d), LAST_SAVE_PAUSE)

    def _unsaved(self, always: bool = False) -> bool:
        """Whether this process has to save a last checkpoint; see `save_last`."""
        saving = self._saving
        always = always or (self.active and bool(self.cluster.ps))
        needed = saving.trained or (always and not saving.saved)
        saves = self.is_chief or self.saves_only_part
        return needed and saving.configured and not self._closed and saves

    def _stopped(self) -> bool:
        return self._terminated or self._closed or self.successor is not None

    def between_steps(self) -> None:
        """Do what the master asks for between two steps: save, drain and wait, or exit.

        Raises:
            SystemExit: the process was asked to exit; leases are returned and, on the chief, a checkpoint is
                saved.
        """
        directive = self._watch.latest
        quiet = not (self._terminated or directive.drain or directive.save)
        if quiet and self.active and time.monotonic() < self._saving.next_periodic:
            return
        self._follow_directive()

    def drain(self) -> None:
        """Drain between two steps because another member of the collective version was asked to.

        Fetches the directive anew: the master may have cancelled the drain, or its request to this node is
        still on its way.

        Raises:
            SystemExit: the process was asked to exit.
        """
        try:
            call_until_answered(self._watch.refresh)
        except EdlError as error:
            log.warning("%s", error)
        self.between_steps()

    def sync(self, name: str) -> None:
        """Wait until all workers that were running when the first one joined have joined, too.

        Raises:
            EdlError: the master rejected the request.
        """
        self.declare_one_model()  # the workers coordinate, most likely for that
        state = call_until_answered(lambda: self._client.join_sync(name, SyncJoin(node=self.node)))
        while state is None or not state.finished:
            self.between_steps()
            state = call_until_answered(lambda: self._client.sync(name, SYNC_WAIT_SECONDS))

    def barrier(self, name: str) -> None:
        """Wait until some process opens the barrier (`open_barrier`)."""
        self.declare_one_model()
        state = None
        while state is None or not state.open:
            self.between_steps()
            state = call_until_answered(lambda: self._client.barrier(name, SYNC_WAIT_SECONDS))

    def open_barrier(self, name: str) -> None:
        """Release all processes that wait at a barrier, now and later."""
        call_until_answered(lambda: self._client.open_barrier(name, SyncJoin(node=self.node)))

    def cluster_lost(
        self, reason: str, code: int = CLUSTER_LOST_EXIT_CODE, patience: float | None = None
    ) -> NoReturn:
        """Exit because the cluster does not answer, most likely because a parameter server was lost.

        Waits for the master to name the next cluster version and then for the agent to end this process. If
        the master names none, exits with `code`.

        Args:
            reason: for the log, and the process's last output line.
            code: exit code.
            patience: seconds in which the master has to name the next version; None: `CLUSTER_LOST_SECONDS`.

        Raises:
            SystemExit: always.
        """
        patience = CLUSTER_LOST_SECONDS if patience is None else patience
        log.warning("cluster version %d is broken: %s", self.version, reason)
        while not (self.terminated or self._closed):
            self._watch.wait_for(lambda d: self._terminated or self._superseded_by(d), patience)
            if not self._superseded_by(self._watch.latest):
                self.give_up(reason, TERMINATED if self._terminated else code)
            # A plan may withdraw its next version; then nothing would end this process.
            self._watch.wait_for(lambda d: self._terminated or not self._superseded_by(d))
        raise SystemExit(TERMINATED)

    def go_on_in(self, cluster: TrainingCluster) -> None:
        """Belong to another version from now on, also in what is saved."""
        super().go_on_in(cluster)
        self._saving.go_on_in(cluster.version)

    def call_on_close(self, disconnect: Callable[[], None]) -> None:
        """Have `close` call a function, after it has sent the last messages."""
        self._at_close.append(disconnect)

    def close(self) -> None:
        """Return leases and send the last messages, within seconds. Called when the process exits, too."""
        if not self._closed:
            self._closed = True
            for reader in self._readers:
                reader.close(CLOSE_SECONDS)
            self._reporter.close(CLOSE_SECONDS)
            self._watch.close()
            self._client.close()
            for disconnect in self._at_close:
                disconnect()

    def _reader(self, fields: dict[str, Any], ahead: int) -> ShardReader:
        params = dataset_params(fields)
        call_until_answered(lambda: self._client.dataset(params))
        reader = ShardReader(
            self._client,
            LeaseRequest(node=self.node, version=self.version, max_shards=max(1, ahead)),
            params,
            may_lease=lambda: self.active and not self._watch.latest.drain and not self._terminated,
            between=self.between_steps,
        )
        self._readers.append(reader)
        return reader

    def _tracked(self, parts: Iterator[T], reader: ShardReader) -> Iterator[T]:
        """The same parts. Notes that something was trained, and saves once at their end."""
        for part in parts:
            self._saving.trained = True
            if reader.trains and self._saving.configured:
                self._note_training()
            yield part
        if reader.trains and self._unsaved():
            self.checkpoint(patience=float("inf"), stored=True)

    def _follow_directive(self) -> None:
        drained: int | None = None
        while not self._closed and self.successor is None:
            directive = self._watch.latest
            if self._terminated:
                self.leave()
            elif not self.active:
                self._watch.wait_for(lambda _: self._stopped() or self.active)
            elif directive.drain and drained is None:
                drained = prepared_version(directive) if self._drain() else None
                self._saving.drained = drained is not None
            elif self._must_save(directive):
                self.checkpoint()
                if not directive.drain:
                    break  # a step first, even if saving takes longer than its interval
            elif directive.drain and drained == prepared_version(directive):
                self._watch.wait_for(
                    lambda d, seen=directive: d is not seen or self._terminated,  # type: ignore[misc]
                    DRAINED_SECONDS,
                )
            else:
                # The drain was cancelled, or another version asks for a new one. In the latter case members
                # of a collective version that saw the pause in between take a step, which needs this process.
                break
        self._saving.drained = False
        if drained is not None:
            for reader in self._readers:
                reader.resume()

    def _must_save(self, directive: Directive) -> bool:
        due = self._saving.requested if self.saves_only_part else self._saving.due
        return due(directive) and (self.is_chief or self.saves_only_part)

    def _drain(self) -> bool:
        """Settle all readers and report it; False if asked to exit meanwhile. The switch checkpoint comes
        afterwards, so that what is acknowledged by then is not processed again."""
        for reader in self._readers:
            while not reader.settle(SETTLE_SECONDS):
                if self._terminated:
                    return False
        self._reporter.state(ProcessState.DRAINED)
        return True

    def leave(self) -> NoReturn:
        """Exit after SIGTERM: save if this is the active chief and has the whole model, and return leases."""
        alone = self.is_chief and self.replica_size == 1
        if self.active and not self._watch.latest.drain and self._saving.configured and alone:
            self.checkpoint()
        self.close()
        raise SystemExit(TERMINATED)
