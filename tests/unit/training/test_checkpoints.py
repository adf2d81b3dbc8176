"""Checkpoints in a folder: whole or not at all."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints.checkpoints import ABANDONED_SECONDS, CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, verify_checkpoint


def publish(store: CheckpointStore, step: int) -> Path:
    """A checkpoint with two files."""

    def write(folder: Path) -> None:
        (folder / "model.data").write_bytes(b"weights of step %d" % step)
        (folder / "sub").mkdir()
        (folder / "sub" / "model.index").write_text("index")

    return Path(store.publish(step, write).uri)


def test_newest_is_what_was_published_last(tmp_path: Path) -> None:
    """After a rollback, a checkpoint of a lower step is published later; it is the newest one."""
    store = CheckpointStore(tmp_path / "new" / "folder")
    assert store.newest() is None
    publish(store, 120)
    last = publish(store, 110)

    newest = store.newest()
    assert newest is not None
    assert (str(last), 110) == (newest.uri, newest.step)


def test_same_step_twice_is_two_checkpoints(tmp_path: Path) -> None:
    """After a rollback, a step that is saved again has another data position, so it never overwrites the
    earlier checkpoint."""
    store = CheckpointStore(tmp_path)
    assert publish(store, 5) != publish(store, 5)


def test_retention_keeps_the_newest(tmp_path: Path) -> None:
    """Only the newest checkpoints stay, as many as configured."""
    store = CheckpointStore(tmp_path, keep=2)
    paths = [publish(store, step) for step in (1, 2, 3, 4)]
    assert {path.name for path in paths[2:]} == {path.name for path in tmp_path.iterdir()}


def test_failed_save_leaves_nothing(tmp_path: Path) -> None:
    """If writing fails, the error reaches the caller and the folder stays empty."""

    def write(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        CheckpointStore(tmp_path).publish(1, write)
    assert list(tmp_path.iterdir()) == []


def test_save_without_files_is_an_error(tmp_path: Path) -> None:
    """A save that wrote no file is an error."""
    with pytest.raises(CheckpointError, match="nothing was saved for step 3"):
        CheckpointStore(tmp_path).publish(3, lambda folder: None)


def test_unwritable_folder_is_a_checkpoint_error(tmp_path: Path) -> None:
    """If a checkpoint can't be written, the error names the step."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="step 3 can't be written"):
        publish(CheckpointStore(tmp_path / "file"), 3)


def _truncate(path: Path) -> None:
    (path / "model.data").write_bytes(b"wei")


def _flip(path: Path) -> None:
    content = bytearray((path / "model.data").read_bytes())
    content[0] ^= 1
    (path / "model.data").write_bytes(content)


def _remove(path: Path) -> None:
    (path / "sub" / "model.index").unlink()


def _damage_manifest(path: Path) -> None:
    (path / MANIFEST).write_text("{")


def _no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def _escape(path: Path) -> None:
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace("model.data", "../model.data"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(_truncate, "torn: 3 bytes", id="torn"),
        pytest.param(_flip, "changed", id="changed"),
        pytest.param(_remove, "missing", id="file-missing"),
        pytest.param(_damage_manifest, "manifest is damaged", id="manifest-damaged"),
        pytest.param(_no_manifest, "no complete checkpoint", id="no-manifest"),
        pytest.param(_escape, "outside the checkpoint", id="path-outside"),
    ],
)
def test_broken_checkpoint_is_skipped_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], reason: str
) -> None:
    """The newest complete checkpoint is used, and the reason why a newer one is not is reported."""
    store = CheckpointStore(tmp_path)
    good, broken = publish(store, 1), publish(store, 2)
    damage(broken)

    with caplog.at_level(logging.WARNING):
        newest = store.newest()
    assert newest is not None
    assert str(good) == newest.uri
    assert reason in caplog.text
    with pytest.raises(CheckpointError, match=reason):
        verify_checkpoint(broken)


def test_folder_without_a_whole_checkpoint_is_an_error(tmp_path: Path) -> None:
    """If all checkpoints of a folder are damaged, training does not start from the beginning: the error names
    the folder and what is wrong with the newest one."""
    store = CheckpointStore(tmp_path)
    _truncate(publish(store, 1))
    newest = publish(store, 2)
    _flip(newest)
    with pytest.raises(CheckpointError, match="of 2 checkpoints none is complete") as refused:
        store.newest()
    assert str(refused.value).startswith(str(tmp_path))
    assert str(newest) in str(refused.value)


def test_abandoned_writes_are_removed(tmp_path: Path) -> None:
    """Files that a killed writer left behind are removed once they are old. Young ones stay, since somebody
    may still be writing them."""
    store = CheckpointStore(tmp_path)
    old, young = tmp_path / ".unfinished-old", tmp_path / ".unfinished-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 7200,) * 2)
    publish(store, 1)
    assert (old.exists(), young.exists()) == (False, True)


def test_follow_gives_each_new_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`follow` gives an evaluator each new checkpoint, including the last one, and then ends."""
    monkeypatch.setattr("edl_workflows.training.checkpoints.checkpoints.FOLLOW_SECONDS", 0.01)
    store = CheckpointStore(tmp_path)
    publish(store, 1)
    steps: list[int] = []
    for checkpoint in store.follow(lambda: len(steps) == 3):
        steps.append(checkpoint.step)
        if len(steps) < 3:
            publish(store, len(steps) + 1)
    assert steps == [1, 2, 3]


def test_folder_that_can_not_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    """If storage fails for a moment, the folder must not look empty, because training would start from the
    beginning."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(CheckpointError, match="loop: the checkpoints can't be listed"):
        CheckpointStore(loop).newest()


def test_write_that_takes_long_is_not_abandoned(tmp_path: Path) -> None:
    """A file that is written for hours does not count as abandoned: its own time counts, not that of its
    folder."""
    store = CheckpointStore(tmp_path)
    writing = tmp_path / ".unfinished-checkpoint-000000000009-0badcafe"
    writing.mkdir()
    (writing / "model").write_text("half")
    old = time.time() - 10 * ABANDONED_SECONDS
    os.utime(writing, (old, old))
    publish(store, 1)
    assert writing.exists()
    os.utime(writing / "model", (old, old))
    publish(store, 2)
    assert not writing.exists()
