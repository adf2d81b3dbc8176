"""Decides which tensors of a PyTorch program's state are shards (``DTensor``), and makes shards of plain
tensors.

Checkpoints, and messages to other processes, contain only plain tensors. A tensor of the model is a shard if
the corresponding parameter is sharded. A tensor of the optimizer is a shard if it has one value for each
value of a sharded parameter, as Adam's averages do.
"""

import itertools
import re
from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

_OF_OPTIMIZER = re.compile(r"^optimizer/state/([0-9]+)/")


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_shard(local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of `local`, sharded like `like`; `local` itself if `like` is not sharded."""
    if not isinstance(like, DTensor):
        return local
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


class Shards:
    """The shards of a model and its optimizer.

    Args:
        model: the model, whose parameters may be sharded.
        optimizer: the optimizer of these parameters.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        named = model.named_parameters(remove_duplicate=False)
        self._by_name = {f"model/{name}": parameter for name, parameter in named}
        groups = (group["params"] for group in optimizer.param_groups)
        self._by_number = list(itertools.chain.from_iterable(groups))

    def restored(self, name: str, local: torch.Tensor) -> torch.Tensor:
        """A tensor of the state, made from the local part that another process with the same shards sent."""
        owner = self._owner(name)
        if owner is None or local.shape != owner.to_local().shape:
            return local
        return as_shard(local.to(owner.device), owner)

    def empty(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of the state, with this process's shard but without its values.

        Args:
            name: name of the tensor in the state.
            dtype: type of the tensor.
            shape: shape of the whole tensor.
        """
        owner = self._owner(name)
        if owner is not None and shape == tuple(owner.shape):
            return torch.zeros_like(owner, dtype=dtype)
        return torch.zeros(shape, dtype=dtype)

    def home(
        self, of_model: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]
    ) -> torch.Tensor | None:
        """The tensor whose device and order in memory a whole tensor of the state should have: that of the
        model, or the parameter for whose values it has one each. None: it belongs on the CPU.

        Args:
            of_model: the model's ``state_dict``.
            name: name of the tensor in the state.
            shape: its shape.
        """
        home = of_model.get(name.removeprefix("model/")) if name.startswith("model/") else None
        if (match := _OF_OPTIMIZER.match(name)) and not name.endswith("/step"):
            number = int(match[1])
            home = self._by_number[number] if number < len(self._by_number) else None
        return home.detach() if home is not None and tuple(home.shape) == shape else None

    def _owner(self, name: str) -> DTensor | None:
        """The sharded parameter to which a tensor belongs; None if there is none."""
        owner = self._by_name.get(name)
        if match := _OF_OPTIMIZER.match(name):
            number = int(match[1])
            owner = self._by_number[number] if number < len(self._by_number) else None
        return owner.detach() if isinstance(owner, DTensor) else None
