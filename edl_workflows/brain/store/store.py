"""The store: what masters report and the monitor sees goes in; what `reader` reads comes out. For any thread.

Methods that write return when the rows are durable; `submit` gives a future instead.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Update,
    bindparam,
    delete,
    func,
    select,
    update,
)

from edl_workflows.brain.seen import ClusterSample, JobSeen, PlanSeen
from edl_workflows.brain.store import database, tables
from edl_workflows.brain.store.reader import Reader
from edl_workflows.brain.store.stored import (
    Answer,
    Report,
    plan_row,
    report_rows,
    seen_row,
)
from edl_workflows.brain.store.tables import JOB, PLAN, Upsert
from edl_workflows.brain.store.writer import Writer
from edl_workflows.exceptions import EdlError


class Store(Reader):
    """One database, with its schema brought up to date.

    Args:
        database_url: see `database.parse`.

    Raises:
        InvalidError: the URL, or the schema's version, is not known.
        UnavailableError: the database does not answer.
    """

    def __init__(self, database_url: str) -> None:
        super().__init__(database.connect(database_url))
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

    def submit(self, report: Report, now: float) -> Future[None]:
        """Keep a report; see `writer.Writer.write`."""
        return self._writer.write(report_rows(report, now))

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
        rows = [seen_row(job, now) for job in jobs]
        there = (JOB.c.uid.in_(gone), JOB.c.seen != "", JOB.c.gone.is_(None))
        ended = update(JOB).where(*there).values(gone=now, ended=func.coalesce(JOB.c.ended, now))
        self._write_seen(tables.SEEN_JOB, rows, ended)

    def record_plans(self, plans: Collection[PlanSeen], gone: Collection[str], now: float) -> None:
        """The same of ScalePlans.

        Raises:
            UnavailableError: as `record`.
        """
        rows = [plan_row(plan, now) for plan in plans]
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
