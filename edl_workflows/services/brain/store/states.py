"""The states of jobs, which masters keep here instead of in ConfigMaps. Each function is part of a
transaction.

A master takes a state over with the next *term*. Only the newest term may write, and each of its snapshots
needs a greater number than the one before: neither a former master nor a request that arrives late replaces a
newer snapshot. Head and document are written and read by masters only.
"""

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, not_, select, true, update
from sqlalchemy.dialects import postgresql, sqlite

from edl_workflows.core.exceptions import ConflictError, EdlError, NotFoundError, UnavailableError
from edl_workflows.core.protocol.brain import (
    NO_STATE,
    ClaimedState,
    JobStateKey,
    StateVersion,
    StateWrite,
    StoredSnapshot,
)
from edl_workflows.services.brain.store.tables import SNAPSHOT, STATE

LARGE_BYTES = 2**16
"""Up to this size a state is stored, whatever the other jobs of its namespace store: an ordinary one has some
10 kB."""
NAMESPACE_BYTES = 2**30
"""While the states of a namespace have more bytes together, no larger one is stored."""


def claim_state(connection: Connection, job: JobStateKey, now: float) -> ClaimedState:
    """Begin the next term of a job's state. Return it with the stored snapshots.

    Args:
        connection: in a write transaction.
        job: whose state.
        now: Unix seconds.
    """
    # Above the terms of snapshots whose state was lost: otherwise they would sort as the newest.
    first_term = select(func.coalesce(func.max(SNAPSHOT.c.term), 0) + 1).where(*_own_snapshots(job))
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    first = make(STATE).values(
        namespace=job.namespace,
        uid=job.uid,
        name=job.name,
        term=first_term.scalar_subquery(),
        number=0,
        heard=now,
    )
    following = {"term": STATE.c.term + 1, "number": 0, "name": job.name, "heard": now}
    keys = list(STATE.primary_key)
    connection.execute(first.on_conflict_do_update(index_elements=keys, set_=following))
    term = connection.execute(select(STATE.c.term).where(*_own_state(job))).scalar_one()
    rows = connection.execute(
        select(SNAPSHOT)
        .where(*_own_snapshots(job))
        .order_by(SNAPSHOT.c.term.desc(), SNAPSHOT.c.number.desc())
    ).all()
    snapshots = [
        # The master finds out itself whether a row is damaged.
        StoredSnapshot.model_construct(
            version=StateVersion(term=row.term, number=row.number), head=row.head, document=row.document
        )
        for row in rows
    ]
    return ClaimedState.model_construct(term=term, snapshots=snapshots)


def write_state(connection: Connection, write: StateWrite, now: float) -> None:
    """Store a snapshot, and delete those that are not needed any more.

    Args:
        connection: in a write transaction.
        write: the snapshot.
        now: Unix seconds.

    Raises:
        ConflictError: another master has taken the state over, or has stored a newer snapshot.
        NotFoundError: no master has taken it over, or it was deleted.
        UnavailableError: it is large, and the namespace's states have too many bytes.
    """
    job, snapshot, version = write.job, write.snapshot, write.snapshot.version
    is_next = and_(STATE.c.term == version.term, STATE.c.number < version.number)
    change = update(STATE).where(*_own_state(job), is_next).values(number=version.number, heard=now)
    if connection.execute(change).rowcount != 1:
        raise _refusal(connection, write)
    size = len(snapshot.document.encode())
    kept = true() if write.before is None else not_(_is_version(write.before))
    connection.execute(delete(SNAPSHOT).where(*_own_snapshots(job), kept))
    if size > LARGE_BYTES:
        _check_room(connection, job, size)
    row = {"namespace": job.namespace, "uid": job.uid, "term": version.term, "number": version.number}
    values = row | {"size": size, "head": snapshot.head, "document": snapshot.document}
    connection.execute(insert(SNAPSHOT).values(values))


def _refusal(connection: Connection, write: StateWrite) -> EdlError:
    job, term = write.job, write.snapshot.version.term
    newest = connection.execute(select(STATE.c.term).where(*_own_state(job))).scalar()
    if newest is None:
        return NotFoundError(f"{NO_STATE} {job.namespace}/{job.name} with the uid {job.uid}")
    if newest == term:
        return ConflictError(f"a newer state of job {job.namespace}/{job.name} is stored")
    return ConflictError(f"another master of job {job.namespace}/{job.name} has taken its state over")


def _check_room(connection: Connection, job: JobStateKey, size: int) -> None:
    sizes = select(func.coalesce(func.sum(SNAPSHOT.c.size), 0)).where(SNAPSHOT.c.namespace == job.namespace)
    stored = int(connection.execute(sizes).scalar_one())
    if stored + size > NAMESPACE_BYTES:
        raise UnavailableError(
            f"the state of job {job.namespace}/{job.name} has {size} bytes, and those of its namespace "
            f"{stored}, of at most {NAMESPACE_BYTES}: delete jobs that have ended, or put some of its jobs "
            "into another namespace"
        )


def _own_state(job: JobStateKey) -> tuple[ColumnElement[bool], ...]:
    return (STATE.c.namespace == job.namespace, STATE.c.uid == job.uid)


def _own_snapshots(job: JobStateKey) -> tuple[ColumnElement[bool], ...]:
    return (SNAPSHOT.c.namespace == job.namespace, SNAPSHOT.c.uid == job.uid)


def _is_version(version: StateVersion) -> ColumnElement[bool]:
    return and_(SNAPSHOT.c.term == version.term, SNAPSHOT.c.number == version.number)
