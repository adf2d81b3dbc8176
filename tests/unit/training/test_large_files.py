"""Large files of a checkpoint are checked side by side, as strictly as small ones."""

import json
import os
import threading
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints import manifest
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, FileEntry, verify_checkpoint

SIZE = 2**20
CONTENT = os.urandom(SIZE + 5)
LARGE = ("first", "second")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with two large files, a small one, and an empty one."""
    monkeypatch.setattr(manifest, "LARGE_BYTES", SIZE)

    def write(folder: Path) -> None:
        for name in LARGE:
            (folder / name).write_bytes(CONTENT)
        (folder / "small").write_bytes(b"small")
        (folder / "empty").touch()

    return Path(CheckpointStore(tmp_path).publish(1, write).uri)


def test_large_files_are_checked_side_by_side(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of both large files are under way at the same time."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    inner, both = manifest._check_file, threading.Barrier(2)

    def check(file: Path, entry: FileEntry) -> None:
        if file.name in LARGE:
            both.wait(240)
        inner(file, entry)

    monkeypatch.setattr(manifest, "_check_file", check)

    assert verify_checkpoint(checkpoint).step == 1


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("index", [0, SIZE, len(CONTENT) - 1])
def test_a_changed_bit_is_seen(checkpoint: Path, name: str, index: int) -> None:
    """In each large file, at its begin and at its end."""
    content = bytearray(CONTENT)
    content[index] ^= 1
    (checkpoint / name).write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{name}: changed: its SHA-256 is not the manifest's"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("size", [0, SIZE, len(CONTENT) + 1])
def test_a_file_of_another_size_is_torn(checkpoint: Path, size: int) -> None:
    """Also if the file that is there is a small one."""
    (checkpoint / "first").write_bytes((CONTENT + b"x")[:size])

    with pytest.raises(CheckpointError, match=f"first: torn: {size} bytes"):
        verify_checkpoint(checkpoint)


def test_a_size_that_no_file_has(checkpoint: Path) -> None:
    """A manifest with such a size is damaged, and the previous checkpoint is used."""
    store = CheckpointStore(checkpoint.parent)
    newest = store.publish(2, lambda folder: (folder / "first").write_bytes(CONTENT))
    file = Path(newest.uri, MANIFEST)
    content = json.loads(file.read_text())
    content["files"]["first"]["size"] = 10**30
    file.write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match=r"the manifest is damaged: files\.first\.size"):
        verify_checkpoint(file.parent)
    previous = store.newest()
    assert previous is not None
    assert previous.step == 1
