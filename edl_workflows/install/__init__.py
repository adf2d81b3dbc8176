"""What a cluster needs to run jobs, as manifests: definitions, rights, the controller, and what guards it.
Pure.

``options.py`` is what an installation chooses, ``rbac.py`` who may do what, ``workloads.py`` what runs, and
``manifests.py`` puts them in the order of applying. `edl install` prints them.

Not here: anything that talks to a cluster.
"""
