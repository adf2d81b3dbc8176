"""Run by Alembic: applies migrations in the transaction of
`edl_workflows.services.brain.store.database.migrate`."""

from alembic import context

from edl_workflows.services.brain.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
