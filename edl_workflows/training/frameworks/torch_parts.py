"""Decides which part of a PyTorch program's state each rank saves when all ranks save together, and restores
the state on any number of ranks.

A sharded tensor (``DTensor``, from ``fully_shard`` or ``distribute_tensor``) is saved by the ranks that hold
its shards. Tensors of which several ranks hold the same copy, such as the parameters of replicated models,
are divided among these ranks, so that each saves about the same number of bytes.
`edl_workflows.training.checkpoints.tensor_parts` describes the files. ``torch.distributed.checkpoint`` can
read them with its ``HuggingFaceStorageReader``.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.copying import CopyGuard
from edl_workflows.training.checkpoints.tensor_parts import Piece, pieces, write_offsets
from edl_workflows.training.checkpoints.tensors import Array, Loaded, State
from edl_workflows.training.frameworks.torch_copies.device import CopyDevice, choose_device
from edl_workflows.training.frameworks.torch_copies.transfer import upload
from edl_workflows.training.frameworks.torch_state import (
    SKELETON,
    as_array_type,
    as_tensor_type,
    join,
    split,
    to_saved_tensors,
)


class Held(NamedTuple):
    """The piece of a tensor that this rank holds.

    Attributes:
        content: the values.
        offset: offset of the piece in the tensor, along each axis.
        shape: shape of the whole tensor.
        holders: number of ranks that hold the same piece.
        holder: index of this rank among them, from 0.
    """

    content: torch.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    holders: int
    holder: int


def held_by_rank(tensor: torch.Tensor, part: Part) -> Held:
    """The piece of a tensor that a rank holds.

    Args:
        tensor: a plain tensor, which is the same on all ranks, or a ``DTensor``. If its mesh is smaller than
            the world, the ranks form groups of the mesh's size, and each group holds the same.
        part: rank and number of ranks.

    Raises:
        InvalidError: the tensor holds partial sums, or the rank holds more or less than one piece of it.
    """
    if not isinstance(tensor, DTensor):  # all ranks hold the same
        zeros = (0,) * tensor.ndim
        return Held(tensor.detach(), zeros, tuple(tensor.shape), part.count, part.index)
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if any(placement.is_partial() for placement in tensor.placements) or coordinate is None:
        raise InvalidError(f"a DTensor with placements {tensor.placements} can't be saved by this rank")
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1:
        raise InvalidError(
            f"a rank holds {len(chunks)} pieces of a DTensor with placements {tensor.placements}"
        )
    holders, holder = part.count // mesh.size(), part.index // mesh.size()
    for axis, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            holders, holder = holders * mesh.size(axis), holder * mesh.size(axis) + coordinate[axis]
    content = tensor.to_local().detach()
    return Held(content, tuple(chunks[0].offsets), tuple(tensor.shape), holders, holder)


def part_of_state(
    value: Any,
    step: int,
    metadata: Mapping[str, str],
    part: Part,
    guard: CopyGuard | None = None,
    device: CopyDevice | None = None,
) -> State:
    """The part of a nested state that a rank saves after `step`; see
    `edl_workflows.training.frameworks.torch_state.split`.

    Args:
        value: the state. It has the same structure on all ranks; tensors that are not sharded are equal.
        step: global step.
        metadata: further text that a restore needs.
        part: rank and number of ranks.
        guard: see `State`.
        device: the device that copies the tensors; None: the one that holds them.

    Raises:
        InvalidError: a part of the state can't be saved.
    """
    skeleton, tensors = split(value, sharded=True)
    saved: dict[str, Held] = {}
    loads: dict[int, list[int]] = {}
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    for name in sorted(tensors, key=lambda name: (-sizes[name], name)):
        held = held_by_rank(tensors[name], part)
        load = loads.setdefault(held.holders, [0] * held.holders)
        chosen = load.index(min(load))
        load[chosen] += sizes[name]
        if held.holder == chosen and (held.content.numel() or not sizes[name]):
            saved[name] = held
    offsets = {name: held.offset for name, held in saved.items()} | {SKELETON: (0,)}
    contents = {name: held.content for name, held in saved.items()}
    places = write_offsets(offsets) if part.count > 1 else {}
    state = to_saved_tensors(skeleton, contents, step, {**metadata, **places}, device)
    return replace(state, part=part, guard=guard)


def make_template(
    parts: Iterable[Loaded], empty: Callable[[str, torch.dtype, tuple[int, ...]], torch.Tensor], where: str
) -> Any:
    """A state with the structure of a checkpoint, for `restore_state`. A model that was just built can't be
    the template: it may lack tensors that the checkpoint has, such as an optimizer's averages.

    Args:
        parts: the parts of the checkpoint.
        empty: makes a tensor, given its name, its type and the shape of the whole tensor.
        where: path or URI of the checkpoint, for errors.

    Raises:
        CheckpointError: a part is damaged.
    """
    ends: dict[str, tuple[int, ...]] = {}
    newest: dict[str, Piece] = {}
    for part in parts:
        for piece in pieces(part, where):
            ends[piece.name] = tuple(map(max, ends.get(piece.name, piece.end), piece.end))
            newest[piece.name] = piece
    skeleton = _skeleton(newest, where)
    try:
        names = _names(skeleton)
        types = {name: as_tensor_type(newest[name].content.dtype) for name in names}
        return join(skeleton, {name: empty(name, types[name], ends[name]) for name in names})
    except (KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where}: is not the state of a PyTorch program: {error!r}") from error


def restore_state(
    template: Any, parts: Iterable[Loaded], where: str, device: CopyDevice | None = None
) -> Any:
    """Fill the tensors of a nested state with those of a checkpoint, whatever number of ranks saved it.

    Args:
        template: the state of this rank's model. Its tensors are overwritten in place; the shard of a DTensor
            is overwritten with its part of the saved tensor.
        parts: the parts of the checkpoint. Once all tensors are filled, further parts are not read.
        where: path or URI of the checkpoint, for errors.
        device: the device that holds the tensors; None: found out.

    Returns:
        The state, for ``load_state_dict``. Values that are not tensors are taken from the checkpoint.

    Raises:
        CheckpointError: a tensor is missing, or differs in type or shape.
    """
    names = split(template, sharded=True).tensors
    targets = {name: _Target(name, held_by_rank(tensor, Part(0, 1)), where) for name, tensor in names.items()}
    skeleton = None
    copies: list[tuple[torch.Tensor, Array]] = []
    for part in parts:
        pieces_by_name = {piece.name: piece for piece in pieces(part, where)}
        if skeleton is None:
            skeleton = _skeleton(pieces_by_name, where)
            _compare_names(_names(skeleton), targets.keys(), where)
        for name in pieces_by_name.keys() & targets.keys():
            copies += targets[name].match(pieces_by_name[name])
        if all(target.missing == 0 for target in targets.values()):
            break
    lacking = [name for name, target in targets.items() if target.missing]
    if skeleton is None or lacking:
        raise CheckpointError(f"{where}: a part is missing: it lacks values of {', '.join(lacking[:3])}")
    upload(device or choose_device(tensor for tensor, _ in copies), copies)
    return join(skeleton, names)


class _Target:
    """The values that this rank needs of a tensor."""

    def __init__(self, name: str, held: Held, where: str) -> None:
        self._name = name
        self._held = held
        self._where = where
        self._matched: set[tuple[int, ...]] = set()
        self.missing = held.content.numel()

    def match(self, piece: Piece) -> list[tuple[torch.Tensor, Array]]:
        """Where to copy the values that a piece contains, and these values; empty if none is needed."""
        held, content = self._held, piece.content
        if not self._fits(piece):
            raise CheckpointError(
                f"{self._where}: tensor {self._name} is of another type or shape: a piece of {content.dtype} "
                f"ends at {piece.end}, and the model has {held.content.dtype} of shape {held.shape}"
            )
        if piece.offset in self._matched:
            return []
        self._matched.add(piece.offset)
        ends = [start + size for start, size in zip(held.offset, held.content.shape, strict=True)]
        first = list(map(max, held.offset, piece.offset))
        last = list(map(min, ends, piece.end))
        if any(end <= start for start, end in zip(first, last, strict=True)):
            return []
        into = held.content[_slices(first, last, held.offset)]
        self.missing -= into.numel()
        return [(into, content[_slices(first, last, piece.offset)])]

    def _fits(self, piece: Piece) -> bool:
        shape = self._held.shape
        if piece.content.dtype != as_array_type(self._held.content.dtype) or len(piece.end) != len(shape):
            return False
        return all(end <= size for end, size in zip(piece.end, shape, strict=True))


def _slices(first: list[int], last: list[int], origin: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices from `first` to `last` of an array that begins at `origin`."""
    return tuple(
        slice(start - zero, end - zero) for start, end, zero in zip(first, last, origin, strict=True)
    )


def _skeleton(pieces_by_name: Mapping[str, Piece], where: str) -> Any:
    try:
        return json.loads(pieces_by_name[SKELETON].content.tobytes())
    except (KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not the state of a PyTorch program: {error!r}") from error


def _compare_names(saved: set[str], mine: Iterable[str], where: str) -> None:
    if differing := sorted(saved.symmetric_difference(mine)):
        name = differing[0]
        owner = "the checkpoint" if name in saved else "the model"
        raise CheckpointError(f"{where}: can't be restored into this model: only {owner} has tensor {name}")


def _names(skeleton: Mapping[str, Any]) -> set[str]:
    """The names of the tensors in a skeleton."""
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return {content}
    if kind == "value":
        return set()
    children = (child for _, child in content) if kind == "dict" else content
    return set().union(*map(_names, children))
