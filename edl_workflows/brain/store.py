"""The store: what masters report and the monitor sees goes in, what plans are made from comes out. For any thread.

Methods that write return when the rows are durable; `submit` gives a future instead.
Whatever stands in the database that can't be read is left out and counted, never raised.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    func,
    or_,
    select,
    true,
    update,
)

from edl_workflows.brain import database, tables
from edl_workflows.brain.seen import ClusterSample, JobSeen, PlanSeen
from edl_workflows.brain.tables import CLUSTER, JOB, OOM, PLAN, SAMPLE, Upsert
from edl_workflows.brain.writer import Rows, Writer
from edl_workflows.exceptions import EdlError
from edl_workflows.jobs.view import JobPhase
from edl_workflows.protocol.brain import JobEnd, JobFacts, NodeOom
from edl_workflows.scaling.brain.request import JobRecord
from edl_workflows.scaling.samples import NodeUsage, Sample

log = structlog.get_logger(__name__)

Value = TypeVar("Value")
Namespaces = Collection[str] | None
"""Whose rows somebody may see; None: all."""

_NODES = TypeAdapter(tuple[NodeUsage, ...])
_SEEN_CLUSTER = TypeAdapter(ClusterSample)
_SEEN_JOB = TypeAdapter(JobSeen)
_UNSAID = {
    "phase": "",
    "scenario": "",
    "created": None,
    "reported": None,
    "ended": None,
    "completed": None,
    "reason": "",
    "gone": None,
    "facts": "",
    "seen": "",
}


@dataclass(frozen=True, order=True)
class JobKey:
    """Names a job for ever."""

    namespace: str
    uid: str


@dataclass(frozen=True)
class Report:
    """What a master said that is to be kept: only what can be believed."""

    job: JobFacts
    samples: Sequence[Sample] = ()
    ooms: Sequence[NodeOom] = ()
    end: JobEnd | None = None


@dataclass(frozen=True)
class StoredJob:
    """What is known of a job beside its samples.

    Attributes:
        facts: of its master's newest report.
        seen: of the monitor's last look.
        reported: when its master reported last.
    """

    key: JobKey
    facts: JobFacts | None
    seen: JobSeen | None
    reported: float | None
    end: JobEnd | None


@dataclass(frozen=True)
class Answer:
    """A plan that Brain answered, for people.

    Attributes:
        id: unique.
        changes: a line each.
        reason: why.
    """

    id: str
    namespace: str
    job: str
    time: float
    changes: tuple[str, ...]
    reason: str


class Store:
    """One database, with its schema brought up to date.

    Args:
        database_url: see `database.parse`.

    Raises:
        InvalidError: the URL, or the schema's version, is not known.
        UnavailableError: the database does not answer.
    """

    def __init__(self, database_url: str) -> None:
        self.engine: Engine = database.connect(database_url)
        try:
            database.migrate(self.engine)
        except EdlError:
            self.engine.dispose()
            raise
        self._writer = Writer(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what waits, and disconnect."""
        self._writer.close()
        self.engine.dispose()

    @property
    def waiting(self) -> int:
        """Writes that wait."""
        return self._writer.waiting

    def check(self) -> None:
        """See that the database answers.

        Raises:
            UnavailableError: it does not.
        """
        self._read(select(JOB.c.uid).limit(1))

    # --- Writing ---

    def submit(self, report: Report, now: float) -> Future[None]:
        """Keep a report; see `writer.Writer.write`."""
        return self._writer.write(_report_rows(report, now))

    def record(self, report: Report, now: float) -> None:
        """Keep a report.

        Raises:
            UnavailableError: the database does not answer, or is too slow.
        """
        self.submit(report, now).result()

    def record_cluster(self, sample: ClusterSample) -> None:
        """Keep what the monitor saw of the cluster.

        Raises:
            UnavailableError: as `record`.
        """
        row = {"time": sample.time, "sample": json.dumps(asdict(sample))}
        self._writer.write({tables.NEW_CLUSTER: [row]}).result()

    def record_jobs(self, jobs: Collection[JobSeen], gone: Collection[str], now: float) -> None:
        """Keep what the monitor saw of jobs, and that the objects of others are gone, in one transaction.

        Raises:
            UnavailableError: as `record`.
        """
        rows = [_seen_row(job, now) for job in jobs]
        there = (JOB.c.uid.in_(gone), JOB.c.seen != "", JOB.c.gone.is_(None))
        ended = update(JOB).where(*there).values(gone=now, ended=func.coalesce(JOB.c.ended, now))
        self._write_seen(tables.SEEN_JOB, rows, ended)

    def record_plans(self, plans: Collection[PlanSeen], gone: Collection[str], now: float) -> None:
        """The same of ScalePlans.

        Raises:
            UnavailableError: as `record`.
        """
        rows = [_plan_row(plan, now) for plan in plans]
        ended = update(PLAN).where(PLAN.c.id.in_(gone), PLAN.c.name != "", PLAN.c.gone.is_(None))
        self._write_seen(tables.SEEN_PLAN, rows, ended.values(gone=now))

    def _write_seen(self, upsert: Upsert, rows: Sequence[Mapping[str, Any]], ended: Update) -> None:
        def work(connection: Connection) -> None:
            if rows:
                connection.execute(upsert.statement(connection.dialect), rows)
            connection.execute(ended)

        self._writer.call(work).result()

    def record_answer(self, answer: Answer) -> None:
        """Keep what Brain answered.

        Raises:
            UnavailableError: as `record`.
        """
        row = asdict(answer) | {
            "name": "",
            "phase": "",
            "message": "",
            "changes": json.dumps(answer.changes),
            "finished": None,
            "gone": None,
        }
        self._writer.write({tables.NEW_PLAN: [row]}).result()

    def remove(self, table: Table, which: ColumnElement[bool], most: int) -> int:
        """Remove at most so many of these rows. Returns how many are gone.

        Raises:
            UnavailableError: as `record`.
        """
        keys = list(table.primary_key)
        with database.reading(self.engine) as connection:  # which may take long, and no writer waits for it
            rows = [
                dict(row) for row in connection.execute(select(*keys).where(which).limit(most)).mappings()
            ]
        if rows:
            removal = delete(table).where(*(column == bindparam(column.name) for column in keys))
            self._writer.call(lambda connection: connection.execute(removal, rows)).result()
        return len(rows)

    # --- Reading ---

    def open_jobs(self, kind: str, namespace: str) -> list[str]:
        """Uids of the jobs that the monitor saw and that are not gone: of a kind, in one namespace or in all ("")."""
        wanted = select(JOB.c.uid).where(JOB.c.kind == kind, JOB.c.seen != "", JOB.c.gone.is_(None))
        return [
            row.uid for row in self._read(wanted.where(JOB.c.namespace == namespace) if namespace else wanted)
        ]

    def open_plans(self, namespace: str) -> list[str]:
        """The same of ScalePlans."""
        wanted = select(PLAN.c.id).where(PLAN.c.name != "", PLAN.c.gone.is_(None))
        return [
            row.id for row in self._read(wanted.where(PLAN.c.namespace == namespace) if namespace else wanted)
        ]

    def job(self, namespaces: Namespaces, uid: str) -> StoredJob | None:
        """A job; where several namespaces have one of this uid, that which was heard of last."""
        wanted = select(JOB).where(JOB.c.uid == uid, within(JOB.c.namespace, namespaces))
        rows = self._read(wanted.order_by(JOB.c.heard.desc()).limit(1))
        return stored_job(rows[0]) if rows else None

    def samples(self, key: JobKey, newest: int) -> list[Sample]:
        """A job's newest samples, oldest first."""
        mine = (SAMPLE.c.namespace == key.namespace, SAMPLE.c.uid == key.uid)
        wanted = select(SAMPLE).where(*mine).order_by(SAMPLE.c.time.desc()).limit(newest)
        rows = self._read(wanted)
        return [sample for row in reversed(rows) if (sample := sample_of_row(row)) is not None]

    def ooms(self, key: JobKey, newest: int) -> list[NodeOom]:
        """Nodes of a job that ran out of memory, oldest first."""
        mine = (OOM.c.namespace == key.namespace, OOM.c.uid == key.uid)
        wanted = select(OOM).where(*mine).order_by(OOM.c.time.desc()).limit(newest)
        rows = self._read(wanted)
        return [NodeOom(node=row.node, time=row.time) for row in reversed(rows)]

    def former(self, job: JobFacts, since: float, silent: float, jobs: int, samples: int) -> list[JobRecord]:
        """Jobs of the same namespace and scenario that have ended, or fell silent.

        Args:
            job: which is left out itself.
            since: Unix seconds; none that ended, or was heard of last, before.
            silent: Unix seconds; a job that reported last before is over, whoever knows how.
            jobs: at most so many, the latest.
            samples: at most so many of each, the newest.
        """
        wanted = (
            select(JOB.c.uid, JOB.c.name, JOB.c.completed)
            .where(JOB.c.namespace == job.namespace, JOB.c.scenario == scenario_of(job))
            .where(JOB.c.uid != job.uid, JOB.c.reported.is_not(None))
            .where(
                or_(JOB.c.ended >= since, and_(JOB.c.ended.is_(None), JOB.c.reported.between(since, silent)))
            )
            .order_by(JOB.c.reported.desc())
            .limit(jobs)
        )
        with database.reading(self.engine) as connection:
            found = connection.execute(wanted).all()
            uids = [row.uid for row in found]
            rank = func.row_number().over(partition_by=SAMPLE.c.uid, order_by=SAMPLE.c.time.desc())
            mine = (SAMPLE.c.namespace == job.namespace, SAMPLE.c.uid.in_(uids))
            ranked = select(SAMPLE, rank.label("rank")).where(*mine).subquery()
            rows = connection.execute(select(ranked).where(ranked.c.rank <= samples)).all()
            ooms = connection.execute(
                select(OOM.c.uid, OOM.c.node).where(OOM.c.namespace == job.namespace, OOM.c.uid.in_(uids))
            ).all()
        return [
            JobRecord(
                row.name,
                bool(row.completed),
                tuple(s for one in rows if one.uid == row.uid and (s := sample_of_row(one)) is not None),
                frozenset(one.node for one in ooms if one.uid == row.uid),
            )
            for row in found
        ]

    def running(self, since: float, most: int) -> list[StoredJob]:
        """Jobs that have not ended and whose masters reported lately.

        Args:
            since: Unix seconds of the report.
            most: jobs, the latest.
        """
        wanted = select(JOB).where(JOB.c.reported >= since, JOB.c.ended.is_(None))
        rows = self._read(wanted.order_by(JOB.c.reported.desc()).limit(most))
        return [stored_job(row) for row in rows]

    def cluster(self, since: float) -> ClusterSample | None:
        """The newest look at the cluster, if it is not older."""
        wanted = select(CLUSTER).where(CLUSTER.c.time >= since).order_by(CLUSTER.c.time.desc()).limit(1)
        rows = self._read(wanted)
        return cluster_sample(rows[0]) if rows else None

    def last_answer(self, namespace: str, job: str) -> tuple[tuple[str, ...], str] | None:
        """Changes and reason of what Brain answered last for a job; None if it never did."""
        wanted = select(PLAN).where(PLAN.c.namespace == namespace, PLAN.c.job == job, PLAN.c.name == "")
        rows = self._read(wanted.order_by(PLAN.c.time.desc()).limit(1))
        return (lines(rows[0].changes), rows[0].reason) if rows else None

    def _read(self, wanted: Select[Any]) -> Sequence[Row[Any]]:
        with database.reading(self.engine) as connection:
            return connection.execute(wanted).all()


def within(column: ColumnElement[str], namespaces: Namespaces) -> ColumnElement[bool]:
    """Only rows of these namespaces."""
    return true() if namespaces is None else column.in_(sorted(namespaces))


def scenario_of(job: JobFacts) -> str:
    """Which jobs tell about this one; its name where it says nothing."""
    return job.scenario or job.name


def stored_job(row: Row[Any]) -> StoredJob:
    """A job's row as a value."""
    end = None
    if row.ended is not None:
        end = JobEnd(time=row.ended, completed=bool(row.completed), reason=row.reason)
    key = JobKey(row.namespace, row.uid)
    facts = _readable(JobFacts.model_validate_json, row.facts)
    seen = _readable(_SEEN_JOB.validate_json, row.seen)
    return StoredJob(key, facts, seen, row.reported, end)


def cluster_sample(row: Row[Any]) -> ClusterSample | None:
    """A look at the cluster as a value; None of one that can't be read."""
    return _readable(_SEEN_CLUSTER.validate_json, row.sample)


def lines(text: str) -> tuple[str, ...]:
    """A stored list of lines."""
    found = _readable(TypeAdapter(tuple[str, ...]).validate_json, text)
    return found or ()


def _readable(read: Callable[[str], Value], text: str) -> Value | None:
    if not text:
        return None
    try:
        return read(text)
    except ValidationError:
        log.warning("a row of the store can't be read and is left out")
        return None


def sample_of_row(row: Row[Any]) -> Sample | None:
    """A sample as a value; None of one that can't be read."""
    nodes = _readable(_NODES.validate_json, row.nodes)
    return None if nodes is None else Sample(row.time, row.step, row.speed, nodes)


def _report_rows(report: Report, now: float) -> Rows:
    job = report.job
    key = {"namespace": job.namespace, "uid": job.uid}
    about = (
        _UNSAID
        | key
        | {
            "name": job.name,
            "kind": job.kind,
            "scenario": scenario_of(job),
            "heard": now,
            "created": now,
            "reported": now,
            "facts": job.model_dump_json(),
        }
    )
    rows: dict[Upsert, list[Mapping[str, Any]]] = {tables.REPORTED_JOB: [about]}
    if end := report.end:
        said = {"ended": end.time, "completed": end.completed, "reason": _text(end.reason)}
        rows[tables.ENDED_JOB] = [about | said]
    rows[tables.NEW_SAMPLE] = [
        key
        | {"time": sample.time, "step": sample.step, "speed": sample.speed}
        | {"nodes": json.dumps([vars(node) for node in sample.nodes], separators=(",", ":"))}
        for sample in report.samples
    ]
    rows[tables.NEW_OOM] = [key | {"node": oom.node, "time": oom.time} for oom in report.ooms]
    return rows


def _seen_row(job: JobSeen, now: float) -> Mapping[str, Any]:
    return _UNSAID | {
        "namespace": job.namespace,
        "uid": job.uid,
        "name": job.name,
        "kind": job.kind,
        "phase": job.phase,
        "heard": now,
        "created": now if job.created is None else job.created,
        "ended": job.finished,
        "completed": None if job.finished is None else job.phase == JobPhase.SUCCEEDED,
        "reason": _text(job.reason),
        "seen": json.dumps(asdict(job)),
    }


def _plan_row(plan: PlanSeen, now: float) -> Mapping[str, Any]:
    return {
        "namespace": plan.namespace,
        "id": plan.uid,
        "job": plan.job,
        "name": plan.name,
        "time": now if plan.created is None else plan.created,
        "phase": plan.phase,
        "reason": _text(plan.reason),
        "message": _text(plan.message),
        "changes": json.dumps(plan.changes),
        "finished": plan.finished,
        "gone": None,
    }


def _text(text: str) -> str:
    """As every database holds it: PostgreSQL knows no NUL, and no database half a character."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
