"""One job's master: its data, nodes, parameter-server versions and plans.

Pure parts (``shards/``, ``state/``) take values and the time and give values; the app around them serves HTTP, reads the
clock and stores.
"""
