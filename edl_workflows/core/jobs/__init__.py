"""The job kinds: typed specs and statuses, defaults, validation and the pure state machines over them.

No I/O, clock, environment or logger here: values in, values out. One folder a kind; `kinds.py` is the only
registry.
"""
