"""A second copy of the model, in the memory of another node.

Two nodes hold the newest copy, if the training program asks for it: that of the chief, which makes it, and the one that
would be the next chief. So a lost machine takes no copy with it, and the node that goes on has the model at hand.
"""

import contextlib
import http.client
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.agent.peer_server import PeerServer
from edl_workflows.agent.persisting import Persister
from edl_workflows.agent.snapshots import Snapshot, SnapshotFolder
from edl_workflows.exceptions import EdlError, UnavailableError
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.nodes import Directive

REACH_SECONDS = 2.0
"""For an answer of a partner that lives."""
WAIT_SECONDS = 20.0
"""For a newer copy, in one question."""
RETRY_SECONDS = 2.0
MAX_HEADER_BYTES = 64 * 2**20
"""Of a copy: a data position may be long."""

log = logging.getLogger(__name__)


def partner(directive: Directive, environment: NodeEnvironment) -> str:
    """The host whose newest copy this node shall hold, too; "" for most nodes.

    The first worker that is not the chief holds the chief's. The chief itself holds that worker's: a chief that has come
    in place of a lost one has no copy of its own.
    """
    active = directive.active
    if active is None:
        return ""
    workers = [member.address for member in active.workers] or [
        address for _, address in sorted(directive.workers.items())
    ]
    chief = _host(environment, active.chief_type, active.chief_id)
    others = [host for host in map(_host_of, workers) if host != chief]
    me = _host(environment, environment.node.type, environment.node.id)
    if me == chief:
        return others[0] if others else ""
    return chief if others[:1] == [me] else ""


@dataclass(frozen=True)
class Peer:
    """Another node's agent.

    Attributes:
        host: of the node.
        token: of the job.
    """

    host: str
    token: str

    def newest(self, unless: str, wait: float) -> Snapshot | None:
        """The header of its newest copy; None if that is the one of the name `unless`, also after so many seconds.

        Raises:
            UnavailableError: it can't be reached, or talks nonsense.
        """
        with self._ask(f"/v1/snapshots/newest?unless={unless}&wait={wait}", REACH_SECONDS + wait) as answer:
            if answer.status == http.client.NO_CONTENT:
                return None
            try:
                return Snapshot.model_validate_json(answer.read(MAX_HEADER_BYTES))
            except ValidationError as error:
                raise UnavailableError(f"{self.host}: no header of a copy: {error}") from error

    def fetch(self, snapshot: Snapshot, into: memoryview) -> None:
        """Copy the bytes of a copy.

        Raises:
            UnavailableError: it went away, or has written the copy over.
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
            raise UnavailableError(f"{address}: no copy from there: {error!r}") from error
        finally:
            connection.close()


class Peers:
    """Gives this node's copies to its partner, and holds the partner's.

    Args:
        own: this node's copies.
        environment: of the pod.
        client: to the master.
        directive: says who the partner is.
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
        """Begin to give and to take."""
        self._persister.start()
        try:
            listen = addresses.listen(names.AGENT_PORT)
            self._server = PeerServer(self._own, listen, self._environment.token)
            self._server.start()
        except (OSError, EdlError) as error:
            log.warning("no other node can have this node's copies of the model: %s", error)
        threading.Thread(target=self._follow, name="peer-copies", daemon=True).start()

    def close(self, timeout: float) -> None:
        """Stop."""
        self._stop.set()
        if self._server is not None:
            self._server.close()
        self._persister.close(timeout, newest=False)  # the partner lives, for all we know

    def rescue(self) -> None:
        """Training was lost. If the partner is, too, what it had copied last is persisted here."""
        peer = self._partner()
        if peer is not None:
            self._rescued.clear()
            threading.Thread(target=self._rescue, args=(peer,), name="rescue", daemon=True).start()

    @property
    def settled(self) -> bool:
        """Whether what `rescue` began is done."""
        return self._rescued.is_set() and self._persister.wait(0)

    def _rescue(self, peer: Peer) -> None:
        try:
            peer.newest("", 0)  # it lives, and persists its copies itself
        except UnavailableError as error:
            log.warning("%s; its newest copy is persisted from here", error)
            self._persister.save_newest()
        finally:
            self._rescued.set()
            self._wake()

    def _partner(self) -> Peer | None:
        host = partner(self._directive(), self._environment)
        return Peer(host, self._environment.token) if host else None

    def _follow(self) -> None:
        while not self._stop.is_set():
            peer = self._partner()
            try:
                if peer is not None and self._copied(peer):
                    continue
            except UnavailableError as error:
                log.debug("%s", error)
            except Exception as error:  # noqa: BLE001 - whatever the partner says, this thread must go on
                log.warning("%s; no copy of another node's model is held", error)
            self._stop.wait(RETRY_SECONDS)

    def _copied(self, peer: Peer) -> bool:
        """Whether there was a newer copy, which this node has now, too."""
        held = self.copies.newest
        found = peer.newest(held.name if held else "", WAIT_SECONDS)
        if found is None or any(copy.name == found.name for copy in self._own.whole()):
            return found is None  # the partner has it from us
        with self.copies.writing(found.size) as draft:
            if draft is None:
                return False
            peer.fetch(found, draft.bytes)
            # It is the partner that persists it, and this node only if the partner is lost.
            draft.commit(found.model_copy(update={"number": draft.number, "persist": False}))
        log.info("holds a copy of step %d of %s", found.step, peer.host)
        return True


def _host(environment: NodeEnvironment, node_type: str, node_id: int) -> str:
    return _host_of(names.node_address(environment.job, environment.namespace, node_type, node_id, 0))


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
