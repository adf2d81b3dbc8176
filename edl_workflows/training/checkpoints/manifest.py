"""The manifest of a checkpoint: its files with sizes and SHA-256 sums, its data position, and how its
variables are cut.

Parameter servers hold parts of variables, and the way in which a program cuts a variable belongs to the
model: with its default ``mod`` strategy, TensorFlow's ``embedding_lookup`` reads row *id // n* of part
*id % n*. So the manifest records the parts and the order of their rows. Training that continues from the
checkpoint cuts its variables the same way, on any number of servers, and a reader finds each id's row.

One core computes the SHA-256 sum of 2 GB a second at most. So the manifest also has the sums of the chunks of
large files, which are checked in several threads.
"""

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.message import describe_problems

MANIFEST = "MANIFEST.json"
MAX_MANIFEST_BYTES = 64 * 2**20
"""Enough for some 400,000 files."""
MAX_PUBLISHED_NS = 2**63 - 1
CHUNK_BYTES = 64 * 2**20
"""Size of the chunks of a large file."""
_BUFFER_BYTES = 2**20
_MAX_THREADS = 8


class RowOrder(StrEnum):
    """How the rows of a variable in several parts are ordered, if its parts are put one after another."""

    ID = "id"
    """By id, as in a variable of one part."""
    MOD = "mod"
    """Id *i* is row *i // n* of part *i % n* of *n*."""
    MIXED = "mixed"
    """The program looks up the same table in several ways, which find different rows."""


class VariableLayout(BaseModel):
    """A variable in a checkpoint's manifest.

    Attributes:
        shape: shape of the whole variable; None if it is not known in advance, or if this is not a variable.
        parts: number of parts along each axis.
        order: how its rows are ordered; None for a single part, and in checkpoints of versions that did not
            record it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    shape: list[int] | None = Field(default=None, max_length=64)
    parts: list[int] = Field(default_factory=list, max_length=64)
    order: RowOrder | None = None


Layout = Mapping[str, VariableLayout]
"""The variables of a model by name."""


def describe_difference(saved: Layout, model: Layout) -> str:
    """Describe how the first variable that differs between a checkpoint and a model differs; "" if none
    does."""
    for name in sorted(saved.keys() | model.keys()):
        if (difference := _difference(saved.get(name), model.get(name))) != "":
            return f"variable {name}: {difference}"
    return ""


def _difference(saved: VariableLayout | None, model: VariableLayout | None) -> str:
    if model is None:
        return "the checkpoint has it, the model does not"
    if saved is None:
        return "the model has it, the checkpoint does not"
    if saved.shape is None or model.shape is None:
        return ""
    if saved.shape != model.shape:
        return f"its shape is {tuple(saved.shape)} in the checkpoint and {tuple(model.shape)} in the model"
    if saved.parts != model.parts:
        return f"it is cut into {_count(saved)} parts in the checkpoint and {_count(model)} in the model"
    if None not in (saved.order, model.order) and saved.order != model.order:
        return (
            f"its rows are in the order {str(saved.order)!r} in the checkpoint and {str(model.order)!r} in "
            "the model, which looks them up with another partition_strategy"
        )
    return ""


def _count(variable: VariableLayout) -> str:
    return " x ".join(map(str, variable.parts))


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileChunks(BaseModel):
    """The checksums of the chunks of a file.

    Attributes:
        chunk_bytes: bytes of each chunk; the last one may have fewer.
        sha256: their SHA-256 sums.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    chunk_bytes: int = Field(ge=_BUFFER_BYTES)
    sha256: list[Sha256]


class FileEntry(BaseModel):
    """One file of a checkpoint.

    Attributes:
        size: bytes.
        sha256: its SHA-256 sum.
        chunks: the sums of its chunks, if it is large and was just described. They are not part of the entry
            in JSON, since older versions refuse entries with further fields; see `Manifest.chunks`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0)
    sha256: Sha256
    chunks: FileChunks | None = Field(default=None, exclude=True)


class Manifest(BaseModel):
    """Contents of a complete checkpoint.

    Attributes:
        step: global step of the checkpoint.
        published_ns: publication time in Unix nanoseconds, always later than that of earlier checkpoints,
            even if the clock jumps. The newest checkpoint is the one published last; after a rollback it need
            not have the highest step.
        files: the files, by path relative to the checkpoint's folder.
        chunks: the checksums of the chunks of large files, by path.
        position: data consumed at that step, as reported by the job's master; None if unknown.
        variables: the model's variables and how they are cut; None if unknown.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = Field(ge=0, lt=2**63)
    published_ns: int = Field(ge=0, le=MAX_PUBLISHED_NS)
    files: dict[str, FileEntry] = Field(min_length=1)
    chunks: dict[str, FileChunks] = {}
    position: dict[str, Any] | None = None
    variables: dict[str, VariableLayout] | None = None


def verify_checkpoint(path: Path) -> CheckpointRef:
    """Check that a checkpoint is complete and unchanged. Each byte is read once; several large files, and the
    chunks of a large file, are read in several threads.

    Raises:
        CheckpointError: a file is missing, truncated or changed; the message names it.
    """
    manifest = read_manifest(path)
    root = path.resolve()
    of_large: list[Callable[[], None]] = []
    for name, entry in manifest.files.items():
        file = path / name
        if not file.resolve().is_relative_to(root):
            raise CheckpointError(f"{file}: is a link to a file outside the checkpoint")
        if entry.size > CHUNK_BYTES:
            of_large += _checks_of(file, entry, manifest.chunks.get(name))
        else:
            _check_bytes(file, entry.size, range(entry.size), entry.sha256)
    if of_large:
        count = min(_MAX_THREADS, len(of_large), os.cpu_count() or 1)
        with ThreadPoolExecutor(count, "verify") as threads:
            for done in [threads.submit(check) for check in of_large]:
                done.result()
    return CheckpointRef(uri=str(path), step=manifest.step)


def _checks_of(file: Path, entry: FileEntry, chunks: FileChunks | None) -> Iterator[Callable[[], None]]:
    """Functions that together check a file."""
    if chunks is None:
        yield partial(_check_bytes, file, entry.size, range(entry.size), entry.sha256)
        return
    starts = range(0, entry.size, chunks.chunk_bytes)
    if len(starts) != len(chunks.sha256):
        raise CheckpointError(
            f"{file}: the manifest is damaged: it has {len(chunks.sha256)} sums of {len(starts)} chunks"
        )
    for start, expected in zip(starts, chunks.sha256, strict=True):
        chunk = range(start, min(start + chunks.chunk_bytes, entry.size))
        yield partial(_check_bytes, file, entry.size, chunk, expected)


def _check_bytes(file: Path, expected_size: int, chunk: range, expected: str) -> None:
    """Check the size of a file, and the sum of some of its bytes."""
    try:
        with open_regular(file) as content:
            size = os.fstat(content.fileno()).st_size
            digest = _digest(content, chunk) if size == expected_size else ""
    except OSError as error:
        raise CheckpointError(f"{file}: a file of the checkpoint is missing: {error}") from error
    if size != expected_size:
        raise CheckpointError(f"{file}: torn: {size} bytes where the manifest says {expected_size}")
    if digest != expected:
        raise CheckpointError(f"{file}: changed: its SHA-256 is not the manifest's")


def _digest(content: io.BufferedReader, chunk: range) -> str:
    content.seek(chunk.start)
    digest = hashlib.sha256()
    for piece in _read_pieces(content, len(chunk)):
        digest.update(piece)
    return digest.hexdigest()


def _read_pieces(content: io.BufferedReader, size: int) -> Iterator[memoryview]:
    """The next bytes of a file, in pieces that share a buffer."""
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, size)))
    while size > 0 and (count := content.readinto(buffer[:size])):
        size -= count
        yield buffer[:count]


def open_regular(file: Path) -> io.BufferedReader:
    """Open a file of a checkpoint for reading. Only regular files are opened: a pipe would block, a link may
    lead anywhere, and opening a device can have side effects.

    Raises:
        CheckpointError: it is a link, a pipe, a device, a socket or a folder.
        OSError: it is missing, or can't be read.
    """
    if stat.S_ISREG(file.lstat().st_mode):
        flags = (
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )  # the file may be replaced in between
        opened = os.fdopen(os.open(file, flags), "rb")
        if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return opened
        opened.close()
    raise CheckpointError(f"{file}: is not a regular file: a checkpoint consists of regular files only")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the checkpoint in a folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    file = path / MANIFEST
    try:
        with open_regular(file) as opened:
            content = opened.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{file}: is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
    except OSError as error:
        raise CheckpointError(f"{file}: no complete checkpoint: {error}") from error
    return parse_manifest(content, str(file))


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Args:
        content: JSON.
        where: path or URI, for messages.

    Raises:
        CheckpointError: it is damaged, or names files outside the checkpoint.
    """
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(f"{where}: the manifest is damaged: {describe_problems(error)[0]}") from error
    for name in manifest.files:
        inner = Path(name)
        if not inner.parts or inner.is_absolute() or ".." in inner.parts or "\0" in name:
            raise CheckpointError(f"{where}: names {name!r}, which lies outside the checkpoint")
    return manifest


def describe_file(file: Path) -> FileEntry:
    """Sync a file to disk, and describe its content.

    Raises:
        CheckpointError: it is not a regular file.
    """
    with open_regular(file) as content:
        os.fsync(content.fileno())
        size = os.fstat(content.fileno()).st_size
        if size <= CHUNK_BYTES:
            return FileEntry(size=size, sha256=_digest(content, range(size)))
        whole, sums = hashlib.sha256(), []
        for start in range(0, size, CHUNK_BYTES):
            chunk = hashlib.sha256()
            for piece in _read_pieces(content, min(CHUNK_BYTES, size - start)):
                whole.update(piece)
                chunk.update(piece)
            sums.append(chunk.hexdigest())
        chunks = FileChunks(chunk_bytes=CHUNK_BYTES, sha256=sums)
        return FileEntry(size=size, sha256=whole.hexdigest(), chunks=chunks)


def describe_files(folder: Path) -> dict[str, FileEntry]:
    """All files in a folder, by path relative to it; see `describe_file`."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return {str(file.relative_to(folder)): describe_file(file) for file in files}


def write_manifest(
    folder: Path,
    step: int,
    published_ns: int,
    position: Mapping[str, Any] | None,
    variables: Layout | None,
    files: Mapping[str, FileEntry],
) -> None:
    """Write the manifest of a folder whose files are synced (`describe_file`), and sync it to disk.

    Raises:
        CheckpointError: there are no files.
    """
    if not files:
        raise CheckpointError(f"{folder}: nothing was saved for step {step}")
    manifest = Manifest(
        step=step,
        published_ns=published_ns,
        files=dict(files),
        chunks={name: entry.chunks for name, entry in files.items() if entry.chunks is not None},
        position=None if position is None else dict(position),
        variables=None if variables is None else dict(variables),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    for path in (folder / MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync_path(path)


def sync_path(path: Path) -> None:
    """Sync a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
