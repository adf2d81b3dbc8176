"""Alembic runs this: migrations within the transaction that `edl_workflows.brain.database.migrate` began."""

from alembic import context

from edl_workflows.brain.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
