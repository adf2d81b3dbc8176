"""Restoring: finds and loads the checkpoint from which a training process starts, reports damaged
checkpoints, and checks the restored model.

The master chooses the checkpoint. This module decides from where its bytes are read: this node's shared
memory may hold a copy, which is faster to read than the storage.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from edl_workflows.core.exceptions import CheckpointError, EdlError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import CheckpointDamage, CheckpointRestore, Evaluation, ModelReport
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE, Part, state_files
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, read_manifest
from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder, SnapshotStage
from edl_workflows.training.client import MasterClient, call_until_answered

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensors import Loaded

REPORTED = 3
"""Damaged checkpoints to report to the master, which remembers no more than these."""
_ERROR_CHARACTERS = 4096
_PROBLEM_CHARACTERS = 1024

log = logging.getLogger(__name__)


class CheckpointRestorer:
    """Finds and loads the checkpoint that a training process starts from. To be used in its main thread only.

    Args:
        client: connection to the master.
        node: this node.
        version: cluster version of the process.
        memory: the copies of the model in the node's shared memory, including those of a peer; None without
            shared memory.
    """

    def __init__(
        self, client: MasterClient, node: NodeRef, version: int, memory: SnapshotFolder | None = None
    ) -> None:
        self._memory = memory
        self._verified = ""
        self._client = client
        self._node = node
        self._version = version

    def find(self, named: CheckpointRef | None, store: CheckpointStore) -> CheckpointRef | None:
        """The checkpoint to start from; None if there is none yet.

        The checkpoint that the master names is always used, because model and data position must belong
        together. If it names none, the newest complete checkpoint in the store is used, and damaged ones that
        were skipped are reported to the master.

        Args:
            named: the checkpoint that the master names.
            store: checkpoints of the job.

        Raises:
            CheckpointError: the named checkpoint is damaged, or the store has checkpoints but no complete
                one; this has been reported to the master.
        """
        checkpoint = self._find(named, store)
        if checkpoint is not None:
            _announce(f"training continues at step {checkpoint.step}, from {checkpoint.uri}")
        return checkpoint

    def _find(self, named: CheckpointRef | None, store: CheckpointStore) -> CheckpointRef | None:
        passed_over: list[tuple[str, CheckpointError]] = []
        try:
            if named is not None and self.holds(named):
                return named
            if named is not None:
                checkpoint: CheckpointRef | None = store.verify(named)
            else:
                checkpoint = store.newest(lambda uri, error: passed_over.append((uri, error)))
        except CheckpointError as error:
            self.report(named.uri if named else store.place, error)
            raise
        self._verified = checkpoint.uri if checkpoint is not None else ""
        for uri, reason in passed_over[:REPORTED]:
            self.report(uri, reason, checkpoint)
        return checkpoint

    def report_restore(self, checkpoint: CheckpointRef, store: CheckpointStore) -> None:
        """Report the checkpoint that this process starts from, if the master named none, so that the master
        moves the data to the checkpoint's position. Retries until the master answers: without the report,
        data that the restored model has already been trained with would be trained again.

        Raises:
            CheckpointError: the data position in the manifest is damaged; this has been reported to the
                master.
            EdlError: another version has become active; this process will be terminated.
        """
        restore = CheckpointRestore(
            node=self._node,
            version=self._version,
            uri=checkpoint.uri,
            step=checkpoint.step,
            position=store.manifest(checkpoint).position,
        )
        try:
            call_until_answered(lambda: self._client.restored_checkpoint(restore))
        except InvalidError as refused:
            error = CheckpointError(f"{checkpoint.uri}/{MANIFEST}: {refused}")
            self.report(checkpoint.uri, error)
            raise error from refused

    def holds(self, checkpoint: CheckpointRef) -> bool:
        """Whether this node's shared memory holds a copy of a checkpoint."""
        return bool(self._copies_of(checkpoint))

    @contextlib.contextmanager
    def state(self, checkpoint: CheckpointRef, store: CheckpointStore) -> Iterator[Loaded]:
        """See `Job.state`."""
        from edl_workflows.training.checkpoints.tensor_parts import assemble

        with self.parts(checkpoint, store) as parts:
            yield assemble(list(parts), checkpoint.uri)

    @contextlib.contextmanager
    def parts(self, checkpoint: CheckpointRef, store: CheckpointStore) -> Iterator[Iterator[Loaded]]:
        """See `Job.state_parts`."""
        with contextlib.ExitStack() as reading:
            yield self._load_parts(checkpoint, store, reading)

    def _load_parts(
        self, checkpoint: CheckpointRef, store: CheckpointStore, reading: contextlib.ExitStack
    ) -> Iterator[Loaded]:
        """The parts in shared memory, then all other parts from storage."""
        from edl_workflows.training.checkpoints import tensors

        files_in_memory: set[str] = set()
        count = 0
        for folder, copy in self._copies_of(checkpoint):
            part = Part(copy.part, copy.parts)
            block = reading.enter_context(folder.reading(copy.number))
            if block is None or part.file in files_in_memory:
                continue
            with contextlib.suppress(CheckpointError):  # storage may still have it undamaged
                loaded = tensors.read_state(block, checkpoint.uri)
                files_in_memory.add(part.file)
                count = part.count
                log.info("restoring step %d from shared memory (%s)", checkpoint.step, part.file)
                yield loaded
        if len(files_in_memory) == count > 0:
            return
        if checkpoint.uri != self._verified:  # it was chosen from memory, and not verified in storage
            store.verify(checkpoint)
            self._verified = checkpoint.uri
        local = store.local(checkpoint)
        for file in state_files(read_manifest(local)) or [STATE_FILE]:
            if file not in files_in_memory:
                yield tensors.load(local / file)

    def _copies_of(self, checkpoint: CheckpointRef) -> list[tuple[SnapshotFolder, ModelSnapshot]]:
        folders = [self._memory, self._memory.of_peer] if self._memory is not None else []
        return [
            (folder, copy)
            for folder in folders
            for copy in folder.whole()
            if copy.ref == checkpoint and copy.stage is not SnapshotStage.FAILED
        ]

    def report(self, uri: str, error: CheckpointError, instead: CheckpointRef | None = None) -> None:
        """Report to the master that a checkpoint can't be restored; retries until the master answers.

        Args:
            uri: URI of the checkpoint.
            error: what is wrong with the checkpoint.
            instead: the checkpoint from which this process starts instead; None if it can't start.
        """
        damage = CheckpointDamage(
            node=self._node,
            version=self._version,
            uri=uri,
            error=str(error)[:_ERROR_CHARACTERS],
            instead=instead,
        )
        try:
            call_until_answered(lambda: self._client.damaged_checkpoint(damage))
        except EdlError as refused:
            log.warning("%s", refused)  # another version has become active; this process will be terminated


def _announce(line: str) -> None:
    """Log a line for the user, whose program need not have set logging up."""
    if log.hasHandlers() and log.isEnabledFor(logging.INFO):
        log.info("%s", line)
    else:
        sys.stderr.write(f"edl: {line}\n")
        sys.stderr.flush()


class ModelCheck:
    """Evaluates the model before and after a switch of versions, and asks the master whether the results
    agree.

    To be called in the main thread of a training process only.

    Args:
        client: connection to the master.
        node: this node.
        version: cluster version of the process.
    """

    def __init__(self, client: MasterClient, node: NodeRef, version: int) -> None:
        self._client = client
        self._node = node
        self._version = version
        self._evaluate: Callable[[], float] | None = None
        self._fingerprint: Callable[[], Mapping[str, str]] = dict

    def evaluate_with(
        self, evaluate: Callable[[], float], fingerprint: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        """Set how to evaluate the model before it is saved for a plan. `confirm` must evaluate the restored
        model in the same way.

        Args:
            evaluate: returns one number that depends only on the variables, such as the loss of fixed
                records, so that it stays the same until the next step. Raises an error if there is no such
                number.
            fingerprint: returns a digest of each variable.
        """
        self._evaluate = evaluate
        self._fingerprint = fingerprint

    def before(self) -> Evaluation | None:
        """Evaluate the model now; None if the program did not call `evaluate_with`."""
        if self._evaluate is None:
            return None
        evaluation = run_evaluation(self._evaluate)
        return evaluation.model_copy(update={"fingerprints": _run_fingerprint(self._fingerprint)})

    def confirm(
        self, evaluate: Callable[[], float], fingerprint: Callable[[], Mapping[str, str]] = dict
    ) -> str:
        """Report the evaluation of the restored model, before any training in this version. Called by the
        chief. Retries until the master answers.

        Args:
            evaluate: see `evaluate_with`.
            fingerprint: see `evaluate_with`.

        Returns:
            Why this version may not train, because its model differs; "" if it may.
        """
        fingerprints = _run_fingerprint(fingerprint)  # first, in case that evaluating changes a variable
        evaluation = run_evaluation(evaluate).model_copy(update={"fingerprints": fingerprints})
        report = ModelReport(node=self._node, version=self._version, evaluation=evaluation)
        try:
            verdict = call_until_answered(lambda: self._client.report_model(report))
        except EdlError as refused:
            log.warning("%s", refused)  # another version has become active; this process will be terminated
            return ""
        return verdict.refused if verdict is not None else ""


def _run_fingerprint(fingerprint: Callable[[], Mapping[str, str]]) -> dict[str, str]:
    """The digests that `fingerprint` returns; none if it fails."""
    try:
        return dict(fingerprint())
    except Exception as error:  # noqa: BLE001 - any exception of the program is the answer
        log.warning("the variables can't be compared: %r", error)
        return {}


def run_evaluation(evaluate: Callable[[], float]) -> Evaluation:
    """The number that `evaluate` returns, or why there is none."""
    try:
        value = float(evaluate())
    except Exception as error:  # noqa: BLE001 - any exception of the program is the answer
        return Evaluation(problem=(str(error) or repr(error))[:_PROBLEM_CHARACTERS])
    if not math.isfinite(value):
        return Evaluation(problem=f"the evaluation returned {value}")
    return Evaluation(value=value)
