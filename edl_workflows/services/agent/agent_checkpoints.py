"""What an agent does for the checkpoints of its node: it persists the copies of the model that the training
process makes in shared memory, even after that process has died. It also replicates them to another node if
the training program asks for that.

Without shared memory the agent does nothing: the training process then saves to storage itself.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import Directive
from edl_workflows.services.agent.peers import PeerCopies
from edl_workflows.services.agent.persisting import Persister
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder, SnapshotStage, claim_folder
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment, snapshot_folder

CLOSE_SECONDS = 4.0
"""Extra time for an exiting agent to finish persisting; longer than the interval of 3 s at which calls to an
unreachable master are retried."""
LOST_SECONDS = 60.0
"""Longest time that the start of the next process is delayed until the copies of a lost version are
persisted, so that the process can continue from them."""
LOOK_SECONDS = 0.1

log = logging.getLogger(__name__)


class AgentCheckpoints:
    """Persists and replicates the copies of one node.

    Args:
        environment: the pod's environment.
        client: connection to the master.
        directive: returns the newest directive.
        wake: called in another thread when something has been persisted.
        environ: environment variables, which name the folder in shared memory.
    """

    def __init__(
        self,
        environment: NodeEnvironment,
        client: MasterClient,
        directive: Callable[[], Directive],
        wake: Callable[[], None],
        environ: Mapping[str, str],
    ) -> None:
        self.environment: dict[str, str] = {}
        """Variables for the training process."""
        self._node = environment
        self._client = client
        self._directive = directive
        self._wake = wake
        self._folder: SnapshotFolder | None = None
        self._persister: Persister | None = None
        self._peers: PeerCopies | None = None
        self._lost = 0
        self.waits_until = 0.0
        """Monotonic time after which `settled` returns True in any case."""
        try:
            self._folder = claim_folder(snapshot_folder(environ, environment.node))
            self._persister = Persister(self._folder, client, environment.node, self._look)
        except (CheckpointError, OSError) as error:
            log.warning("%s; checkpoints are saved directly to storage", error)
            return
        self.environment = {names.ENV_SNAPSHOT_DIR: str(self._folder.folder)}

    def start(self) -> None:
        """Start, and first persist the copies that a previous agent left in memory."""
        if self._persister is not None:
            self._persister.start()
            self._persister.save_newest()

    def save_newest(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Persist the last copy of the training process, which has exited, and wait until that is done.

        Args:
            timeout: maximum seconds to wait.
            stopped: ends the wait when it returns True.
        """
        if self._persister is None:
            return
        self._persister.save_newest()
        deadline = time.monotonic() + timeout
        while (
            not (done := self._persister.wait(LOOK_SECONDS)) and time.monotonic() < deadline and not stopped()
        ):
            pass
        newest = self._folder.newest if self._folder is not None else None
        if not done and newest is not None and newest.stage is SnapshotStage.MEMORY:
            log.warning("step %d is still not persisted after %.0f s", newest.step, max(0.0, timeout))

    def settled(self, lost: int) -> bool:
        """Whether the copies of a lost cluster version are persisted. The first call starts to persist them.
        Also True after a time-out: the next version then continues from an older checkpoint.

        Args:
            lost: number of the lost version.
        """
        if self._persister is None:
            return True
        now = time.monotonic()
        if self._lost != lost:
            self._lost, self.waits_until = lost, now + LOST_SECONDS
            self._persister.save_newest()
            if self._peers is not None:
                self._peers.rescue()
        done = self._persister.wait(0) and (self._peers is None or self._peers.settled)
        return done or now >= self.waits_until

    def close(self) -> None:
        """Stop, and free the memory."""
        if self._persister is not None and self._folder is not None:
            self._persister.close(CLOSE_SECONDS)
            if self._peers is not None:
                self._peers.close(CLOSE_SECONDS)
            shutil.rmtree(self._folder.folder, ignore_errors=True)

    def _look(self) -> None:
        """Start replication if the training program has asked for it. The persister calls this when idle."""
        assert self._folder is not None
        if self._peers is None and self._folder.shared:
            self._peers = PeerCopies(self._folder, self._node, self._client, self._directive, self._wake)
            self._peers.start()
        self._wake()
