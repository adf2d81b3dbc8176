"""Migrations of the store's schema, in `versions`. `edl_workflows.services.brain.store.database.migrate`
applies them."""
