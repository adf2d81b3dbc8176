"""Kubernetes objects as values: nothing here talks to a cluster (`edl_workflows.runtime.kube` does).

- `objects`: base classes of the models of all kinds, metadata, conditions, quantities
- `api`: resource types, and their paths on an API server
- `names`: labels, annotations, environment names and ports, each once
- `pod_types`: the types of all fields of a pod template
- `demand`, `node_selector`: what a pod requests of a node, and which nodes it accepts
- `pod_state`: how a pod is, by the container that runs the job's program
- `lost_pods`: which pods count as gone although nobody confirms their end
"""
