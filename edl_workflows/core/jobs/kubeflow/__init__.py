"""What all of Kubeflow's training kinds share: spec, status, state machine, pods.

A kind adds its `KubeflowJob` (``model.py``), its `KubeflowFramework` (``pods.py``) and its `Kind`, made by
`kubeflow_kind` (``kind.py``). The model's validator raises what `find_problems` gives. Types with `decides`
or `single` may be left out; a kind that requires one adds a CEL rule and a `Problem` of its own.

A kind whose replicas need more than environment variables with fixed values has its own ``reconcile.py``, for
example because of ConfigMaps, Secrets, a start order or `valueFrom`.
"""
