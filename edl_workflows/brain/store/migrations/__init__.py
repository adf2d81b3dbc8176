"""Migrations of the store's schema, in `versions`. `edl_workflows.brain.store.database.migrate` applies
them."""
