"""Alembic runs this: migrations within the transaction that `edl_workflows.brain.store.database.migrate`
began."""

from alembic import context

from edl_workflows.brain.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
