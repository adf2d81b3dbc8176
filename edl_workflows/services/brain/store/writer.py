"""Group commit: one thread writes, and all writes that arrive during a commit form the next transaction. So
every acknowledged write is on disk, although up to hundreds of writes share one flush.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, Engine

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.services.brain.store import database, tables
from edl_workflows.services.brain.store.tables import Upsert

log = structlog.get_logger(__name__)

MAX_WAITING = 5_000
"""Most waiting writes. If there are more, the store is too slow, and callers are told to retry."""
MAX_TOGETHER = 500
"""Most writes per transaction."""

Row = Mapping[str, Any]
Rows = Mapping[Upsert, Sequence[Row]]
Work = Callable[[Connection], Any]


@dataclass(frozen=True)
class _Write:
    done: Future[Any]
    rows: Rows | None = None
    work: Work | None = None


class StoreWriter:
    """Writes in a thread of its own until `close`.

    Args:
        engine: engine of the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[_Write] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._statements = {upsert: upsert.statement(engine.dialect) for upsert in tables.ORDER}
        self._thread = threading.Thread(target=self._run, name="brain store", daemon=True)
        self._thread.start()

    def write(self, rows: Rows) -> Future[None]:
        """Write rows. The returned future is done when they are durable.

        Raises:
            UnavailableError: too many writes are waiting, or the store is closed. The future may also raise
                it, or InvalidError.
        """
        return self._put(_Write(Future(), rows=rows))

    def call(self, work: Work) -> Future[Any]:
        """Run `work` in a transaction of its own.

        Raises:
            UnavailableError: as `write`.
        """
        return self._put(_Write(Future(), work=work))

    def close(self) -> None:
        """Finish waiting writes, then stop."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """The number of waiting writes."""
        return len(self._waiting)

    def _put(self, write: _Write) -> Future[Any]:
        with self._changed:
            if self._closed:
                raise UnavailableError("the Brain's store is closed: the server is stopping; retry later")
            if len(self._waiting) >= MAX_WAITING:
                raise UnavailableError(
                    f"the Brain's store is too slow: {MAX_WAITING} writes are waiting; retry later"
                )
            write.done.set_running_or_notify_cancel()  # so that a caller cannot cancel the write
            self._waiting.append(write)
            self._changed.notify_all()
        return write.done

    def _run(self) -> None:
        while batch := self._take():
            self._commit(batch)

    def _take(self) -> list[_Write]:
        """Wait for the writes of the next transaction. Empty when the store is closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            batch: list[_Write] = []
            while self._waiting and len(batch) < MAX_TOGETHER:
                if batch and (self._waiting[0].work or batch[0].work):
                    break
                batch.append(self._waiting.popleft())
            return batch

    def _commit(self, batch: list[_Write]) -> None:
        try:
            with database.write_transaction(self._engine) as connection:
                results = self._execute(connection, batch)
        except UnavailableError as error:
            _fail(batch, error)
        except Exception as error:  # passed on to the callers; later writes continue
            if len(batch) > 1:
                for write in batch:  # one of them may be invalid; the others should succeed
                    self._commit([write])
                return
            if not isinstance(error, EdlError):
                log.exception("unexpected error in the store")
            _fail(batch, error)
        else:
            for write, result in zip(batch, results, strict=True):
                write.done.set_result(result)

    def _execute(self, connection: Connection, batch: Sequence[_Write]) -> list[Any]:
        results = [write.work(connection) if write.work else None for write in batch]
        for upsert in tables.ORDER:
            upsert_rows = [row for write in batch if write.rows for row in write.rows.get(upsert, ())]
            if upsert_rows:
                keys = [column.name for column in upsert.table.primary_key]
                upsert_rows.sort(key=lambda row: [row[key] for key in keys])
                connection.execute(self._statements[upsert], upsert_rows)
        return results


def _fail(batch: Sequence[_Write], error: Exception) -> None:
    for write in batch:
        if not write.done.done():
            write.done.set_exception(error)
