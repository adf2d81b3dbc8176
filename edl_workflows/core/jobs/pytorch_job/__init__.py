"""PyTorchJob: Kubeflow's jobs for ``torch.distributed`` and ``torchrun``."""
