"""From which checkpoint a training process starts, and what the master hears of one that can't be restored."""

import logging
import threading
from pathlib import Path

from edl_workflows.agent.checkpoints import CheckpointStore, verify
from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.patience import patiently
from edl_workflows.exceptions import CheckpointError, EdlError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.nodes import NodeRef
from edl_workflows.protocol.training import CheckpointDamage

REPORTED = 3
"""Damaged checkpoints that the master hears of: as many as it remembers."""
_ERROR_CHARACTERS = 4096

log = logging.getLogger(__name__)


class Restoring:
    """Checkpoints as one training process finds them, for its main thread.

    Args:
        client: to the master.
        node, version: who starts.
    """

    def __init__(self, client: MasterClient, node: NodeRef, version: int) -> None:
        self._client = client
        self._node = node
        self._version = version

    def find(self, named: CheckpointRef | None, store: CheckpointStore) -> CheckpointRef | None:
        """The checkpoint to start from; None if there is none yet.

        The master's word wins: model and data position must belong together. Where it names none, the newest whole one
        in the folder is taken, and the master hears of those that were passed over.

        Args:
            named: what the master says.
            store: of the job.

        Raises:
            CheckpointError: the one that was named is damaged, or none in the folder is whole; the master was told.
        """
        passed_over: list[tuple[Path, CheckpointError]] = []
        try:
            if named is not None:
                return verify(Path(named.uri))
            found = store.newest(lambda path, error: passed_over.append((path, error)))
        except CheckpointError as error:
            self.report(named.uri if named else str(store.folder), error)
            raise
        for path, reason in passed_over[:REPORTED]:
            self.report(str(path), reason, found)
        return found

    def report(self, uri: str, error: CheckpointError, instead: CheckpointRef | None = None) -> None:
        """Tell the master that a checkpoint can't be restored, however long it takes to reach it.

        Args:
            uri: the checkpoint.
            error: what is wrong with it.
            instead: what this process starts from; None: it can't start.
        """
        damage = CheckpointDamage(
            node=self._node,
            version=self._version,
            uri=uri,
            error=str(error)[:_ERROR_CHARACTERS],
            instead=instead,
        )
        try:
            patiently(lambda: self._client.damaged_checkpoint(damage), threading.Event())
        except EdlError as refused:
            log.warning("%s", refused)  # another version has become active; this process will be ended
