"""The store in a Brain: snapshots in its database, outside the cluster's etcd.

A master that loads the state takes the next *term*; Brain refuses what earlier masters still write. The
snapshot before the newest one stays.
"""

import structlog

from edl_workflows.core.exceptions import InvalidError, NotFoundError, UnavailableError
from edl_workflows.core.protocol.brain import (
    MAX_STATE_BYTES,
    NO_STATE,
    ClaimedState,
    JobStateKey,
    StateClaim,
    StateReceipt,
    StateSnapshot,
    StateVersion,
    StateWrite,
    StoredSnapshot,
)
from edl_workflows.services.master.brain import BrainConnection
from edl_workflows.services.master.stores.noted import NotedStore
from edl_workflows.services.master.stores.port import SnapshotHead, StateStore, checksum_of, parse_head

MAX_ANSWER = 4 * MAX_STATE_BYTES + 2**16
"""Bytes of an answer with two snapshots, whose characters are escaped."""

log = structlog.get_logger(__name__)


class BrainStateStore(NotedStore):
    """A job's state in a Brain.

    Args:
        connection: to the Brain.
        job: whose state.
        default: see `NotedStore`.
    """

    interval = 1.0
    capacity = MAX_STATE_BYTES
    kind = "Brain"
    remedy = "name the Brain that has it"

    def __init__(self, connection: BrainConnection, job: JobStateKey, default: StateStore) -> None:
        super().__init__(default)
        self._connection = connection
        self._job = job
        self._term = 0
        self._attempts = 0
        """Writes that were tried. Each has a number of its own: a request whose answer was lost may still
        arrive after the next one, and is refused then."""
        self._claimed: tuple[StoredSnapshot, ...] = ()
        self._newest: StateVersion | None = None
        """The snapshot that was written last, or that was loaded."""

    @property
    def place(self) -> str:
        return f"Brain at {self._address}"

    @property
    def _address(self) -> str:
        job = self._job
        return f"{self._connection.url}, job {job.namespace}/{job.name} with uid {job.uid}"

    def _claim(self) -> None:
        try:
            claimed = self._connection.post(
                "states/claim", StateClaim(job=self._job), ClaimedState, MAX_ANSWER
            )
        except NotFoundError as error:
            raise self._without_states(error) from error
        self._term, self._attempts, self._newest = claimed.term, 0, None
        self._claimed = tuple(claimed.snapshots)

    def _read_newest(self) -> bytes | None:
        snapshots, self._claimed = self._claimed, ()
        for snapshot in snapshots:
            document = snapshot.document.encode()
            head = parse_head(SnapshotHead, snapshot.head, self.place)
            if head is not None and head.matches(document):
                self._newest = snapshot.version
                return document
            log.warning(
                "a stored state is damaged; the one before is used",
                place=self.place,
                term=snapshot.version.term,
                number=snapshot.version.number,
            )
        if snapshots:
            raise InvalidError(
                f"{self.place}: the state is damaged, by its checksum, and so is the one before: restore "
                "Brain's database"
            )
        return None

    def save(self, document: bytes) -> None:
        if len(document) > self.capacity:
            raise InvalidError(
                f"{self.place}: the state has {len(document)} bytes; at most {self.capacity} fit"
            )
        self._claimed = ()  # not needed any more if the state moves here
        self._attempts += 1
        version = StateVersion(term=self._term, number=self._attempts)
        head = SnapshotHead(checksum=checksum_of(document)).model_dump_json(exclude={"writer", "parts"})
        snapshot = StateSnapshot(version=version, head=head, document=document.decode())
        write = StateWrite(job=self._job, snapshot=snapshot, before=self._newest)
        try:
            self._connection.post("states/write", write, StateReceipt)
        except NotFoundError as error:
            if NO_STATE in str(error):
                raise
            raise self._without_states(error) from error
        self._newest = version

    def _without_states(self, error: NotFoundError) -> UnavailableError:
        """For the 404 of an earlier version, or of a proxy while Brain is updated. Brain may come back."""
        return UnavailableError(
            f"Brain at {self._connection.url} keeps no states of jobs: it is of an earlier version, or no "
            f"Brain ({error})"
        )
