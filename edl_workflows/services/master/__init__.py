"""One job's master: its nodes, its data, its cluster versions, its ScalePlans.

The pure parts are `state` (all rules) and `shards` (data). Around them: `master.py`, the loop that stores and
publishes; `app.py`, the HTTP API; `stores`, durability; `effects.py`, requests to the outside, carried out
by `kubernetes.py` in a cluster or `standalone.py` without one; `autoscaler.py`, the loop that decides the
job's size with `optimizers.py`, which may ask a Brain service through `brain.py`; `server.py`, the process.
"""
