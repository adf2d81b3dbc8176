"""One job's master: its nodes, its data, its parameter-server versions, its ScalePlans.

Pure parts: `state` (all rules) and `shards` (data). The shell around them: ``master.py`` the loop that stores and
publishes · ``app.py`` HTTP · ``store.py`` durability · ``effects.py`` what is done outside, by ``kubernetes.py`` in a
cluster or ``standalone.py`` without one · ``server.py`` the process.
"""
