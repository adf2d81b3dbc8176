"""The state of one job's master and its transitions. Pure: no I/O, clock, environment or logger; ``now`` is handed in.

``job.py`` the whole, and the document that is stored · ``messages.py`` what nodes say · ``observations.py`` what the cluster
shows · ``transitions.py`` the consequences · ``views.py`` what is to be said.

The rules: ``nodes.py`` and ``relaunch.py`` one node's life · ``worker_manager.py`` workers · ``cluster_versions.py``
cluster versions, ``ps_manager.py`` and ``rendezvous.py`` who belongs to the next one · ``plans.py`` and ``plan_checks.py`` one ScalePlan · ``checkpoints.py`` · ``sync.py`` · ``statistics.py`` ·
``outcome.py`` the job's end · ``pod_plans.py`` what is asked of the cluster · ``hang.py``, ``node_check.py``, ``goodput.py``
and ``restarts.py`` what goes wrong and what it costs. ``version_steps.py``, ``world_steps.py``, ``plan_steps.py`` and
``fault_steps.py`` connect versions, worlds, plans and faults with the rest. ``settings.py`` is what the job's spec says.
"""
