"""The plans that a master makes for its own job: the state of these plans, and when an optimizer is asked."""
