"""Changes of the store's schema, oldest first in `versions`; `edl_workflows.brain.store.database.migrate`
applies them."""
