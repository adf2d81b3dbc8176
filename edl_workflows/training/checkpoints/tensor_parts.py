"""Tensors of a checkpoint in parts: where each piece belongs, and how whole tensors are assembled from
pieces.

The metadata of a part's file contains the offset of each piece in its tensor, under the key
``DCP_SHARDING_INFO``, as PyTorch's ``HuggingFaceStorageWriter`` writes it. A file without that key holds
whole tensors. The shape of a tensor is the maximum of its pieces' ends.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import state_files
from edl_workflows.training.checkpoints.manifest import Layout, RowOrder, read_manifest, verify_checkpoint
from edl_workflows.training.checkpoints.tensors import Array, Loaded

OFFSETS = "DCP_SHARDING_INFO"
_SAVED_OFFSETS = "saved_offsets"
_INTERNAL = frozenset({"edl.batch"})
"""Names of tensors that don't belong to the model."""


class Piece(NamedTuple):
    """A piece of a tensor.

    Attributes:
        name: name of the tensor.
        offset: offset of the piece in the tensor, along each axis.
        content: the piece.
    """

    name: str
    offset: tuple[int, ...]
    content: Array

    @property
    def end(self) -> tuple[int, ...]:
        """Where the piece ends in its tensor, along each axis."""
        return tuple(start + size for start, size in zip(self.offset, self.content.shape, strict=True))


def write_offsets(offsets: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """The metadata of a part that records where its pieces belong.

    Args:
        offsets: offsets of all pieces of the part, by name of their tensor.
    """
    saved_offsets = {name: {_SAVED_OFFSETS: list(offset)} for name, offset in offsets.items()}
    return {OFFSETS: json.dumps(saved_offsets, separators=(",", ":"))}


def pieces(part: Loaded, where: str) -> list[Piece]:
    """The pieces of a part. `where` names the checkpoint in errors.

    Raises:
        CheckpointError: the part does not record where its pieces belong.
    """
    try:
        offsets = json.loads(part.metadata.get(OFFSETS, "null"))
        return [_piece(name, content, offsets) for name, content in part.tensors.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{where}: does not say where its tensors belong: {error!r}") from error


def _piece(name: str, content: Array, offsets: Any) -> Piece:
    saved_offset = [0] * content.ndim if offsets is None else offsets[name][_SAVED_OFFSETS]
    offset = tuple(map(int, saved_offset))
    if len(offset) != content.ndim or min(offset, default=0) < 0:
        raise ValueError(f"{name} of shape {content.shape} at {offset}")
    return Piece(name, offset, content)


def assemble(parts: Sequence[Loaded], where: str) -> Loaded:
    """Assemble the whole tensors of a checkpoint, and the metadata, from all its parts. Tensors that consist
    of one piece are not copied. `where` names the checkpoint in errors.

    Raises:
        CheckpointError: a piece is missing, or pieces do not fit together.
    """
    pieces_by_name: dict[str, dict[tuple[int, ...], Piece]] = {}
    for part in parts:
        for piece in pieces(part, where):
            pieces_by_name.setdefault(piece.name, {})[piece.offset] = piece
    whole = {name: _join(list(of_name.values()), where) for name, of_name in pieces_by_name.items()}
    metadata = {key: text for part in parts for key, text in part.metadata.items() if key != OFFSETS}
    return Loaded(whole, metadata)


def _join(pieces: list[Piece], where: str) -> Array:
    first = pieces[0]
    kinds = {(piece.content.dtype, piece.content.ndim) for piece in pieces}
    shape = tuple(map(max, zip(*(piece.end for piece in pieces), strict=True))) if first.content.ndim else ()
    if len(kinds) > 1 or sum(piece.content.size for piece in pieces) != math.prod(shape):
        raise CheckpointError(f"{where}: the pieces of tensor {first.name} do not make up a whole")
    if len(pieces) == 1:
        return first.content
    whole = np.empty(shape, first.content.dtype)
    for piece in pieces:
        whole[tuple(map(slice, piece.offset, piece.end))] = piece.content
    return whole


class WholeTensors(Mapping[str, Array]):
    """Tensors of a checkpoint by name, each read on access, with the rows of tables in the order of the ids.

    Args:
        saved: the tensors as they are in the checkpoint's files.
        layout: how they are cut.
        where: path or URI of the checkpoint, for errors.
    """

    def __init__(self, saved: Mapping[str, Array], layout: Layout, where: str) -> None:
        self._saved = saved
        self._layout = layout
        self._where = where

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._saved if name not in _INTERNAL)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Array:
        if name in _INTERNAL:
            raise KeyError(name)
        variable = self._layout.get(name)
        parts = variable.parts[0] if variable is not None and variable.parts else 1
        if variable is None or parts == 1 or variable.order is RowOrder.ID:
            return self._saved[name]
        if variable.order is RowOrder.MOD:
            return _order_by_id(self._saved[name], parts)
        raise CheckpointError(
            f"{self._where}: {name} is cut into {parts} parts, and the order of their rows "
            + (
                "is not recorded: open it with the program's function that builds the model, "
                "open_model(checkpoint, build)"
                if variable.order is None
                else "is ambiguous: the program looks it up with several values of partition_strategy"
            )
        )


def _order_by_id(table: Array, parts: int) -> Array:
    """The rows of a table by id, if id *i* is row *i // parts* of part *i % parts*."""
    ordered = np.empty_like(table)
    start = 0
    for part in range(parts):
        rows = ordered[part::parts]
        rows[:] = table[start : start + len(rows)]
        start += len(rows)
    return ordered


def load_checkpoint(folder: Path | str) -> Loaded:
    """Read the state of a checkpoint that was saved in two stages, by one process or in parts. Its checksums
    are verified first.

    Args:
        folder: folder of the checkpoint: its URI, if the job's checkpoints are in a folder. That of an object
            store is first copied by `open_store(…).local(…)`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or was not saved in two stages.
        InvalidError: ``ml_dtypes``, which the tensors' types need, is not installed here.
    """
    folder = Path(folder)
    verify_checkpoint(folder)
    manifest = read_manifest(folder)
    files = state_files(manifest)
    if not files:
        raise CheckpointError(f"{folder}: holds no state that was saved in two stages")
    loaded = read_state_files(folder, files)
    return Loaded(WholeTensors(loaded.tensors, manifest.variables or {}, str(folder)), loaded.metadata)


def read_state_files(folder: Path, files: Sequence[str]) -> Loaded:
    """The whole tensors in the files of a state (`state_files`), and the metadata.

    Raises:
        CheckpointError, InvalidError: see `load_checkpoint`.
    """
    return assemble([tensors.load(folder / file) for file in files], str(folder))
