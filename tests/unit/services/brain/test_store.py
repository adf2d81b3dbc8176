"""The guarantees of the store on SQLite and PostgreSQL."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import func, select, text

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.protocol.brain import JobEnd, NodeOom
from edl_workflows.services.brain.observations import ChangeObservation, ClusterObservation, JobObservation
from edl_workflows.services.brain.page import queries
from edl_workflows.services.brain.store import database, tables
from edl_workflows.services.brain.store.migrations import migrate
from edl_workflows.services.brain.store.records import JobKey, JobReport, StoredAdvice
from edl_workflows.services.brain.store.retention import Retention, RetentionOptions
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain import support
from tests.unit.services.brain.support import facts, sample

_postgres_folder, database_url, store = support._postgres_folder, support.database_url, support.store
sqlite_store = support.sqlite_store

KEY = JobKey("team", "uid-1")
NOW = 1_000_000.0


def test_the_schema_is_that_of_the_tables(store: BrainStore) -> None:
    """The migrations turn an empty database into the schema that the code uses."""
    with database.read_transaction(store.engine) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, tables.METADATA) == []


def test_migrations_at_the_same_time(database_url: str) -> None:
    """Several processes that start with an empty database create one schema, and later starts change
    nothing."""
    engines = [database.connect(database_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(migrate, engine) for engine in engines]:
            done.result()
    migrate(engines[0])
    with database.read_transaction(engines[0]) as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).all() == [("0002",)]
    for engine in engines:
        engine.dispose()


def test_a_newer_schema_is_left_alone(database_url: str) -> None:
    """A Brain of an older version says so and does not start."""
    BrainStore(database_url).close()
    engine = database.connect(database_url)
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(InvalidError, match="another version"):
        BrainStore(database_url)


def test_what_is_recorded_is_read(store: BrainStore) -> None:
    """Samples are read in order and without duplicates, with the nodes that ran out of memory and the end of
    the job."""
    samples = [sample(NOW + i, step=2**63 - 1 - i) for i in range(5)]
    for _ in range(2):
        store.record(JobReport(facts(), samples[::-1], [NodeOom(node="n", time=NOW)]), NOW)
    store.record(JobReport(facts(), end=JobEnd(time=NOW + 9, completed=False, reason="no memory")), NOW + 9)
    assert store.samples(KEY, 100) == samples
    assert store.samples(KEY, 2) == samples[-2:]
    assert store.ooms(KEY, 9) == [NodeOom(node="n", time=NOW)]
    found = store.job(None, "uid-1")
    assert found is not None
    assert (found.facts, found.reported) == (facts(), NOW + 9)
    assert found.end == JobEnd(time=NOW + 9, completed=False, reason="no memory")


def test_another_sample_of_the_same_moment_changes_nothing(store: BrainStore) -> None:
    """If two samples have the same time, the one that was acknowledged first is kept."""
    store.record(JobReport(facts(), [sample(NOW, step=1)]), NOW)
    store.record(JobReport(facts(), [sample(NOW, step=2)]), NOW)
    assert [one.step for one in store.samples(KEY, 9)] == [1]


def test_connections_that_were_cut(database_url: str) -> None:
    """After PostgreSQL closes its connections, the store reconnects."""
    if database_url.startswith("sqlite"):
        pytest.skip("SQLite has no connections that a server can close")
    other = database.connect(database_url)
    with BrainStore(database_url) as store:
        store.record(JobReport(facts(), [sample(NOW)]), NOW)
        with database.write_transaction(other) as connection:
            mine = text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            assert connection.execute(mine).all()
        store.record(JobReport(facts(), [sample(NOW + 1)]), NOW)
        assert len(store.samples(KEY, 9)) == 2
    other.dispose()


def test_metrics_are_read_as_they_were_recorded(store: BrainStore) -> None:
    """Metrics are read with the sample that they were recorded with; a sample without metrics has none."""
    told = replace(sample(NOW, step=2), metrics={"loss": 0.25, "val/auc": 0.75})
    store.record(JobReport(facts(), [sample(NOW - 15, step=1), told]), NOW)
    points = queries.query_job(store, None, "uid-1", NOW).points

    assert [point.metrics for point in points] == [{}, {"loss": 0.25, "val/auc": 0.75}]
    assert [sample.metrics for sample in store.samples(KEY, 9)] == [point.metrics for point in points]


def test_many_write_at_the_same_time(store: BrainStore) -> None:
    """Each report is stored when its call returns, and none is lost."""

    def write(number: int) -> None:
        key = JobKey("team", f"uid-{number}")
        for i in range(20):
            store.record(JobReport(facts(key.uid), [sample(NOW + i)]), NOW)
            assert len(store.samples(key, 99)) == i + 1

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(write, number) for number in range(8)]:
            done.result()


def test_writes_that_wait_share_a_transaction(store: BrainStore) -> None:
    """Writes that arrive during a transaction form the next one; an invalid row does not affect the
    others."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        begun.set()
        assert go_on.wait(240)

    first: Future[None] = store._writer.call(slow)
    assert begun.wait(240)
    good = [store.submit(JobReport(facts(), [sample(NOW + i)]), NOW) for i in range(30)]
    bad = store.submit(JobReport(facts(), [sample(NOW, step=2**70)]), NOW)  # what the service never lets in
    assert store.waiting == 31
    go_on.set()
    first.result(240)
    for done in good:
        done.result(240)
    with pytest.raises(InvalidError):
        bad.result(240)
    assert len(store.samples(KEY, 99)) == 30


def test_a_store_that_is_behind_says_so(sqlite_store: BrainStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes beyond the limit of the queue are rejected at once, and queued ones are carried out."""
    monkeypatch.setattr("edl_workflows.services.brain.store.writer.MAX_WAITING", 3)
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: object) -> None:
        begun.set()
        assert go_on.wait(240)

    sqlite_store._writer.call(slow)
    assert begun.wait(240)
    waiting = [sqlite_store.submit(JobReport(facts(), [sample(NOW + i)]), NOW) for i in range(3)]
    with pytest.raises(UnavailableError, match="writes are waiting"):
        sqlite_store.submit(JobReport(facts()), NOW)
    go_on.set()
    for done in waiting:
        done.result(240)


def test_a_closed_store_has_written_what_waited(database_url: str) -> None:
    """Closing the store writes what is queued; afterwards it accepts no writes."""
    store = BrainStore(database_url)
    done = [store.submit(JobReport(facts(), [sample(NOW + i)]), NOW) for i in range(50)]
    store.close()
    assert all(one.done() and one.exception() is None for one in done)
    with pytest.raises(UnavailableError, match="closed"):
        store.submit(JobReport(facts()), NOW)
    with BrainStore(database_url) as again:
        assert len(again.samples(KEY, 99)) == 50


def test_a_new_sqlite_database_is_private(tmp_path: Path) -> None:
    """The database's files can't be read by other users of the machine."""
    before = os.umask(0o022)
    try:
        store = BrainStore(f"sqlite:///{tmp_path}/brain.db")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)

    assert "brain.db" in modes
    assert set(modes.values()) == {0o600}


def test_former_jobs(store: BrainStore) -> None:
    """Former jobs are those of the same namespace and scenario that have ended recently or do not report any
    more. They come with their newest samples."""
    end = JobEnd(time=NOW, completed=True)
    rows = {
        "ended": facts("ended"),
        "other-scenario": facts("other-scenario", scenario="x"),
        "other-namespace": facts("other-namespace", namespace="other"),
        "same-scenario": facts("same-scenario", name="renamed", scenario="mnist"),
    }
    for job in rows.values():
        store.record(
            JobReport(job, [sample(NOW - i) for i in range(9)], [NodeOom(node="n", time=1)], end), NOW
        )
    store.record(JobReport(facts("long-ago"), end=JobEnd(time=NOW - 9_999, completed=True)), NOW - 9_999)
    store.record(JobReport(facts("silent")), NOW - 500)
    store.record(JobReport(facts("running")), NOW)

    found = store.former(facts("running"), since=NOW - 1_000, silent=NOW - 100, jobs=9, samples=3)
    assert sorted((one.name, one.completed, len(one.samples)) for one in found) == [
        ("mnist", False, 0),
        ("mnist", True, 3),
        ("renamed", True, 3),
    ]
    assert [one.oom for one in found if one.samples] == [frozenset({"n"})] * 2
    assert max(s.time for one in found for s in one.samples) == NOW
    assert len(store.former(facts("running"), since=NOW - 1_000, silent=NOW - 100, jobs=1, samples=3)) == 1


def test_running_jobs(store: BrainStore) -> None:
    """Running jobs are those that the monitor sees and that have reported recently and not ended, but not
    jobs known only from reports."""
    seen = [
        JobObservation(uid, "ElasticJob", "team", uid, "Running") for uid in ("running", "silent", "over")
    ]
    store.record_jobs(seen, [], NOW)
    store.record(JobReport(facts("running")), NOW)
    store.record(JobReport(facts("invented")), NOW)
    store.record(JobReport(facts("silent")), NOW - 500)
    store.record(JobReport(facts("over"), end=JobEnd(time=NOW, completed=True)), NOW)
    assert [job.key.uid for job in store.running(NOW - 100, 9)] == ["running"]


def test_what_the_monitor_sees(store: BrainStore) -> None:
    """Jobs and plans count as open until they are deleted. What a master has reported about a job is kept."""
    store.record(JobReport(facts(), [sample(NOW)]), NOW)
    jobs = [JobObservation(uid, "ElasticJob", "team", uid, "Running") for uid in ("uid-1", "uid-2")]
    store.record_jobs(jobs, [], NOW)
    store.record_jobs([JobObservation("uid-3", "DIJob", "other", "walk", "Running")], [], NOW)
    assert sorted(store.open_jobs("ElasticJob", "")) == ["uid-1", "uid-2"]
    assert store.open_jobs("DIJob", "team") == []
    store.record_jobs([], ["uid-1", "unknown"], NOW + 1)
    assert store.open_jobs("ElasticJob", "") == ["uid-2"]
    found = store.job(None, "uid-1")
    assert found is not None
    assert found.end == JobEnd(time=NOW + 1, completed=False)
    assert (found.facts, found.seen) == (facts(), jobs[0])

    store.record_plans(
        [ChangeObservation("p1", "team", "plan-1", "mnist"), ChangeObservation("p2", "team", "plan-2", "x")],
        [],
        NOW,
    )
    store.record_plans([], ["p1"], NOW)
    assert store.open_plans("team") == ["p2"]


def test_texts_that_a_database_can_t_hold(store: BrainStore) -> None:
    """Texts of manifests with characters that not all databases support can be stored, and a job's reason is
    read unchanged."""
    text = "a\0b\nc\u00fc" * 1_000
    store.record_jobs(
        [JobObservation("uid-1", "ElasticJob", "team", "mnist", "Failed", text, text, finished=NOW)], [], NOW
    )
    store.record_plans(
        [ChangeObservation("p", "team", "plan", "mnist", (text,), text, "Failed", text)], [], NOW
    )
    found = store.job(None, "uid-1")
    assert found is not None
    assert found.seen is not None
    assert found.seen.reason == text


def test_answers_of_brain(store: BrainStore) -> None:
    """The last plan of a job can be read."""
    assert store.last_advice("team", "mnist") is None
    store.record_advice(StoredAdvice("a", "team", "mnist", NOW, ("worker: 2 nodes",), "first"))
    store.record_advice(StoredAdvice("b", "team", "mnist", NOW + 1, ("worker: 3 nodes",), "second"))
    assert store.last_advice("team", "mnist") == (("worker: 3 nodes",), "second")


def test_old_rows_go(store: BrainStore) -> None:
    """Samples of the last hour are kept, of older ones one in ten minutes, and none after a day."""
    now = 1_000_000_000.0
    options = RetentionOptions(days=1)
    times = [now - i * 60 for i in range(3_000)]
    for start in range(0, len(times), 500):
        store.record(
            JobReport(facts(), [sample(time, workers=0) for time in times[start : start + 500]]), now
        )
    store.record(JobReport(facts("forgotten"), [sample(now - 200_000)]), now - 200_000)
    for time in times[::10]:
        store.record_cluster(ClusterObservation(time))
    store.record_advice(StoredAdvice("old", "team", "mnist", now - 90_000, (), "old"))
    store.record_advice(StoredAdvice("new", "team", "mnist", now - 80_000, (), "new"))

    removal = Retention(store, options, clock=lambda: now)
    assert removal.remove() > 0
    left = [one.time for one in store.samples(KEY, 9_999)]
    assert [time for time in left if time >= now - 3_600] == sorted(times[:61])
    before = [time for time in left if time < now - 3_600]
    assert all(time >= now - 86_400 for time in before)
    assert len({time // 600 for time in before}) == len(before)
    assert len(before) in range(137, 140)
    assert store.job(None, "forgotten") is None
    assert store.last_advice("team", "mnist") == ((), "new")
    with database.read_transaction(store.engine) as connection:
        looks = connection.execute(select(func.count()).select_from(tables.CLUSTER)).scalar_one()
    assert looks in range(143, 152)
    assert removal.remove() == 0


WRONG_URLS = ("mysql://h/db", "brain.db", "sqlite://", "", "postgresql+asyncpg:/x")


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_url_that_is_no_database(url: str) -> None:
    """A URL that names no database is rejected with a message."""
    with pytest.raises(InvalidError):
        database.parse_url(url)


@pytest.mark.parametrize("url", ["postgresql://u:secret-7@127.0.0.1:1/db", "sqlite:////nowhere/brain.db"])
def test_a_database_that_is_away(url: str) -> None:
    """The error does not contain the password."""
    with pytest.raises(UnavailableError) as caught:
        BrainStore(url)
    assert "secret-7" not in str(caught.value)
