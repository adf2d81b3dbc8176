"""Messages between a job's master, its agents and the Brain (HTTP + JSON), and helpers to interpret them.
Apart from `addresses`, which reads a map of addresses, no I/O.
"""
