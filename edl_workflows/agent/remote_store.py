"""Checkpoints in an object store, or wherever else fsspec reaches (``pip install edl-workflows[fsspec]`` and its driver).

Such stores have no rename, so a checkpoint is published by its manifest, which is written last: without it the files
before it are nothing. To restore, a checkpoint is copied to this machine and compared with its manifest there.
"""

import contextlib
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from edl_workflows.agent.checkpoints import (
    ABANDONED_SECONDS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    PREFIX,
    CheckpointStore,
    Manifest,
    OnDamage,
    checkpoint_name,
    ignore_damage,
    newest_first,
    parse_manifest,
    seal,
    unwritable,
    verify,
)
from edl_workflows.agent.layout import Layout
from edl_workflows.exceptions import CheckpointError, InvalidError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.reported import check_checkpoint_place

_URI = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NAME = re.compile(rf"^{PREFIX}[0-9A-Za-z-]+$")


def open_store(where: str | Path, keep: int = 3) -> CheckpointStore:
    """The checkpoints in a folder, or at a URI as ``s3://bucket/run``.

    Args:
        where: a path, or a URI that fsspec understands.
        keep: how many of the newest complete checkpoints stay; at least 1.

    Raises:
        InvalidError: fsspec, or its driver for the URI, is not installed; or no checkpoint's URI may be so.
    """
    if isinstance(where, Path) or not _URI.match(where):
        store = CheckpointStore(Path(where), keep)
    elif urlsplit(where).scheme.lower() == "file":
        store = CheckpointStore(Path(unquote(urlsplit(where).path)), keep)
    else:
        store = RemoteStore(where, keep)
    check_checkpoint_place(store.place)
    return store


class RemoteStore(CheckpointStore):
    """The checkpoints of one training run at a URI.

    Args:
        uri: of what holds them.
        keep: how many of the newest complete checkpoints stay; at least 1.

    Raises:
        InvalidError: fsspec, or its driver for the URI, is not installed.
    """

    def __init__(self, uri: str, keep: int = 3) -> None:
        copies = tempfile.mkdtemp(prefix="edl-checkpoints-")  # of what was verified, until this object goes
        weakref.finalize(self, shutil.rmtree, copies, ignore_errors=True)
        super().__init__(Path(copies), keep)
        self._uri = uri.rstrip("/")
        try:
            import fsspec

            self._fs, self._root = fsspec.url_to_fs(self._uri)
        except (ImportError, ValueError) as error:
            raise InvalidError(
                f"checkpoints at {uri}: {error}: install edl-workflows[fsspec] and the driver of the scheme"
            ) from error

    @property
    def place(self) -> str:
        """Where it is, for a process that opens the same store."""
        return self._uri

    def publish(
        self,
        step: int,
        write: Callable[[Path], object],
        *,
        name: str = "",
        position: Mapping[str, Any] | None = None,
        variables: Layout | None = None,
        writer: str = "",  # noqa: ARG002 - what writers of the same name write is the same
        retire: bool = True,
    ) -> CheckpointRef:
        """Save a checkpoint; see `CheckpointStore.publish`."""
        name = name or checkpoint_name(step)
        with tempfile.TemporaryDirectory(prefix="edl-checkpoint-") as local:
            folder = Path(local)
            try:
                write(folder)
                seal(folder, step, self._after_all(), position, variables)
            except OSError as error:
                raise unwritable(folder, step, error) from error
            try:
                with self._reaching(f"the checkpoint of step {step} can't be written"):
                    self._upload(folder, name)
            except CheckpointError:
                self._remove_remote(name)
                raise
        if retire:
            self.retire()
        return CheckpointRef(uri=f"{self._uri}/{name}", step=step)

    def verify(self, ref: CheckpointRef) -> CheckpointRef:
        """Copy one of the checkpoints to this machine, and see that it is whole."""
        name = self._name(ref)
        local = self.folder / name
        if local.exists():
            return ref
        manifest = self._manifest_of(name)
        unfinished = self.folder / f".{name}"
        with self._reaching(f"{name} can't be read"):
            self._forget_copies()
            for file in (MANIFEST, *manifest.files):
                (unfinished / file).parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(f"{self._root}/{name}/{file}", str(unfinished / file))
        found = verify(unfinished)
        unfinished.rename(local)
        return CheckpointRef(uri=ref.uri, step=found.step)

    def local(self, ref: CheckpointRef) -> Path:
        """A folder of this machine with the files of a whole checkpoint; until another is verified."""
        self.verify(ref)
        return self.folder / self._name(ref)

    def manifest(self, ref: CheckpointRef) -> Manifest:
        """What one of the checkpoints says of itself."""
        return self._manifest_of(self._name(ref))

    def discard(self, ref: CheckpointRef) -> None:
        """Remove a checkpoint that nobody wants."""
        self._remove_remote(self._name(ref))

    def _upload(self, folder: Path, name: str) -> None:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
        for file in files:
            target = f"{self._root}/{name}/{file.relative_to(folder)}"
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(file), target)
        self._fs.put_file(str(folder / MANIFEST), f"{self._root}/{name}/{MANIFEST}")

    def _names(self) -> list[str]:
        self._fs.invalidate_cache()
        with self._reaching("the checkpoints can't be listed"):
            try:
                listed = self._fs.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
            names = [path.rstrip("/").rpartition("/")[2] for path in listed]
        return [name for name in names if _NAME.match(name)]

    def _published(self, on_damage: OnDamage = ignore_damage) -> list[tuple[Manifest, str]]:
        found = []
        for name in self._names():
            try:
                found.append((self._manifest_of(name), f"{self._uri}/{name}"))
            except CheckpointError as error:
                # Without a manifest it is no checkpoint: it is being written, or its writer has died.
                if self._exists(f"{self._uri}/{name}"):
                    on_damage(f"{self._uri}/{name}", error)
        return newest_first(found)

    def _exists(self, uri: str) -> bool:
        with self._reaching(f"{uri} can't be read"):
            return bool(self._fs.exists(f"{self._root}/{uri.rpartition('/')[2]}/{MANIFEST}"))

    def _manifest_of(self, name: str) -> Manifest:
        path = f"{self._root}/{name}/{MANIFEST}"
        with self._reaching(f"{name}/{MANIFEST}: no complete checkpoint"):
            if self._fs.size(path) > MAX_MANIFEST_BYTES:
                raise CheckpointError(f"{path}: has more than {MAX_MANIFEST_BYTES >> 20} MiB")
            content = self._fs.cat_file(path)
        return parse_manifest(content, f"{self._uri}/{name}/{MANIFEST}")

    def _name(self, ref: CheckpointRef) -> str:
        place, _, name = ref.uri.rpartition("/")
        if place != self._uri or not _NAME.match(name):
            raise CheckpointError(f"{ref.uri}: lies outside of {self._uri}")
        return name

    def retire(self) -> None:
        """Remove the checkpoints that are more than `keep`, and what killed writers left."""
        # The new one is published, whatever becomes of the old ones.
        with contextlib.suppress(CheckpointError):
            for _, uri in self._published()[self.keep :]:
                self._remove_remote(uri.rpartition("/")[2])
            for name in self._names():
                if self._abandoned(name):
                    self._remove_remote(name)

    def _abandoned(self, name: str) -> bool:
        """Whether a checkpoint has no manifest, and nobody has written to it for long."""
        if self._exists(f"{self._uri}/{name}"):
            return False
        with contextlib.suppress(Exception):  # some stores don't know when; then it stays
            files = self._fs.find(f"{self._root}/{name}")
            newest = max((self._fs.modified(file) for file in files), default=datetime.now(UTC))
            age = time.time() - newest.replace(tzinfo=newest.tzinfo or UTC).timestamp()
            return age > ABANDONED_SECONDS
        return False

    def _remove_remote(self, name: str) -> None:
        # The manifest first: a reader sees it whole or not at all. What can't be removed now is another time.
        with contextlib.suppress(Exception):
            self._fs.rm_file(f"{self._root}/{name}/{MANIFEST}")
        with contextlib.suppress(Exception):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _forget_copies(self) -> None:
        self.folder.mkdir(exist_ok=True)  # a machine may clear its temporary files now and then
        for copy in self.folder.iterdir():
            shutil.rmtree(copy, ignore_errors=True)

    @contextlib.contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        """The errors of fsspec's many drivers have no common base."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{self._uri}: {what}: {type(error).__name__}: {error}") from error
