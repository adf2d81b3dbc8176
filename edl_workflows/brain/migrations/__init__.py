"""Changes of the store's schema, oldest first in `versions`; `edl_workflows.brain.database.migrate` applies them."""
