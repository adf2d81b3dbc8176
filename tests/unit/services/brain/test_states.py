"""The states of jobs in Brain's store, on SQLite and PostgreSQL."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import delete, func, select, text

from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.protocol.brain import JobStateKey, StateSnapshot, StateVersion, StateWrite
from edl_workflows.services.brain.observations import JobObservation
from edl_workflows.services.brain.store import database, migrations
from edl_workflows.services.brain.store.records import JobReport
from edl_workflows.services.brain.store.retention import DAY, Retention, RetentionOptions
from edl_workflows.services.brain.store.store import BrainStore
from edl_workflows.services.brain.store.tables import JOB, SNAPSHOT, STATE
from edl_workflows.services.brain.store.writer import Work
from tests.unit.services.brain import support
from tests.unit.services.brain.support import facts, sample

_postgres_folder, database_url, store = support._postgres_folder, support.database_url, support.store

JOB_1 = JobStateKey(uid="uid-1", namespace="team", name="mnist")
NOW = 1_000_000_000.0
HOUR = 3_600.0


def claim(store: BrainStore, job: JobStateKey = JOB_1, now: float = NOW) -> tuple[int, list[str]]:
    """Take a state over. Return the term, and the stored documents, the newest first."""
    claimed = store.claim_state(job, now).result(240)
    return claimed.term, [snapshot.document for snapshot in claimed.snapshots]


def write(
    store: BrainStore,
    term: int,
    number: int,
    before: tuple[int, int] | None = None,
    job: JobStateKey = JOB_1,
    now: float = NOW,
) -> None:
    """Store a snapshot whose document is its version."""
    version = StateVersion(term=term, number=number)
    snapshot = StateSnapshot(version=version, head="{}", document=f"{term}.{number}")
    kept = None if before is None else StateVersion(term=before[0], number=before[1])
    store.write_state(StateWrite(job=job, snapshot=snapshot, before=kept), now).result(240)


def test_the_newest_snapshot_and_the_one_before_are_kept(store: BrainStore) -> None:
    """Each master begins a term, and finds the newest snapshot first, then the one that the writer kept."""
    assert claim(store) == (1, [])
    write(store, 1, 1)
    write(store, 1, 2, before=(1, 1))
    write(store, 1, 4, before=(1, 2))
    assert claim(store) == (2, ["1.4", "1.2"])
    write(store, 2, 1, before=(1, 2))  # 1.4 was damaged
    assert claim(store) == (3, ["2.1", "1.2"])
    other = JOB_1.model_copy(update={"namespace": "other"})
    assert claim(store, other) == (1, [])


def test_only_the_newest_term_and_number_write(store: BrainStore) -> None:
    """What a former master writes is refused, and so is a number that was used or passed. What is stored
    stays."""
    with pytest.raises(NotFoundError, match="no state of job team/mnist with the uid uid-1"):
        write(store, 1, 1)
    claim(store)
    write(store, 1, 5)
    for number in (5, 4):
        with pytest.raises(ConflictError, match="a newer state"):
            write(store, 1, number)
    claim(store)
    with pytest.raises(ConflictError, match="another master of job team/mnist has taken its state over"):
        write(store, 1, 6)
    assert claim(store) == (3, ["1.5"])


def test_a_state_that_was_lost_continues_after_its_snapshots(store: BrainStore) -> None:
    """Without its row, as after a damage, a state gets a term above those of its snapshots, so that what is
    written next is the newest."""
    for _ in range(3):
        claim(store)
    write(store, 3, 1)
    with database.write_transaction(store.engine) as connection:
        connection.execute(delete(STATE))
    assert claim(store) == (4, ["3.1"])
    write(store, 4, 1, before=(3, 1))
    assert claim(store) == (5, ["4.1", "3.1"])


def test_masters_that_claim_at_the_same_time_get_different_terms(database_url: str) -> None:
    """Also from several Brains. All but the last one are fenced off, and what it wrote is whole."""
    stores = [BrainStore(database_url) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        terms = list(pool.map(lambda number: claim(stores[number % 4])[0], range(40)))
        assert sorted(terms) == list(range(1, 41))

        def try_write(term: int) -> bool:
            try:
                write(stores[term % 4], term, 1)
            except ConflictError:
                return False
            return True

        assert [term for term, stored in zip(terms, pool.map(try_write, terms), strict=True) if stored] == [
            40
        ]
    assert claim(stores[0]) == (41, ["40.1"])
    for each in stores:
        each.close()


def count(store: BrainStore) -> tuple[int, int, int]:
    """Rows of jobs, states and snapshots."""
    with database.read_transaction(store.engine) as connection:
        return tuple(  # type: ignore[return-value]  # of three tables
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (JOB, STATE, SNAPSHOT)
        )


def test_the_state_of_a_job_that_is_gone_is_removed(store: BrainStore) -> None:
    """An hour after the monitor has seen that the job does not exist any more. The job's row stays as long as
    its samples."""
    claim(store)
    write(store, 1, 1)
    write(store, 1, 2, before=(1, 1))
    store.record_jobs([JobObservation("uid-1", "ElasticJob", "team", "mnist", "Running")], [], NOW)
    store.record(JobReport(facts(), [sample(NOW)]), NOW)
    for seconds in (0.0, 100 * DAY):  # as long as it exists, whether anybody writes or not
        Retention(store, RetentionOptions(), clock=lambda now=NOW + seconds: now).remove()  # type: ignore[misc]
        assert count(store) == (1, 1, 2)
    store.record_jobs([], ["uid-1"], NOW + 100 * DAY)
    Retention(store, RetentionOptions(), clock=lambda: NOW + 100 * DAY + HOUR - 1).remove()
    assert count(store) == (1, 1, 2)
    Retention(store, RetentionOptions(days=900), clock=lambda: NOW + 100 * DAY + HOUR + 1).remove()
    assert count(store) == (1, 0, 0)
    Retention(store, RetentionOptions(), clock=lambda: NOW + 100 * DAY + HOUR + 1).remove()
    assert count(store) == (0, 0, 0)


def test_a_state_that_is_written_is_not_removed(store: BrainStore) -> None:
    """A master that still writes shows that its job exists, whatever the monitor has recorded."""
    claim(store)
    store.record_jobs([JobObservation("uid-1", "ElasticJob", "team", "mnist", "Running")], [], NOW)
    store.record_jobs([], ["uid-1"], NOW)
    write(store, 1, 1, now=NOW + HOUR)
    Retention(store, RetentionOptions(), clock=lambda: NOW + HOUR + 60).remove()
    assert count(store) == (1, 1, 1)


@pytest.mark.parametrize("snapshots", [0, 1])
def test_a_state_that_is_claimed_meanwhile_is_not_removed(
    snapshots: int, store: BrainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master may take a state over after its rows were chosen and before they are removed."""
    claim(store)
    if snapshots:
        write(store, 1, 1)
    later, terms, call = NOW + 400 * DAY, [], store._writer.call

    def claim_first(work: Work) -> Future[None]:
        monkeypatch.undo()
        terms.append(claim(store, now=later)[0])
        return call(work)

    monkeypatch.setattr(store._writer, "call", claim_first)
    Retention(store, RetentionOptions(), clock=lambda: later).remove()
    assert terms == [2]
    assert count(store) == (0, 1, snapshots)


def test_a_state_that_no_monitor_sees_is_removed_after_a_year(store: BrainStore) -> None:
    """Without a monitor, nobody tells that a job is gone. Its master's reports don't count."""
    claim(store)
    write(store, 1, 1, now=NOW + DAY)
    store.record(JobReport(facts(), [sample(NOW)]), NOW)
    Retention(store, RetentionOptions(), clock=lambda: NOW + 366 * DAY - 1).remove()
    assert count(store) == (1, 1, 1)
    Retention(store, RetentionOptions(), clock=lambda: NOW + 366 * DAY + 1).remove()
    assert count(store) == (0, 0, 0)


def test_a_store_of_the_version_before_keeps_its_rows(database_url: str) -> None:
    """The migration of a database with the first schema adds the states."""
    engine = database.connect(database_url)
    folder = str(Path(migrations.__file__).parent)
    scripts = ScriptDirectory(folder, version_locations=[folder])
    with database.write_transaction(engine) as connection:
        options = {"fn": lambda revision, _: scripts._upgrade_revs("0001", revision)}
        context = MigrationContext.configure(connection, opts=options)
        with Operations.context(context):
            context.run_migrations()
        columns = "namespace, uid, name, kind, phase, scenario, heard, reason, facts, seen"
        values = "'team', 'uid-1', 'mnist', 'ElasticJob', '', 'mnist', 1, '', '', ''"
        connection.execute(text(f"INSERT INTO job ({columns}) VALUES ({values})"))
    engine.dispose()
    with BrainStore(database_url) as store:
        assert claim(store) == (1, [])
        assert count(store) == (1, 1, 0)
