"""The manifest of a checkpoint: its files with sizes and SHA-256 sums, its data position, and how its
variables are cut.

Parameter servers hold parts of variables, and the way in which a program cuts a variable belongs to the
model: with its default ``mod`` strategy, TensorFlow's ``embedding_lookup`` reads row *id // n* of part
*id % n*. So the manifest records the parts and the order of their rows. Training that continues from the
checkpoint cuts its variables the same way, on any number of servers, and a reader finds each id's row.
"""

import hashlib
import io
import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.message import describe_problems

MANIFEST = "MANIFEST.json"
MAX_MANIFEST_BYTES = 64 * 2**20
"""Enough for some 400,000 files."""
MAX_PUBLISHED_NS = 2**63 - 1
LARGE_BYTES = 64 * 2**20
"""Larger files are checked in several threads."""
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


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """Contents of a complete checkpoint.

    Attributes:
        step: global step of the checkpoint.
        published_ns: publication time in Unix nanoseconds, always later than that of earlier checkpoints,
            even if the clock jumps. The newest checkpoint is the one published last; after a rollback it need
            not have the highest step.
        files: the files, by path relative to the checkpoint's folder.
        position: data consumed at that step, as reported by the job's master; None if unknown.
        variables: the model's variables and how they are cut; None if unknown.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = Field(ge=0, lt=2**63)
    published_ns: int = Field(ge=0, le=MAX_PUBLISHED_NS)
    files: dict[str, FileEntry] = Field(min_length=1)
    position: dict[str, Any] | None = None
    variables: dict[str, VariableLayout] | None = None


def verify_checkpoint(path: Path) -> CheckpointRef:
    """Check that a checkpoint is complete and unchanged. Several large files are read side by side.

    Raises:
        CheckpointError: a file is missing, truncated or changed; the message names it.
    """
    manifest = read_manifest(path)
    root = path.resolve()
    large: dict[Path, FileEntry] = {}
    for name, entry in manifest.files.items():
        file = path / name
        if not file.resolve().is_relative_to(root):
            raise CheckpointError(f"{file}: is a link to a file outside the checkpoint")
        if entry.size > LARGE_BYTES:
            large[file] = entry
        else:
            _check_file(file, entry)
    if large:
        with ThreadPoolExecutor(min(_MAX_THREADS, len(large), os.cpu_count() or 1), "verify") as threads:
            for checked in [threads.submit(_check_file, file, entry) for file, entry in large.items()]:
                checked.result()
    return CheckpointRef(uri=str(path), step=manifest.step)


def _check_file(file: Path, entry: FileEntry) -> None:
    try:
        with open_regular(file) as content:
            size = os.fstat(content.fileno()).st_size
            digest = hashlib.file_digest(content, "sha256").hexdigest() if size == entry.size else ""
    except OSError as error:
        raise CheckpointError(f"{file}: a file of the checkpoint is missing: {error}") from error
    if size != entry.size:
        raise CheckpointError(f"{file}: torn: {size} bytes where the manifest says {entry.size}")
    if digest != entry.sha256:
        raise CheckpointError(f"{file}: changed: its SHA-256 is not the manifest's")


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
        digest = hashlib.file_digest(content, "sha256").hexdigest()
        return FileEntry(size=os.fstat(content.fileno()).st_size, sha256=digest)


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
