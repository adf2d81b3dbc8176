"""Checkpoints in a folder: published atomically, verified before use; the newest complete one wins.

A checkpoint is a folder ``checkpoint-<step>-<random>`` with the framework's files and a manifest
(`edl_workflows.training.checkpoints.manifest`). It is written under a hidden name, synced and renamed, so a
crash leaves no partial checkpoint under a valid name; the manifest reveals later damage. Names are never
reused, because after a rollback the same step can occur again with another data position.

Works with files of any framework. `edl_workflows.training.checkpoints.saving` decides when to save, the
adapters how.
"""

import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.checkpoint_parts import (
    Part,
    entry_file,
    find_missing_parts,
    list_parts,
    read_entries,
)
from edl_workflows.training.checkpoints.manifest import (
    MAX_PUBLISHED_NS,
    Layout,
    Manifest,
    describe_file,
    describe_files,
    read_manifest,
    sync_path,
    verify_checkpoint,
    write_manifest,
)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full storage."""
PREFIX = "checkpoint-"
_UNFINISHED = ".unfinished-"
FOLLOW_SECONDS = 1.0
"""Polling interval of `CheckpointStore.follow`: one listing per second is cheap, and evaluation takes
longer."""
ABANDONED_SECONDS = 3600.0
"""Age without a write after which an unfinished checkpoint is removed."""

log = logging.getLogger(__name__)


OnDamage = Callable[[str, CheckpointError], object]
"""Callback for a checkpoint that can't be used: its URI, and the reason."""


def ignore_damage(_uri: str, _error: CheckpointError) -> None:
    """Do nothing: the callback for callers that need only complete checkpoints."""


class CheckpointStore:
    """The checkpoints of one training run, in one folder.

    Args:
        folder: created when needed. For a job on several machines it must be on shared storage.
        keep: number of complete checkpoints to keep, at least 1; the newest are kept.
    """

    part_seconds = 30.0
    """Seconds after which the chief gives up a checkpoint if no bytes of the other members' parts arrive."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise CheckpointError(f"keep is {keep}: at least one checkpoint must stay")
        # resolve() would follow a link that may be moved
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100
        self.keep = keep

    @property
    def place(self) -> str:
        """Path or URI, with which another process can open the same store."""
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
        """Save a checkpoint. When this returns, it is the newest one. A failure leaves nothing behind.

        Args:
            step: global step of the checkpoint.
            write: writes the checkpoint's files into the given folder.
            name: from `checkpoint_name`; "" for a new one.
            position: the data consumed at that step.
            variables: the model's variables, if training that continues from the checkpoint must cut them
                the same way.
            writer: unique name of the writer, if several may save a checkpoint of this name at the same time.
            retire: whether to remove older checkpoints beyond `keep`. If False, call `retire` once the new
                checkpoint is sure to stay.

        Raises:
            CheckpointError: nothing was written, or the storage failed. Exceptions of `write` propagate.
        """

        def fill(folder: Path) -> None:
            write(folder)
            files = describe_files(folder)
            write_manifest(folder, step, self._after_all(), position, variables, files)

        name = name or checkpoint_name(step)
        self._save(name, step, fill, writer)
        if retire:
            self.retire()
        return CheckpointRef(uri=f"{self.place}/{name}", step=step)

    def _save(self, name: str, step: int, fill: Callable[[Path], None], writer: str) -> None:
        """Make a checkpoint from the files that `fill` writes into a folder; see `publish`."""
        unfinished = self.folder / f"{_UNFINISHED}{name}{'-' * bool(writer)}{writer}"
        shutil.rmtree(unfinished, ignore_errors=True)  # left by this writer, if it was killed
        try:
            unfinished.mkdir(parents=True)
            fill(unfinished)
            unfinished.rename(self.folder / name)
            sync_path(self.folder)
        except OSError as error:
            raise unwritable_error(unfinished, step, error) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def put_part(self, name: str, part: Part, write: Callable[[Path], object], writer: str) -> None:
        """Save one part of a checkpoint. The checkpoint exists once `publish_parts` has published all parts.
        Repeatable.

        Args:
            name: name of the checkpoint, from `shared_checkpoint_name`.
            part: which part.
            write: writes the part's file at the given path.
            writer: unique name of the writer, if several may save this part at the same time.

        Raises:
            CheckpointError: the storage failed. Exceptions of `write` propagate.
        """
        folder = self._parts_folder(name)
        unfinished = folder / f".{part.file}-{writer}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(unfinished)
            entry = describe_file(unfinished).model_dump_json()
            unfinished.rename(folder / part.file)
            unfinished.write_text(entry)
            unfinished.rename(folder / entry_file(part))  # the part is complete
            sync_path(folder)
        except OSError as error:
            raise unwritable_error(unfinished, 0, error) from error
        finally:
            unfinished.unlink(missing_ok=True)

    def missing_parts(self, name: str, count: int) -> tuple[list[int], int]:
        """The indices of the parts of a checkpoint that are still missing, and the total size of what has
        been written, which grows while somebody is still writing."""
        sizes: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for file in self._parts_folder(name).iterdir():
                with contextlib.suppress(FileNotFoundError):  # a writer has renamed it
                    sizes[file.name] = file.lstat().st_size
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
        """Publish a checkpoint of which all parts have been saved; see `put_part` and `publish`. Older
        checkpoints are not removed.

        Raises:
            CheckpointError: a part is missing, or the storage failed.
        """
        folder = self._parts_folder(name)
        parts = list_parts(count)
        try:
            files = read_entries(parts, lambda file: (folder / file).read_bytes())
            write_manifest(folder, step, self._after_all(), position, variables, files)
            folder.rename(self.folder / name)
            sync_path(self.folder)
        except OSError as error:
            raise unwritable_error(folder, step, error) from error
        for part in parts:
            (self.folder / name / entry_file(part)).unlink(missing_ok=True)
        return CheckpointRef(uri=f"{self.place}/{name}", step=step)

    def discard_parts(self, name: str) -> None:
        """Remove the parts of a checkpoint that will not be published."""
        shutil.rmtree(self._parts_folder(name), ignore_errors=True)

    def _parts_folder(self, name: str) -> Path:
        return self.folder / f"{_UNFINISHED}{name}-parts"

    def verify(self, ref: CheckpointRef) -> CheckpointRef:
        """Check that a checkpoint is complete; see
        `edl_workflows.training.checkpoints.manifest.verify_checkpoint`."""
        return verify_checkpoint(Path(ref.uri))

    def local(self, ref: CheckpointRef) -> Path:
        """A local folder with the files of a complete checkpoint."""
        return Path(ref.uri)

    def discard(self, ref: CheckpointRef) -> None:
        """Remove a checkpoint."""
        self._remove(Path(ref.uri))

    def newest(self, on_damage: OnDamage = ignore_damage) -> CheckpointRef | None:
        """The newest complete checkpoint; None if there are no checkpoints at all. Damaged checkpoints are
        skipped with a warning.

        Args:
            on_damage: called for each skipped checkpoint.

        Raises:
            CheckpointError: there are checkpoints, but none is complete. The user must decide whether to
                start anew.
        """
        damaged: dict[str, CheckpointError] = {}
        checkpoint = None
        for manifest, uri in self._published(damaged.__setitem__):
            try:
                checkpoint = self.verify(CheckpointRef(uri=uri, step=manifest.step))
                break
            except CheckpointError as error:
                damaged[uri] = error
        # Some may have been removed in the meantime because of `keep`.
        damaged = {uri: reason for uri, reason in damaged.items() if self._exists(uri)}
        if damaged and checkpoint is None:
            last = damaged[max(damaged)]
            raise CheckpointError(f"{self.place}: of {len(damaged)} checkpoints none is complete: {last}")
        for uri, reason in damaged.items():
            log.warning("%s; skipped", reason)
            on_damage(uri, reason)
        return checkpoint

    def latest(self) -> tuple[Manifest, CheckpointRef] | None:
        """The newest published checkpoint with its manifest, without checking its files.

        Raises:
            CheckpointError: the checkpoints can't be listed.
        """
        published = self._published()
        if not published:
            return None
        manifest, uri = published[0]
        return manifest, CheckpointRef(uri=uri, step=manifest.step)

    def follow(self, stopped: Callable[[], bool]) -> Iterator[CheckpointRef]:
        """Yield new checkpoints as they appear, for an evaluator. It always yields the newest one, so some
        may be skipped during a long evaluation.

        Args:
            stopped: called about once a second. After it has returned True, the iteration ends once the
                newest checkpoint has been yielded.
        """
        seen = ""
        while True:
            last = stopped()
            published = self._published()
            if published and published[0][1] != seen:
                manifest, seen = published[0]
                with contextlib.suppress(CheckpointError):  # it may have been removed in the meantime
                    yield self.verify(CheckpointRef(uri=seen, step=manifest.step))
            elif last:
                return
            else:
                time.sleep(FOLLOW_SECONDS)

    def manifest(self, ref: CheckpointRef) -> Manifest:
        """The manifest of a checkpoint.

        Raises:
            CheckpointError: there is no such checkpoint, or its manifest is damaged.
        """
        return read_manifest(Path(ref.uri))

    def _exists(self, uri: str) -> bool:
        return Path(uri).exists()

    def _published(self, on_damage: OnDamage = ignore_damage) -> list[tuple[Manifest, str]]:
        """All checkpoints with a readable manifest, newest first, with their URIs.

        Raises:
            CheckpointError: the folder can't be listed, which is not the same as an empty folder.
        """
        published = []
        for path in self._listed(PREFIX):
            try:
                published.append((read_manifest(path), str(path)))
            except CheckpointError as error:
                on_damage(str(path), error)
        return newest_first(published)

    def _after_all(self) -> int:
        """A publication time later than that of all checkpoints, even after the clock has jumped back."""
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
        # Rename it first, so that readers never see a partial checkpoint.
        hidden = self.folder / f"{_UNFINISHED}{path.name}"
        with contextlib.suppress(OSError):  # another process removes it, too
            path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)

    def retire(self) -> None:
        """Remove checkpoints beyond `keep`, and leftovers of killed writers. The next call retries what can't
        be removed now."""
        with contextlib.suppress(CheckpointError):
            for _, uri in self._published()[self.keep :]:
                self._remove(Path(uri))
            for left in self._listed(_UNFINISHED):
                with contextlib.suppress(OSError):
                    # Check the files too: the folder's mtime does not change while a large file is written.
                    written = max(path.lstat().st_mtime for path in (left, *left.rglob("*")))
                    if time.time() - written > ABANDONED_SECONDS:
                        shutil.rmtree(left, ignore_errors=True)


def unwritable_error(where: Path, step: int, error: OSError) -> CheckpointError:
    """The error for a checkpoint that could not be written."""
    room = "; make room, or keep fewer checkpoints" if error.errno in FULL else ""
    return CheckpointError(f"{where}: the checkpoint of step {step} can't be written: {error}{room}")


def newest_first(published: list[tuple[Manifest, str]]) -> list[tuple[Manifest, str]]:
    """Manifests with their URIs, in the order in which checkpoints are tried."""
    return sorted(published, key=lambda entry: (entry[0].published_ns, entry[1]), reverse=True)


def checkpoint_name(step: int) -> str:
    """A new unique name. Names are never reused, because the same step can occur again with another data
    position."""
    return f"{PREFIX}{step:012d}-{secrets.token_hex(4)}"
