"""Checkpoints that a disk, a user or an attacker has changed: one clear error, and never a file from
elsewhere."""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, verify_checkpoint


def with_manifest(**changes: Any) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        manifest = json.loads((checkpoint / MANIFEST).read_text())
        (checkpoint / MANIFEST).write_text(json.dumps(manifest | changes))

    return change


def with_file_named(name: str) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        entry = json.loads((checkpoint / MANIFEST).read_text())["files"]["model"]
        with_manifest(files={name: entry})(checkpoint)

    return change


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        (checkpoint / name).unlink()
        make(checkpoint / name)

    return change


def linked_outside(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_bytes(b"weights")  # the very same content
    path.symlink_to(outside)


def linked_inside(path: Path) -> None:
    (path.parent / "weights").write_bytes(b"weights")
    path.symlink_to("weights")


def in_linked_folder(checkpoint: Path) -> None:
    outside = checkpoint.parent / "outside"
    outside.mkdir()
    (checkpoint / "model").rename(outside / "model")
    (checkpoint / "inner").symlink_to(outside)
    with_file_named("inner/model")(checkpoint)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
        listener.bind(path.name)  # the whole path may be longer than a socket's may


def emptied(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """In place of a file that is empty, as the manifest says: its size shows nothing."""

    def change(checkpoint: Path) -> None:
        empty = {"size": 0, "sha256": hashlib.sha256(b"").hexdigest()}
        with_manifest(files={"model": empty})(checkpoint)
        replaced("model", make)(checkpoint)

    return change


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "file above": (with_file_named("../../model"), "outside the checkpoint"),
    "absolute file": (with_file_named("/etc/passwd"), "outside the checkpoint"),
    "the folder itself": (with_file_named("."), "outside the checkpoint"),
    "null character": (with_file_named("a\0b"), "outside the checkpoint"),
    "link out": (replaced("model", linked_outside), "a link to a file outside the checkpoint"),
    "no files": (with_manifest(files={}), "the manifest is damaged: files: "),
    "negative step": (with_manifest(step=-1), "the manifest is damaged: step: "),
    "endless step": (with_manifest(step=10**40), "the manifest is damaged: step: "),
    "cut off": (replaced(MANIFEST, lambda f: f.write_text('{"step": 1')),
        "the manifest is damaged: the document: "),
    "too deep": (replaced(MANIFEST, lambda f: f.write_text("[" * 10**6)),
        "the manifest is damaged: the document: "),
    "no UTF-8": (replaced(MANIFEST, lambda f: f.write_bytes(b"\xff")),
        "the manifest is damaged: the document: "),
    "endless manifest": (replaced(MANIFEST, lambda f: f.symlink_to("/dev/zero")), "is not a regular file"),
    "pipe as manifest": (replaced(MANIFEST, os.mkfifo), "is not a regular file"),
    "pipe as file": (replaced("model", os.mkfifo), "is not a regular file"),
    "pipe as empty file": (emptied(os.mkfifo), "is not a regular file"),
    "link to another file": (replaced("model", linked_inside), "is not a regular file"),
    "folder that is a link": (in_linked_folder, "a link to a file outside the checkpoint"),
    "socket as empty file": (emptied(bound_socket), "is not a regular file"),
    "folder as manifest": (replaced(MANIFEST, Path.mkdir), "is not a regular file"),
    "torn": (replaced("model", lambda f: f.write_bytes(b"w")), "torn: 1 bytes where the manifest says 7"),
    "changed": (replaced("model", lambda f: f.write_bytes(b"WEIGHTS")), "its SHA-256 is not the manifest's"),
    "gone": (replaced("model", lambda f: None), "a file of the checkpoint is missing"),
}  # fmt: skip


@pytest.mark.parametrize("row", CHANGES)
def test_a_changed_checkpoint_is_refused_and_the_one_before_wins(row: str, tmp_path: Path) -> None:
    """The error is one line that names the checkpoint and what is wrong. A restore uses the newest intact
    checkpoint."""
    change, says = CHANGES[row]
    store = CheckpointStore(tmp_path / "checkpoints")
    whole = store.publish(1, lambda folder: (folder / "model").write_bytes(b"weights"))
    changed = store.publish(2, lambda folder: (folder / "model").write_bytes(b"weights"))
    change(Path(changed.uri))

    with pytest.raises(CheckpointError, match=says) as refused:
        verify_checkpoint(Path(changed.uri))

    assert changed.uri in str(refused.value)
    assert "\n" not in str(refused.value)
    assert store.newest() == whole


@pytest.mark.parametrize("make", [os.mkfifo, linked_inside, linked_outside], ids=lambda make: make.__name__)
def test_only_files_are_saved(make: Callable[[Path], object], tmp_path: Path) -> None:
    """Saving a pipe or a link raises CheckpointError, since nobody could restore that checkpoint."""

    def write(folder: Path) -> None:
        (folder / "model").write_bytes(b"weights")
        make(folder / "other")

    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match="other: is not a regular file"):
        store.publish(1, write)

    assert store.newest() is None
