"""Copies between the host's memory and the devices that hold a PyTorch program's tensors.

- `device`: the devices, and all that is specific to CUDA
- `transfer`: restores, and the state that a new member gets
"""
