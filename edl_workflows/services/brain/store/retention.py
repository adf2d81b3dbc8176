"""Removes old rows. Samples are thinned out after an hour, and everything is removed after some days.

A job reports every few seconds, but its advice only uses the last minutes. For older samples, one per ten
minutes is enough. Rows are removed in small batches, so that reports don't have to wait.

The state of a job is kept as long as the job exists: a suspended one needs it after months.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy import BigInteger, ColumnElement, Table, and_, cast, exists, not_, or_

from edl_workflows.core.exceptions import EdlError
from edl_workflows.services.brain.store.store import BrainStore
from edl_workflows.services.brain.store.tables import CLUSTER, JOB, OOM, PLAN, SAMPLE, SNAPSHOT, STATE

log = structlog.get_logger(__name__)

DAY = 86_400.0
BATCH = 500
"""Rows per transaction, which then takes a few milliseconds."""
PAUSE = 0.05
"""Seconds between two batches."""
GONE_SECONDS = 3_600.0
"""Seconds after which the state of a job that is gone is removed."""


@dataclass(frozen=True)
class RetentionOptions:
    """Which rows are kept.

    Attributes:
        days: days that rows are kept; for jobs, counted from their last report.
        whole_seconds: seconds for which all samples of jobs and of the cluster are kept.
        thin_seconds: after that, only the first sample in each interval of this length is kept.
        period: seconds between two runs.
        state_days: days that the state of a job is kept after its master's last write, if no monitor sees the
            job.
    """

    days: float = 30.0
    whole_seconds: float = 3_600.0
    thin_seconds: int = 600
    period: float = 60.0
    state_days: float = 365.0


class Retention:
    """A thread that removes old rows.

    Args:
        store: the store.
        options: see `RetentionOptions`.
        clock: Unix seconds.
    """

    def __init__(
        self, store: BrainStore, options: RetentionOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._options = options
        self._clock = clock
        self._thinned = 0.0
        """Rows before this time have already been thinned out."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current batch."""
        self._stopped.set()
        if self._thread.ident:
            self._thread.join()

    def remove(self) -> int:
        """Remove all rows that are too old now. Returns how many were removed.

        Raises:
            UnavailableError: the store does not answer or is too slow. The next run continues where this one
                ended.
        """
        now, gone = self._clock(), 0
        for table, which in expired_rows(now, self._options, self._thinned):
            while not self._stopped.is_set():
                batch = self._store.remove(table, which, BATCH)
                gone += batch
                if batch < BATCH:
                    break
                self._stopped.wait(PAUSE)
        self._thinned = now - self._options.whole_seconds - self._options.thin_seconds
        return gone

    def _run(self) -> None:
        while not self._stopped.wait(self._options.period):
            try:
                gone = self.remove()
            except EdlError as error:
                log.warning("old rows could not be removed; retrying later", error=str(error))
            except Exception:
                log.exception("unexpected error while removing old rows")
            else:
                log.debug("old rows removed", rows=gone)


def expired_rows(
    now: float, options: RetentionOptions, thinned: float = 0.0
) -> list[tuple[Table, ColumnElement[bool]]]:
    """The rows that are too old.

    Args:
        now: Unix seconds.
        options: which rows are kept.
        thinned: time before which rows have already been thinned out.
    """
    before = now - options.days * DAY
    thin = now - options.whole_seconds
    abandoned = _is_abandoned(now, options)
    with_state = exists().where(_of_same_job(STATE, JOB))
    return [
        (SNAPSHOT, exists().where(_of_same_job(STATE, SNAPSHOT), abandoned)),
        (STATE, abandoned),
        (SAMPLE, SAMPLE.c.time < before),
        (SAMPLE, _superfluous(SAMPLE, thinned, thin, options.thin_seconds)),
        (OOM, OOM.c.time < before),
        (PLAN, PLAN.c.time < before),
        (CLUSTER, CLUSTER.c.time < before),
        (CLUSTER, _superfluous(CLUSTER, thinned, thin, options.thin_seconds)),
        (JOB, and_(JOB.c.heard < before, not_(with_state))),  # it tells whether the job exists
    ]


def _is_abandoned(now: float, options: RetentionOptions) -> ColumnElement[bool]:
    """Condition for the states of jobs that the monitor has seen to be gone, and of those that it does not
    see and that no master has written for long."""
    job = exists().where(_of_same_job(JOB, STATE))
    is_gone = and_(job.where(JOB.c.gone < now - GONE_SECONDS), STATE.c.heard < now - GONE_SECONDS)
    is_seen = job.where(JOB.c.seen != "", JOB.c.gone.is_(None))
    return or_(is_gone, and_(STATE.c.heard < now - options.state_days * DAY, not_(is_seen)))


def _of_same_job(left: Table, right: Table) -> ColumnElement[bool]:
    return and_(left.c.namespace == right.c.namespace, left.c.uid == right.c.uid)


def _superfluous(table: Table, since: float, before: float, seconds: int) -> ColumnElement[bool]:
    """Condition for the rows between two times, except the first in each interval."""
    time, earlier = table.c.time, table.alias("earlier")
    same = [earlier.c[column.name] == column for column in table.primary_key if column.name != "time"]
    near = and_(earlier.c.time < time, earlier.c.time > time - seconds - 1)
    first = exists().where(*same, near, _part(earlier.c.time, seconds) == _part(time, seconds))
    return and_(time >= since, time < before, first)


def _part(time: ColumnElement[float], seconds: int) -> ColumnElement[int]:
    return cast(time, BigInteger) // seconds
