"""Writes what masters report and what the monitor sees. Thread-safe.

Methods that write return when the rows are durable, except `submit`, which returns a future.
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

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.protocol.brain import ClaimedState, JobStateKey, StateWrite
from edl_workflows.services.brain.observations import ChangeObservation, ClusterObservation, JobObservation
from edl_workflows.services.brain.store import database, states, tables
from edl_workflows.services.brain.store.migrations import migrate
from edl_workflows.services.brain.store.reader import StoreReader
from edl_workflows.services.brain.store.records import (
    JobReport,
    StoredAdvice,
    observed_job_row,
    observed_plan_row,
    report_rows,
)
from edl_workflows.services.brain.store.tables import JOB, PLAN, Upsert
from edl_workflows.services.brain.store.writer import StoreWriter


class BrainStore(StoreReader):
    """A store in one database. Opening it migrates the schema.

    Args:
        database_url: see `database.parse_url`.

    Raises:
        InvalidError: the URL or the schema's version is unknown.
        UnavailableError: the database does not answer.
    """

    def __init__(self, database_url: str) -> None:
        super().__init__(database.connect(database_url))
        try:
            migrate(self.engine)
        except EdlError:
            self.engine.dispose()
            raise
        self._writer = StoreWriter(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish waiting writes, then disconnect."""
        self._writer.close()
        self.engine.dispose()

    @property
    def waiting(self) -> int:
        """The number of waiting writes."""
        return self._writer.waiting

    def submit(self, report: JobReport, now: float) -> Future[None]:
        """Store a report; see `StoreWriter.write`."""
        return self._writer.write(report_rows(report, now))

    def record(self, report: JobReport, now: float) -> None:
        """Store a report.

        Raises:
            UnavailableError: the database does not answer, or is too slow.
        """
        self.submit(report, now).result()

    def record_cluster(self, sample: ClusterObservation) -> None:
        """Store a sample of the cluster.

        Raises:
            UnavailableError: as `record`.
        """
        sample_row = {"time": sample.time, "sample": json.dumps(asdict(sample))}
        self._writer.write({tables.NEW_CLUSTER: [sample_row]}).result()

    def record_jobs(self, jobs: Collection[JobObservation], gone: Collection[str], now: float) -> None:
        """Store what the monitor saw of jobs, and mark the jobs in `gone` as gone, in one transaction.

        Raises:
            UnavailableError: as `record`.
        """
        job_rows = [observed_job_row(job, now) for job in jobs]
        existing = (JOB.c.uid.in_(gone), JOB.c.seen != "", JOB.c.gone.is_(None))
        ended = update(JOB).where(*existing).values(gone=now, ended=func.coalesce(JOB.c.ended, now))
        self._write_seen(tables.SEEN_JOB, job_rows, ended)

    def record_plans(self, plans: Collection[ChangeObservation], gone: Collection[str], now: float) -> None:
        """The same for ScalePlans.

        Raises:
            UnavailableError: as `record`.
        """
        plan_rows = [observed_plan_row(plan, now) for plan in plans]
        ended = update(PLAN).where(PLAN.c.id.in_(gone), PLAN.c.name != "", PLAN.c.gone.is_(None))
        self._write_seen(tables.SEEN_PLAN, plan_rows, ended.values(gone=now))

    def _write_seen(self, upsert: Upsert, seen_rows: Sequence[Mapping[str, Any]], ended: Update) -> None:
        def work(connection: Connection) -> None:
            if seen_rows:
                connection.execute(upsert.statement(connection.dialect), seen_rows)
            connection.execute(ended)

        self._writer.call(work).result()

    def record_advice(self, advice: StoredAdvice) -> None:
        """Store advice that the Brain gave.

        Raises:
            UnavailableError: as `record`.
        """
        plan_row = asdict(advice) | {
            "name": "",
            "phase": "",
            "message": "",
            "changes": json.dumps(advice.changes),
            "finished": None,
            "gone": None,
        }
        self._writer.write({tables.NEW_PLAN: [plan_row]}).result()

    def claim_state(self, job: JobStateKey, now: float) -> Future[ClaimedState]:
        """Begin the next term of a job's state; see `states.claim_state`.

        Raises:
            UnavailableError: as `record`. The future may also raise it.
        """
        return self._writer.call(lambda connection: states.claim_state(connection, job, now))

    def write_state(self, write: StateWrite, now: float) -> Future[None]:
        """Store a snapshot of a job's state; see `states.write_state`.

        Raises:
            UnavailableError: as `record`. The future may also raise it, and what `states.write_state` raises.
        """
        return self._writer.call(lambda connection: states.write_state(connection, write, now))

    def remove(self, table: Table, which: ColumnElement[bool], most: int) -> int:
        """Choose up to `most` of these rows, and remove those that still meet the condition then. Return how
        many were chosen.

        Raises:
            UnavailableError: as `record`.
        """
        keys = list(table.primary_key)
        with database.read_transaction(
            self.engine
        ) as connection:  # may take long, but does not block writers
            row_keys = [
                dict(row_key)
                for row_key in connection.execute(select(*keys).where(which).limit(most)).mappings()
            ]
        if row_keys:
            removal = delete(table).where(*(column == bindparam(column.name) for column in keys), which)
            self._writer.call(lambda connection: connection.execute(removal, row_keys)).result()
        return len(row_keys)
