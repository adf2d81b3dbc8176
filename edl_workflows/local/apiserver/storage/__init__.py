"""The versioned object store (`store`), its objects (`revisions`) and its watches (`watches`)."""
