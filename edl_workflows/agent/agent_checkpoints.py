"""What an agent does for the checkpoints of its node: it persists what the training process has copied into shared memory,
also when that process is gone, and shares it with another node if the training program asks for that.

Where there is no shared memory it does nothing: the training process then saves to storage itself.
"""

import logging
import shutil
import time
from collections.abc import Callable, Mapping

from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.environment import NodeEnvironment, snapshot_folder
from edl_workflows.agent.peers import Peers
from edl_workflows.agent.persisting import Persister
from edl_workflows.agent.snapshots import SnapshotFolder, Stage, take_folder
from edl_workflows.exceptions import CheckpointError
from edl_workflows.jobs import names
from edl_workflows.protocol.nodes import Directive

CLOSE_SECONDS = 4.0
"""How long an ending agent waits for what it is persisting, beyond the time that it had for it: a master that was away is
asked again every 3 s."""
LOST_SECONDS = 60.0
"""How long the next process waits until the copies of a lost version are persisted: they are what it goes on from."""
LOOK_SECONDS = 0.1

log = logging.getLogger(__name__)


class AgentCheckpoints:
    """One agent's.

    Args:
        environment: of the pod.
        client: to the master.
        directive: gives the newest directive.
        wake: called in another thread when something was persisted.
        environ: says where shared memory is.
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
        """For the training process."""
        self._node = environment
        self._client = client
        self._directive = directive
        self._wake = wake
        self._folder: SnapshotFolder | None = None
        self._persister: Persister | None = None
        self._peers: Peers | None = None
        self._lost = 0
        self.waits_until = 0.0
        """When `settled` becomes true at the latest (monotonic seconds)."""
        try:
            self._folder = take_folder(snapshot_folder(environ, environment.node))
            self._persister = Persister(self._folder, client, environment.node, self._look)
        except (CheckpointError, OSError) as error:
            log.warning("%s; checkpoints are saved without it", error)
            return
        self.environment = {names.ENV_SNAPSHOT_DIR: str(self._folder.folder)}

    def start(self) -> None:
        """Begin; what an agent before left in memory comes first."""
        if self._persister is not None:
            self._persister.start()
            self._persister.save_newest()

    def save_newest(self, timeout: float, stopped: Callable[[], bool] = lambda: False) -> None:
        """Persist what the training process, which is gone, had copied last. Waits for it.

        Args:
            timeout: seconds, at most.
            stopped: ends the waiting.
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
        if not done and newest is not None and newest.stage is Stage.MEMORY:
            log.warning("step %d is not yet persisted after %.0f s", newest.step, max(0.0, timeout))

    def settled(self, lost: int) -> bool:
        """Whether the copies of a lost cluster version are persisted; begins that when it is asked first. True also where it
        takes too long: the next version then goes on from an older checkpoint.

        Args:
            lost: the version.
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
        """Stop, and give the memory back."""
        if self._persister is not None and self._folder is not None:
            self._persister.close(CLOSE_SECONDS)
            if self._peers is not None:
                self._peers.close(CLOSE_SECONDS)
            shutil.rmtree(self._folder.folder, ignore_errors=True)

    def _look(self) -> None:
        """The persister is idle; or the training program has asked for peers."""
        assert self._folder is not None
        if self._peers is None and self._folder.shared:
            self._peers = Peers(self._folder, self._node, self._client, self._directive, self._wake)
            self._peers.start()
        self._wake()
