"""What all of Kubeflow's training kinds share: spec, status, state machine, pods. A kind adds its
`KubeflowFramework`.
"""
