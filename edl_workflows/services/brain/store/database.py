"""Connections to SQLite or PostgreSQL, and the mapping of database errors to ours.

SQLite uses a write-ahead log, and a commit is on disk when it returns. A write transaction takes the write
lock at its beginning, so that it cannot fail to get the lock later.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
LOCK_SECONDS = 10
"""How long a transaction waits for a lock, in seconds."""
CONNECT_SECONDS = 5
POOL = 8
"""Most concurrent connections that read."""
_WRITES = "edl_writes"


def parse_url(database_url: str) -> URL:
    """Parse a database URL.

    Args:
        database_url: ``sqlite:////path/brain.db`` or ``postgresql://user:password@host/name``.

    Raises:
        InvalidError: the URL is neither. The message does not contain the URL, which may contain a password.
    """
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise InvalidError(
            "the database URL is malformed; write it as sqlite:////path/brain.db or "
            "postgresql://user@host/name"
        ) from error
    driver = DRIVERS.get(url.get_backend_name())
    if driver is None:
        raise InvalidError(
            f"{url.get_backend_name()!r} is not supported: the Brain's store is sqlite:// or postgresql://"
        )
    if driver == "sqlite" and not url.database:
        raise InvalidError("sqlite:// needs a file, such as sqlite:////var/lib/edl-brain/brain.db")
    return url.set(drivername=driver)


def connect(database_url: str) -> Engine:
    """Create an engine, which connects on first use.

    Raises:
        InvalidError: see `parse_url`.
    """
    url = parse_url(database_url)
    options: dict[str, Any] = {"hide_parameters": True, "pool_size": POOL, "pool_timeout": LOCK_SECONDS}
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": LOCK_SECONDS}, **options)
            event.listen(engine, "do_connect", _create_private_file)
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        arguments = {"connect_timeout": CONNECT_SECONDS, "application_name": "edl-brain"}
        return create_engine(url, connect_args=arguments, pool_pre_ping=True, **options)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise InvalidError(
            f"{url.drivername} is not installed: pip install 'edl-workflows[brain]'"
        ) from error


@contextlib.contextmanager
def read_transaction(engine: Engine) -> Iterator[Connection]:
    """A read transaction.

    Raises:
        UnavailableError: the database does not answer.
    """
    with map_database_errors(), engine.connect() as connection, connection.begin():
        yield connection


@contextlib.contextmanager
def write_transaction(engine: Engine) -> Iterator[Connection]:
    """A write transaction. If the context exits without an error, it is committed and durable.

    Raises:
        InvalidError: the database cannot store a value.
        UnavailableError: the database does not answer, or is locked.
    """
    with (
        map_database_errors(),
        engine.connect().execution_options(**{_WRITES: True}) as connection,
        connection.begin(),
    ):
        yield connection


@contextlib.contextmanager
def map_database_errors() -> Iterator[None]:
    """Convert exceptions of the database libraries into ours."""
    try:
        yield
    except EdlError:
        raise
    except (DataError, IntegrityError, OverflowError) as error:
        raise InvalidError(f"the Brain's store cannot store this value: {first_line(error)}") from error
    except (DBAPIError, PoolTimeoutError) as error:
        raise UnavailableError(f"the Brain's store is not available: {first_line(error)}") from error
    except SQLAlchemyError as error:
        raise InvalidError(f"the Brain's store rejected this: {first_line(error)}") from error


def _create_private_file(_dialect: Any, _record: Any, places: list[Any], options: dict[str, Any]) -> None:
    """Create a new database for this user only: it holds what all tenants reported. SQLite gives its other
    files the same mode."""
    if not options.get("uri"):
        with contextlib.suppress(OSError):  # SQLite then reports the error
            Path(places[0]).touch(0o600)


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # disables the driver's own handling of transactions
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def first_line(error: BaseException) -> str:
    """The message without the SQL statement, which SQLAlchemy appends."""
    cause = getattr(error, "orig", None) or error
    return (str(cause).splitlines() or [type(cause).__name__])[0][:300]
