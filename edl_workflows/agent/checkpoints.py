"""Checkpoints in a folder: published whole or not at all, verified before use, the newest complete one wins.

A checkpoint is a folder ``checkpoint-<step>-<random>`` with the framework's files and ``MANIFEST.json``, which lists their
sizes and SHA-256 sums. It is written under a hidden name, synced and renamed, so a crash leaves no half-written
checkpoint under a valid name; what a disk or a user does to it later, the manifest shows. Names are never used twice:
after a rollback the same step comes again with another data position.

Any framework's files will do. Not here: when to save (`edl_workflows.agent.job`) and how (the adapters).
"""

import contextlib
import errno
import hashlib
import io
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edl_workflows.agent.layout import Layout, VariableLayout
from edl_workflows.exceptions import CheckpointError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.message import problems

MANIFEST = "MANIFEST.json"
STATE_FILE = "state.safetensors"
"""The one file of a checkpoint that was saved in two stages."""
MAX_MANIFEST_BYTES = 64 * 2**20
"""Some 400,000 files' entries."""
MAX_PUBLISHED_NS = 2**63 - 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a storage says that has no room."""
PREFIX = "checkpoint-"
_UNFINISHED = ".unfinished-"
FOLLOW_SECONDS = 1.0
"""How often `CheckpointStore.follow` looks: a listing a second is cheap, and evaluation takes longer."""
ABANDONED_SECONDS = 3600.0
"""An unfinished checkpoint that nobody has written to for so long is removed."""

log = logging.getLogger(__name__)


class FileEntry(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a complete checkpoint consists of.

    Attributes:
        step: global step at which it was taken.
        published_ns: Unix nanoseconds of its publication: the newest checkpoint is the one that was published last,
            which after a rollback need not be the one with the highest step. Later than that of all before it, however
            the clock jumps.
        files: by path relative to the checkpoint's folder.
        position: which data was consumed when it was taken, as the job's master said; None where nobody did.
        variables: the model's, and how they are cut; None where nobody said.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    step: int = Field(ge=0, lt=2**63)
    published_ns: int = Field(ge=0, le=MAX_PUBLISHED_NS)
    files: dict[str, FileEntry] = Field(min_length=1)
    position: dict[str, Any] | None = None
    variables: dict[str, VariableLayout] | None = None


OnDamage = Callable[[str, CheckpointError], object]
"""Told of a checkpoint that can't be used, by its uri, and why."""


def ignore_damage(_uri: str, _error: CheckpointError) -> None:
    """For who asks only for what is whole."""


class CheckpointStore:
    """The checkpoints of one training run, in one folder.

    Args:
        folder: made when needed. For a job on several machines it must be shared storage.
        keep: how many of the newest complete checkpoints stay; at least 1.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}: at least one checkpoint must stay")
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100 - resolve() would follow a link that may be moved
        self.keep = keep

    @property
    def place(self) -> str:
        """Where it is, for a process that opens the same store."""
        return str(self.folder)

    def publish(
        self,
        step: int,
        write: Callable[[Path], object],
        *,
        name: str = "",
        position: Mapping[str, Any] | None = None,
        variables: Layout | None = None,
        writer: str = "",
        retire: bool = True,
    ) -> CheckpointRef:
        """Save a checkpoint; it is the newest when this returns. A failure leaves nothing behind.

        Args:
            step: global step at which the checkpoint is taken.
            write: writes the checkpoint's files into the folder that it is given.
            name: that was chosen for it by `checkpoint_name`; "": a fresh one.
            position: which data is consumed.
            variables: the model's, where their cut matters to who goes on from here.
            writer: who saves, where several may save a checkpoint of this name at the same time; each has its own.
            retire: whether older checkpoints go, as `keep` says; else call `retire` when it is sure that this one stays.

        Raises:
            CheckpointError: nothing was written, or the storage refused. What `write` raises goes through.
        """
        name = name or checkpoint_name(step)
        unfinished = self.folder / f"{_UNFINISHED}{name}{'-' * bool(writer)}{writer}"
        final = self.folder / name
        shutil.rmtree(unfinished, ignore_errors=True)  # of this very writer, which was killed
        try:
            unfinished.mkdir(parents=True)
            write(unfinished)
            seal(unfinished, step, self._after_all(), position, variables)
            unfinished.rename(final)
            _sync(self.folder)
        except OSError as error:
            raise unwritable(unfinished, step, error) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        if retire:
            self.retire()
        return CheckpointRef(uri=str(final), step=step)

    def verify(self, ref: CheckpointRef) -> CheckpointRef:
        """See that one of the checkpoints is whole; as the function of this name."""
        return verify(Path(ref.uri))

    def local(self, ref: CheckpointRef) -> Path:
        """A folder of this machine with the files of a whole checkpoint."""
        return Path(ref.uri)

    def discard(self, ref: CheckpointRef) -> None:
        """Remove a checkpoint that nobody wants."""
        self._remove(Path(ref.uri))

    def newest(self, on_damage: OnDamage = ignore_damage) -> CheckpointRef | None:
        """The newest complete checkpoint; None if there is none at all. Broken ones are passed over with a warning.

        Args:
            on_damage: told of each that was passed over.

        Raises:
            CheckpointError: there are some, but none is whole: to begin anew is for people to decide.
        """
        damaged: dict[str, CheckpointError] = {}
        found = None
        for manifest, uri in self._published(damaged.__setitem__):
            try:
                found = self.verify(CheckpointRef(uri=uri, step=manifest.step))
                break
            except CheckpointError as error:
                damaged[uri] = error
        # Retention takes some away.
        damaged = {uri: reason for uri, reason in damaged.items() if self._exists(uri)}
        if damaged and found is None:
            last = damaged[max(damaged)]
            raise CheckpointError(f"{self.place}: of {len(damaged)} checkpoints none is whole: {last}")
        for uri, reason in damaged.items():
            log.warning("%s; passed over", reason)
            on_damage(uri, reason)
        return found

    def latest(self) -> tuple[Manifest, CheckpointRef] | None:
        """The newest that is published, by its manifest; whether it is whole is not looked at.

        Raises:
            CheckpointError: the checkpoints can't be listed.
        """
        published = self._published()
        if not published:
            return None
        manifest, uri = published[0]
        return manifest, CheckpointRef(uri=uri, step=manifest.step)

    def follow(self, stopped: Callable[[], bool]) -> Iterator[CheckpointRef]:
        """New checkpoints as they come, for an evaluator. One that comes while another is evaluated may be skipped.

        Args:
            stopped: asked about once a second; ends the iteration after what there is then.
        """
        seen = ""
        while True:
            last = stopped()
            published = self._published()
            if published and published[0][1] != seen:
                manifest, seen = published[0]
                with contextlib.suppress(CheckpointError):  # retention may have removed it meanwhile
                    yield self.verify(CheckpointRef(uri=seen, step=manifest.step))
            elif last:
                return
            else:
                time.sleep(FOLLOW_SECONDS)

    def manifest(self, ref: CheckpointRef) -> Manifest:
        """What one of the checkpoints says of itself.

        Raises:
            CheckpointError: it is none, or its manifest is damaged.
        """
        return _manifest(Path(ref.uri))

    def _exists(self, uri: str) -> bool:
        return Path(uri).exists()

    def _published(self, on_damage: OnDamage = ignore_damage) -> list[tuple[Manifest, str]]:
        """All that have a readable manifest, newest first, with their uris.

        Raises:
            CheckpointError: the folder can't be listed: that is not the same as to be empty.
        """
        found = []
        for path in self._listed(PREFIX):
            try:
                found.append((_manifest(path), str(path)))
            except CheckpointError as error:
                on_damage(str(path), error)
        return newest_first(found)

    def _after_all(self) -> int:
        """A time of publication that makes a checkpoint the newest, also after a clock has jumped back."""
        newest = next((manifest.published_ns for manifest, _ in self._published()), 0)
        return min(max(time.time_ns(), newest + 1), MAX_PUBLISHED_NS)

    def _listed(self, prefix: str) -> list[Path]:
        try:
            return [path for path in self.folder.iterdir() if path.name.startswith(prefix)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(f"{self.folder}: the checkpoints can't be listed: {error}") from error

    def _remove(self, path: Path) -> None:
        # Hidden first: a reader sees it whole or not at all.
        hidden = self.folder / f"{_UNFINISHED}{path.name}"
        with contextlib.suppress(OSError):  # another process retires too
            path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def retire(self) -> None:
        """Remove the checkpoints that are more than `keep`, and what killed writers left. What can't be removed now is
        another time.
        """
        with contextlib.suppress(CheckpointError):
            for _, uri in self._published()[self.keep :]:
                self._remove(Path(uri))
            for left in self._listed(_UNFINISHED):
                with contextlib.suppress(OSError):
                    # The files' times, too: that of the folder stays while a large file is written into it.
                    written = max(path.lstat().st_mtime for path in (left, *left.rglob("*")))
                    if time.time() - written > ABANDONED_SECONDS:
                        shutil.rmtree(left, ignore_errors=True)


def verify(path: Path) -> CheckpointRef:
    """See that a checkpoint is whole.

    Raises:
        CheckpointError: it is missing, torn or changed; the message says which file.
    """
    manifest = _manifest(path)
    root = path.resolve()
    for name, entry in manifest.files.items():
        file = path / name
        if not file.resolve().is_relative_to(root):
            raise CheckpointError(f"{file}: is a link that leads out of the checkpoint")
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
    return CheckpointRef(uri=str(path), step=manifest.step)


def open_regular(file: Path) -> io.BufferedReader:
    """Open a file of a checkpoint to read it. What is no file is not opened: a pipe would keep the reader waiting, a link
    may lead anywhere, and to open a device can have effects.

    Raises:
        CheckpointError: it is a link, a pipe, a device, a socket or a folder.
        OSError: it is missing, or can't be read.
    """
    if stat.S_ISREG(file.lstat().st_mode):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # it may be replaced in between
        opened = os.fdopen(os.open(file, flags), "rb")
        if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            return opened
        opened.close()
    raise CheckpointError(f"{file}: is no file, and is not opened: a checkpoint consists of files alone")


def _manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        with open_regular(file) as opened:
            content = opened.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{file}: has more than {MAX_MANIFEST_BYTES >> 20} MiB")
    except OSError as error:
        raise CheckpointError(f"{file}: no complete checkpoint: {error}") from error
    return parse_manifest(content, str(file))


def parse_manifest(content: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: it is damaged, or names files outside of the checkpoint.
    """
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(f"{where}: the manifest is damaged: {problems(error)[0]}") from error
    for name in manifest.files:
        inner = Path(name)
        if not inner.parts or inner.is_absolute() or ".." in inner.parts or "\0" in name:
            raise CheckpointError(f"{where}: names {name!r}, which lies outside of the checkpoint")
    return manifest


def unwritable(where: Path, step: int, error: OSError) -> CheckpointError:
    """What is said of a checkpoint that the storage refused."""
    room = "; make room, or keep fewer checkpoints" if error.errno in FULL else ""
    return CheckpointError(f"{where}: the checkpoint of step {step} can't be written: {error}{room}")


def newest_first(found: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
    """Manifests with their uris, in the order in which checkpoints are tried."""
    return sorted(found, key=lambda entry: (entry[0].published_ns, entry[1]), reverse=True)


def checkpoint_name(step: int) -> str:
    """A fresh name: the same step may come again with another data position, so names are never used twice."""
    return f"{PREFIX}{step:012d}-{secrets.token_hex(4)}"


def seal(
    folder: Path,
    step: int,
    published_ns: int,
    position: Mapping[str, Any] | None,
    variables: Layout | None = None,
) -> None:
    """Write a folder's manifest, and see that all of it stands on the disk.

    Raises:
        CheckpointError: it has no files, or something else than files.
    """
    files = {}
    for file in sorted(path for path in folder.rglob("*") if not path.is_dir()):
        with open_regular(file) as content:
            os.fsync(content.fileno())
            digest = hashlib.file_digest(content, "sha256").hexdigest()
            entry = FileEntry(size=os.fstat(content.fileno()).st_size, sha256=digest)
        files[str(file.relative_to(folder))] = entry
    if not files:
        raise CheckpointError(f"{folder}: nothing was saved for step {step}")
    manifest = Manifest(
        step=step,
        published_ns=published_ns,
        files=files,
        position=None if position is None else dict(position),
        variables=None if variables is None else dict(variables),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1))
    for path in (folder / MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
