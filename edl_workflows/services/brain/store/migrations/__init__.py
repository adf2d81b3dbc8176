"""Migrations of the store's schema: a module for each. Those that were released are never edited."""

from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Engine, text

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.services.brain.store.database import first_line, write_transaction

_LOCK = 0x65646C62
"""Key of the PostgreSQL advisory lock (the number spells "edlb") with which one process migrates while others
wait."""


def migrate(engine: Engine) -> None:
    """Migrate the schema to the current version. Several processes may do this at the same time.

    Raises:
        InvalidError: the store was created by a newer version.
        UnavailableError: the database does not answer.
    """
    folder = str(Path(__file__).parent)
    scripts = ScriptDirectory(folder, version_locations=[folder])

    def upgrade(revision: Any, _context: MigrationContext) -> Any:
        return scripts._upgrade_revs("head", revision)  # noqa: SLF001 - as Alembic's command

    try:
        with write_transaction(engine) as connection:
            if engine.dialect.name == "postgresql":
                # The advisory lock is released with the transaction. With SQLite the transaction already has
                # the write lock.
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            context = MigrationContext.configure(connection, opts={"fn": upgrade})
            with Operations.context(context):
                context.run_migrations()
    except CommandError as error:
        raise InvalidError(
            f"another version created the Brain's store ({first_line(error)}); run that version or a "
            "newer one"
        ) from error
