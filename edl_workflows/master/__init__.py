"""One job's master: its nodes, its data, its parameter-server versions, its ScalePlans.

Pure parts: `state` (all rules) and `shards` (data). The shell around them: ``master.py`` the loop that stores and
publishes · ``app.py`` HTTP · ``store.py`` durability · ``effects.py`` what is done outside, by ``kubernetes.py`` in a
cluster or ``standalone.py`` without one · ``autoscaler.py`` the loop that plans the job's size, by ``optimizers.py``, which may
ask a Brain service by ``brain.py`` · ``server.py`` the process.
"""
