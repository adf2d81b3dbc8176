"""A PyTorch program's state as named tensors, for checkpoints and for sending it to other members.

The `state_dict` of a model, an optimizer or a scheduler nests tensors in dictionaries and lists, together
with numbers. `split` separates them into tensors by name and a *skeleton* that JSON can represent; `join`
puts them together again. Nothing is pickled.
"""

import json
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from torch.distributed.tensor import DTensor

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.copying import Copies
from edl_workflows.training.checkpoints.tensors import Array, State, TensorSpec
from edl_workflows.training.frameworks.torch_copies.device import CopyDevice, choose_device

SKELETON = "skeleton"
"""Name of the tensor that holds the skeleton's JSON in a saved state."""
_TYPES = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
}
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}
Tensors = dict[str, torch.Tensor]


class SplitState(NamedTuple):
    """A nested state, separated into its skeleton and its tensors.

    Attributes:
        skeleton: the state without its tensors, for JSON: ``{"tensor": name}``, ``{"dict": [[key, child],
            …]}``, ``{"list": […]}``, ``{"tuple": […]}``, ``{"value": …}``.
        tensors: the tensors, by their path in the state, such as ``optimizer/state/0/exp_avg``.
    """

    skeleton: dict[str, Any]
    tensors: Tensors


def split(value: Any, *, sharded: bool = False) -> SplitState:
    """Separate a nested state from its tensors, which are not copied.

    Args:
        value: the state.
        sharded: whether the caller accepts sharded tensors (``DTensor``).

    Raises:
        InvalidError: a value is neither a tensor, a dictionary, a list, a tuple nor a plain value; or a
            tensor is sharded although `sharded` is False, is sparse, or has a type that safetensors does not
            support.
    """
    tensors: Tensors = {}
    kinds = (torch.Tensor, torch.nn.Parameter, *([DTensor] if sharded else []))
    return SplitState(_split(value, "", tensors, kinds), tensors)


def _split(value: Any, path: str, tensors: Tensors, kinds: tuple[type, ...]) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        if type(value) not in kinds or value.layout is not torch.strided:
            raise InvalidError(
                f"{path}: a {type(value).__name__} ({value.layout}) can't be saved in one piece"
            )
        if value.dtype not in _TYPES:
            raise InvalidError(f"{path}: {value.dtype} can't be saved; types are {', '.join(_NAMES)}")
        tensors[path] = value.detach()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {"dict": [[_key(key, path), _split(child, _below(path, key), tensors, kinds)]
                         for key, child in value.items()]}  # fmt: skip
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        children = [_split(child, _below(path, index), tensors, kinds) for index, child in enumerate(value)]
        return {kind: children}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise InvalidError(
        f"{path}: a {type(value).__name__} can't be saved; a state_dict may hold tensors, dictionaries, "
        "lists, tuples, numbers and texts"
    )


def _key(key: Any, path: str) -> Any:
    if isinstance(key, str | int | float | bool):
        return key
    raise InvalidError(f"{path}: a key of type {type(key).__name__} can't be saved")


def _below(path: str, step: Any) -> str:
    return f"{path}/{step}" if path else str(step)


def join(skeleton: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Join a skeleton and tensors from `split` into a nested state again.

    Raises:
        KeyError: a tensor is missing, or the skeleton has another form.
    """
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: join(child, tensors) for key, child in content}
    if kind in ("list", "tuple"):
        children = [join(child, tensors) for child in content]
        return children if kind == "list" else tuple(children)
    if kind == "value":
        return content
    raise KeyError(kind)


def to_saved_state(value: Any, step: int, metadata: Mapping[str, str]) -> State:
    """A nested state to save after `step`. Its tensors are read directly when the state is copied, without an
    intermediate copy."""
    return to_saved_tensors(*split(value), step, metadata)


def to_saved_tensors(
    skeleton: Mapping[str, Any],
    tensors: Tensors,
    step: int,
    metadata: Mapping[str, str],
    device: CopyDevice | None = None,
) -> State:
    """A skeleton and its tensors as a state to save; see `to_saved_state`.

    Args:
        skeleton: from `split`.
        tensors: from `split`.
        step: global step.
        metadata: further text that a restore needs.
        device: the device that copies the tensors, after the work that this thread has given it so far; None:
            the one that holds them.
    """
    device = device or choose_device(tensors.values())
    mark = device.mark()
    text = np.frombuffer(json.dumps(skeleton, separators=(",", ":")).encode(), np.uint8)
    specs = {name: TensorSpec(_TYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}
    specs[SKELETON] = TensorSpec(text.dtype, text.shape)

    def fill(into: Mapping[str, Array]) -> Copies:
        np.copyto(into[SKELETON], text)
        pairs = ((as_tensor(into[name], tensor.dtype), tensor) for name, tensor in tensors.items())
        return device.copy(pairs, mark)

    return State(step, specs, fill, metadata, registrar=device)


def copy_to_host(arrays: Mapping[str, Array]) -> Tensors:
    """Copies of arrays, as tensors on the CPU."""
    return {name: as_tensor(array.copy(), as_tensor_type(array.dtype)) for name, array in arrays.items()}


def from_saved_state(
    saved: Mapping[str, Array], copy: Callable[[Mapping[str, Array]], Tensors] = copy_to_host
) -> Any:
    """The nested state that `to_saved_state` saved. Its tensors are copies, on the CPU.

    Args:
        saved: the saved tensors.
        copy: makes tensors of arrays, if they should not be on the CPU.

    Raises:
        CheckpointError: another program saved it.
    """
    try:
        skeleton = json.loads(saved[SKELETON].tobytes())
        return join(skeleton, copy({name: array for name, array in saved.items() if name != SKELETON}))
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the saved state is not one of a PyTorch program: {error!r}") from error


def as_array_type(dtype: torch.dtype) -> "np.dtype[Any]":
    """The numpy type that corresponds to a tensor's type."""
    array_type: np.dtype[Any] = _TYPES[dtype]
    return array_type


def as_tensor_type(array_type: "np.dtype[Any]") -> torch.dtype:
    """The tensor type that corresponds to a numpy type.

    Raises:
        KeyError: PyTorch has no such type.
    """
    return {array: tensor for tensor, array in _TYPES.items()}[array_type]


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over an array's memory. Types that numpy lacks are passed as integers of the same size."""
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    plain = np.dtype(f"i{array.dtype.itemsize}")
    return torch.from_numpy(array.reshape(-1).view(plain)).view(dtype).reshape(array.shape)


def keep_order(optimizer: torch.optim.Optimizer) -> None:
    """Give the tensors of an optimizer that was just loaded the order in memory that their parameters have,
    such as channels-last, as the optimizer does when it makes them. An optimizer may also keep values that
    belong to no parameter; they are left as they are."""
    for parameter, tensors in optimizer.state.items():
        if not isinstance(parameter, torch.Tensor) or not isinstance(tensors, MutableMapping):
            continue
        for name, value in tensors.items():
            plain = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
            if plain and value.shape == parameter.shape and value.stride() != parameter.stride():
                tensors[name] = torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)


def name_type(dtype: torch.dtype) -> str:
    """The name of a tensor's type, for JSON."""
    return str(dtype).removeprefix("torch.")


def find_type(name: str) -> torch.dtype:
    """The tensor type of a name from `name_type`.

    Raises:
        KeyError: such tensors can't be saved.
    """
    dtype: torch.dtype = _NAMES[name]
    return dtype
