"""Checkpoints in an object store, or at any URI that fsspec supports (``pip install edl-workflows[fsspec]``,
plus a driver).

Object stores have no rename, so a checkpoint is published by its manifest, which is written last: without a
manifest the other files don't count. Before it is restored, a checkpoint is downloaded and checked against
its manifest.
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

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.reported import check_checkpoint_place
from edl_workflows.training.checkpoints.checkpoint_parts import (
    Part,
    entry_file,
    find_missing_parts,
    list_parts,
    read_entries,
)
from edl_workflows.training.checkpoints.checkpoints import (
    ABANDONED_SECONDS,
    PREFIX,
    CheckpointStore,
    OnDamage,
    ignore_damage,
    newest_first,
    unwritable_error,
)
from edl_workflows.training.checkpoints.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Layout,
    Manifest,
    describe_file,
    parse_manifest,
    verify_checkpoint,
    write_manifest,
)

_URI = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NAME = re.compile(rf"^{PREFIX}[0-9A-Za-z-]+$")


def open_store(where: str | Path, keep: int = 3) -> CheckpointStore:
    """Open the checkpoints in a folder, or at a URI such as ``s3://bucket/run``.

    Args:
        where: a path, or a URI that fsspec understands.
        keep: number of complete checkpoints to keep, at least 1; the newest are kept.

    Raises:
        InvalidError: fsspec or its driver for the URI is not installed, or the URI is not allowed for
            checkpoints.
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
        uri: URI of the folder or prefix.
        keep: number of complete checkpoints to keep, at least 1; the newest are kept.

    Raises:
        InvalidError: fsspec, or its driver for the URI, is not installed.
    """

    part_seconds = 600.0  # an upload is seen only when it is complete

    def __init__(self, uri: str, keep: int = 3) -> None:
        copies = tempfile.mkdtemp(prefix="edl-checkpoints-")  # verified downloads; removed with this object
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
        """URI, with which another process can open the same store."""
        return self._uri

    def _save(self, name: str, step: int, fill: Callable[[Path], None], writer: str) -> None:  # noqa: ARG002
        # Writers of the same name write the same content.
        with tempfile.TemporaryDirectory(prefix="edl-checkpoint-") as local:
            folder = Path(local)
            try:
                fill(folder)
            except OSError as error:
                raise unwritable_error(folder, step, error) from error
            try:
                with self._reaching(f"the checkpoint of step {step} can't be written"):
                    self._upload(folder, name)
            except CheckpointError:
                self._remove_remote(name)
                raise

    def put_part(
        self,
        name: str,
        part: Part,
        write: Callable[[Path], object],
        writer: str,  # noqa: ARG002
    ) -> None:
        """Save one part of a checkpoint; see `CheckpointStore.put_part`. Writers of the same part write the
        same content."""
        with tempfile.TemporaryDirectory(prefix="edl-checkpoint-") as local:
            file, entry = Path(local, part.file), Path(local, entry_file(part))
            try:
                write(file)
                entry.write_text(describe_file(file).model_dump_json())
            except OSError as error:
                raise unwritable_error(file, 0, error) from error
            with self._reaching(f"{name}/{part.file} can't be written"):
                self._fs.makedirs(f"{self._root}/{name}", exist_ok=True)
                self._fs.put_file(str(file), f"{self._root}/{name}/{file.name}")
                self._fs.put_file(str(entry), f"{self._root}/{name}/{entry.name}")

    def missing_parts(self, name: str, count: int) -> tuple[list[int], int]:
        """The missing parts, and the total size of all files; see `CheckpointStore.missing_parts`."""
        self._fs.invalidate_cache()
        with self._reaching(f"{name} can't be listed"):
            try:
                listed = self._fs.ls(f"{self._root}/{name}", detail=True)
            except FileNotFoundError:
                listed = []
        sizes = {file["name"].rpartition("/")[2]: file.get("size") or 0 for file in listed}
        return find_missing_parts(sizes, count)

    def publish_parts(
        self,
        step: int,
        count: int,
        *,
        name: str,
        position: Mapping[str, Any] | None = None,
        variables: Layout | None = None,
    ) -> CheckpointRef:
        """Publish a checkpoint of which all parts have been saved; see `CheckpointStore.publish_parts`."""
        parts, folder = list_parts(count), f"{self._root}/{name}"
        with (
            self._reaching(f"{name} can't be published"),
            tempfile.TemporaryDirectory(prefix="edl-checkpoint-") as local,
        ):
            files = read_entries(parts, lambda file: self._fs.cat_file(f"{folder}/{file}"))
            write_manifest(Path(local), step, self._after_all(), position, variables, files)
            self._fs.put_file(str(Path(local, MANIFEST)), f"{folder}/{MANIFEST}")
            for part in parts:
                self._fs.rm_file(f"{folder}/{entry_file(part)}")
        return CheckpointRef(uri=f"{self._uri}/{name}", step=step)

    def discard_parts(self, name: str) -> None:
        """Remove the parts of a checkpoint that will not be published, unless somebody has published it."""
        with contextlib.suppress(CheckpointError):
            if not self._exists(f"{self._uri}/{name}"):
                self._remove_remote(name)

    def verify(self, ref: CheckpointRef) -> CheckpointRef:
        """Download a checkpoint, and check that it is complete."""
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
        checkpoint = verify_checkpoint(unfinished)
        unfinished.rename(local)
        return CheckpointRef(uri=ref.uri, step=checkpoint.step)

    def local(self, ref: CheckpointRef) -> Path:
        """A local folder with the files of a complete checkpoint; valid until another one is verified."""
        self.verify(ref)
        return self.folder / self._name(ref)

    def manifest(self, ref: CheckpointRef) -> Manifest:
        """The manifest of a checkpoint, as it is stored remotely."""
        return self._manifest_of(self._name(ref))

    def discard(self, ref: CheckpointRef) -> None:
        """Remove a checkpoint."""
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
        published = []
        for name in self._names():
            try:
                published.append((self._manifest_of(name), f"{self._uri}/{name}"))
            except CheckpointError as error:
                # A folder without a manifest is being written, or its writer has died.
                if self._exists(f"{self._uri}/{name}"):
                    on_damage(f"{self._uri}/{name}", error)
        return newest_first(published)

    def _exists(self, uri: str) -> bool:
        with self._reaching(f"{uri} can't be read"):
            return bool(self._fs.exists(f"{self._root}/{uri.rpartition('/')[2]}/{MANIFEST}"))

    def _manifest_of(self, name: str) -> Manifest:
        path = f"{self._root}/{name}/{MANIFEST}"
        with self._reaching(f"{name}/{MANIFEST}: no complete checkpoint"):
            if self._fs.size(path) > MAX_MANIFEST_BYTES:
                raise CheckpointError(f"{path}: is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
            content = self._fs.cat_file(path)
        return parse_manifest(content, f"{self._uri}/{name}/{MANIFEST}")

    def _name(self, ref: CheckpointRef) -> str:
        place, _, name = ref.uri.rpartition("/")
        if place != self._uri or not _NAME.match(name):
            raise CheckpointError(f"{ref.uri}: is not in {self._uri}")
        return name

    def retire(self) -> None:
        """Remove checkpoints beyond `keep`, and leftovers of killed writers."""
        # Failures are ignored: the new checkpoint is published already.
        with contextlib.suppress(CheckpointError):
            for _, uri in self._published()[self.keep :]:
                self._remove_remote(uri.rpartition("/")[2])
            for name in self._names():
                if self._abandoned(name):
                    self._remove_remote(name)

    def _abandoned(self, name: str) -> bool:
        """Whether a checkpoint has no manifest and has not been written to for a long time."""
        if self._exists(f"{self._uri}/{name}"):
            return False
        with contextlib.suppress(Exception):  # some stores have no modification times; then it is kept
            files = self._fs.find(f"{self._root}/{name}")
            newest = max((self._fs.modified(file) for file in files), default=datetime.now(UTC))
            age = time.time() - newest.replace(tzinfo=newest.tzinfo or UTC).timestamp()
            return age > ABANDONED_SECONDS
        return False

    def _remove_remote(self, name: str) -> None:
        # The manifest first, so that readers never see a partial checkpoint. Failures are retried next time.
        with contextlib.suppress(Exception):
            self._fs.rm_file(f"{self._root}/{name}/{MANIFEST}")
        with contextlib.suppress(Exception):
            self._fs.rm(f"{self._root}/{name}", recursive=True)

    def _forget_copies(self) -> None:
        self.folder.mkdir(exist_ok=True)  # the machine may have cleaned up its temporary files
        for copy in self.folder.iterdir():
            shutil.rmtree(copy, ignore_errors=True)

    @contextlib.contextmanager
    def _reaching(self, failure: str) -> Iterator[None]:
        """Map any error to CheckpointError, since the exceptions of fsspec's drivers have no common base
        class."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{self._uri}: {failure}: {type(error).__name__}: {error}") from error
