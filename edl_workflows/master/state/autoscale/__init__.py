"""The master's own planning: what it remembers of its plans, and when an optimizer is asked."""
