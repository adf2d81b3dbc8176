"""Replication of the newest copy of the model to the memory of another node.

If the training program asks for it, two nodes hold the newest copy: the chief, which makes it, and the node
that would be the next chief. So the copy survives the loss of a machine, and the next chief already has the
model.
"""

import contextlib
import http.client
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import Directive
from edl_workflows.services.agent.peer_server import PeerServer
from edl_workflows.services.agent.persisting import Persister
from edl_workflows.training import addresses
from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment

REACH_SECONDS = 2.0
"""Time-out for an answer of a live partner."""
WAIT_SECONDS = 20.0
"""Time that one request waits for a newer copy."""
RETRY_SECONDS = 2.0
MAX_HEADER_BYTES = 64 * 2**20
"""Limit for a copy's header, which may hold a long data position."""

log = logging.getLogger(__name__)


def partner_host(directive: Directive, environment: NodeEnvironment, *, in_parts: bool = False) -> str:
    """The host whose newest copy this node must also hold; "" for most nodes.

    The first worker that is not the chief holds the chief's copy. The chief fetches that worker's newest
    copy, since a chief that replaces a lost one has no copy of its own. If each member copies its own part,
    each member holds the part of the member before it, and the chief that of the last member.
    """
    active = directive.active
    if active is None:
        return ""
    workers = [member.address for member in active.workers] or [
        address for _, address in sorted(directive.workers.items())
    ]
    chief = _host(environment, active.chief_type, active.chief_id)
    peers = [host for host in map(_host_of, workers) if host != chief]
    me = _host(environment, environment.node.type, environment.node.id)
    ring = [chief, *peers]
    if in_parts and len(ring) > 1 and me in ring:
        return ring[ring.index(me) - 1]
    if me == chief:
        return peers[0] if peers else ""
    return chief if peers[:1] == [me] else ""


@dataclass(frozen=True)
class PeerAgent:
    """Another node's agent.

    Attributes:
        host: host of the node.
        token: token of the job.
    """

    host: str
    token: str

    def newest(self, unless: str, wait: float) -> ModelSnapshot | None:
        """The header of the peer's newest copy; None if after `wait` seconds that is still the copy `unless`.

        Raises:
            UnavailableError: the peer can't be reached, or its answer is invalid.
        """
        with self._ask(f"/v1/snapshots/newest?unless={unless}&wait={wait}", REACH_SECONDS + wait) as answer:
            if answer.status == http.client.NO_CONTENT:
                return None
            try:
                return ModelSnapshot.model_validate_json(answer.read(MAX_HEADER_BYTES))
            except ValidationError as error:
                raise UnavailableError(f"{self.host}: not a valid header of a copy: {error}") from error

    def fetch(self, snapshot: ModelSnapshot, into: memoryview) -> None:
        """Fetch the bytes of a copy.

        Raises:
            UnavailableError: the peer disconnected, or has overwritten the copy.
        """
        with self._ask(f"/v1/snapshots/{snapshot.name}", REACH_SECONDS) as answer:
            done = 0
            while done < snapshot.size and (count := answer.readinto(into[done:])):
                done += count
            if done < snapshot.size:
                raise UnavailableError(f"{self.host}: sent {done} of {snapshot.size} bytes of a copy")

    @contextlib.contextmanager
    def _ask(self, path: str, timeout: float) -> Iterator[http.client.HTTPResponse]:
        address = addresses.resolve(f"{self.host}:{names.AGENT_PORT}")
        connection = http.client.HTTPConnection(address, timeout=timeout)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            if answer.status >= http.client.BAD_REQUEST:
                raise UnavailableError(f"{address}: answered {answer.status} to {path}")
            yield answer
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"{address}: fetching a copy failed: {error!r}") from error
        finally:
            connection.close()


class PeerCopies:
    """Serves this node's copies to its partner, and holds the partner's copies.

    Args:
        own: this node's copies.
        environment: the pod's environment.
        client: connection to the master.
        directive: returns the newest directive, which determines the partner.
        wake: called in another thread when `settled` may have changed.
    """

    def __init__(
        self,
        own: SnapshotFolder,
        environment: NodeEnvironment,
        client: MasterClient,
        directive: Callable[[], Directive],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._own = own
        self._wake = wake
        self._environment = environment
        self._directive = directive
        self._stop = threading.Event()
        self._rescued = threading.Event()
        self._rescued.set()
        self.copies = own.of_peer
        self.copies.folder.mkdir(mode=0o700, exist_ok=True)
        self._persister = Persister(self.copies, client, environment.node, wake)
        self._server: PeerServer | None = None

    def start(self) -> None:
        """Start to serve and to fetch."""
        self._persister.start()
        try:
            listen = addresses.listen(names.AGENT_PORT)
            self._server = PeerServer(self._own, listen, self._environment.token)
            self._server.start()
        except (OSError, EdlError) as error:
            log.warning("this node can't serve its copies of the model to other nodes: %s", error)
        threading.Thread(target=self._follow, name="peer-copies", daemon=True).start()

    def close(self, timeout: float) -> None:
        """Stop."""
        self._stop.set()
        if self._server is not None:
            self._server.close()
        self._persister.close(timeout, newest=False)  # the partner is presumably alive

    def rescue(self) -> None:
        """After the loss of a version: if the partner is also lost, persist its last copy on this node."""
        peer = self._partner()
        if peer is not None:
            self._rescued.clear()
            threading.Thread(target=self._rescue, args=(peer,), name="rescue", daemon=True).start()

    @property
    def settled(self) -> bool:
        """Whether the work of `rescue` is done."""
        return self._rescued.is_set() and self._persister.wait(0)

    def _rescue(self, peer: PeerAgent) -> None:
        try:
            peer.newest("", 0)  # the partner is alive, and persists its copies itself
        except UnavailableError as error:
            log.warning("%s; persisting its newest copy on this node", error)
            self._persister.save_newest()
        finally:
            self._rescued.set()
            self._wake()

    def _partner(self) -> PeerAgent | None:
        newest = self._own.newest
        in_parts = newest is not None and newest.parts > 1
        host = partner_host(self._directive(), self._environment, in_parts=in_parts)
        return PeerAgent(host, self._environment.token) if host else None

    def _follow(self) -> None:
        while not self._stop.is_set():
            peer = self._partner()
            try:
                if peer is not None and self._copied(peer):
                    continue
            except UnavailableError as error:
                log.debug("%s", error)
            except Exception as error:  # noqa: BLE001 - the thread must survive any answer
                log.warning("%s; holding no copy of the partner's model", error)
            self._stop.wait(RETRY_SECONDS)

    def _copied(self, peer: PeerAgent) -> bool:
        """Fetch a newer copy if there is one. Returns whether the partner may be asked again at once."""
        held = self.copies.newest
        snapshot = peer.newest(held.name if held else "", WAIT_SECONDS)
        if snapshot is None or any(
            (copy.name, copy.part) == (snapshot.name, snapshot.part) for copy in self._own.whole()
        ):
            return snapshot is None  # the partner got it from this node
        with self.copies.writing(snapshot.size) as draft:
            if draft is None:
                return False
            peer.fetch(snapshot, draft.bytes)
            # The partner persists it; this node does so only if the partner is lost.
            draft.commit(snapshot.model_copy(update={"number": draft.number, "persist": False}))
        log.info("holding a copy of step %d of %s", snapshot.step, peer.host)
        return True


def _host(environment: NodeEnvironment, node_type: str, node_id: int) -> str:
    return _host_of(names.node_address(environment.job, environment.namespace, node_type, node_id, 0))


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
