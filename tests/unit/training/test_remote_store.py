"""Checkpoints at a URI keep the promises of those in a folder; fsspec's memory file system stands in for an
object store."""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints import remote_store
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST
from edl_workflows.training.checkpoints.remote_store import RemoteStore, open_store

fsspec = pytest.importorskip("fsspec")
URI = "memory://bucket/run"
Drive = Any


@pytest.fixture
def drive() -> Iterator[Drive]:
    """The store's inside."""
    files = fsspec.filesystem("memory")
    yield files
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def store(drive: Drive) -> CheckpointStore:
    """The job's checkpoints."""
    return open_store(URI, keep=2)


def publish(store: CheckpointStore, step: int, text: str = "weights") -> CheckpointRef:
    """A checkpoint with two files."""

    def write(folder: Path) -> None:
        (folder / "model.data").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "model.index").write_text("index")

    return store.publish(step, write, position={"datasets": {}})


def test_published_checkpoint_is_found_by_another_process(store: CheckpointStore) -> None:
    """Another process finds the checkpoint that was published last, and gets its files unchanged."""
    assert store.newest() is None
    publish(store, 120)
    last = publish(store, 110, "older model")

    other = open_store(URI)
    assert other.newest() == last
    assert last.uri.startswith(f"{URI}/checkpoint-000000000110-")
    assert (other.local(last) / "model.data").read_text() == "older model"
    assert (other.local(last) / "sub" / "model.index").read_text() == "index"
    assert other.manifest(last).position == {"datasets": {}}


def test_only_so_many_stay(store: CheckpointStore, drive: Drive) -> None:
    """Older checkpoints beyond the limit are removed with all of their files."""
    refs = [publish(store, step) for step in (1, 2, 3, 4)]
    left = {path.rsplit("/", 1)[1] for path in drive.ls("/bucket/run", detail=False)}
    assert left == {ref.uri.rsplit("/", 1)[1] for ref in refs[2:]}


def _tear(drive: Drive, folder: str) -> None:
    drive.pipe_file(f"{folder}/model.data", b"wei")


def _change(drive: Drive, folder: str) -> None:
    drive.pipe_file(f"{folder}/model.data", b"Weights")


def _lose(drive: Drive, folder: str) -> None:
    drive.rm_file(f"{folder}/model.data")


def _cut_manifest(drive: Drive, folder: str) -> None:
    drive.pipe_file(f"{folder}/{MANIFEST}", drive.cat_file(f"{folder}/{MANIFEST}")[:-10])


def _climb(drive: Drive, folder: str) -> None:
    manifest = drive.cat_file(f"{folder}/{MANIFEST}").replace(b"model.data", b"../../../x")
    drive.pipe_file(f"{folder}/{MANIFEST}", manifest)


@pytest.mark.parametrize("damage", [_tear, _change, _lose, _cut_manifest, _climb])
def test_broken_checkpoint_is_passed_over_with_its_reason(
    store: CheckpointStore,
    drive: Drive,
    damage: Callable[[Drive, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The checkpoint before a damaged one is used, and the damaged one is reported."""
    whole, broken = publish(store, 1), publish(store, 2)
    damage(drive, broken.uri.removeprefix("memory:/"))
    told: list[str] = []
    with caplog.at_level(logging.WARNING):
        assert open_store(URI).newest(lambda uri, _why: told.append(uri)) == whole
    assert told == [broken.uri]


def test_checkpoint_without_manifest_is_none(store: CheckpointStore, drive: Drive) -> None:
    """A checkpoint without a manifest is being written, or its writer has died. It does not count, and it is
    removed only when it is old."""
    drive.pipe_file("/bucket/run/checkpoint-000000000009-0badcafe/model.data", b"x")
    assert store.newest() is None
    publish(store, 1)
    assert drive.exists("/bucket/run/checkpoint-000000000009-0badcafe/model.data")


def test_abandoned_writes_are_removed(
    store: CheckpointStore, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a killed writer are removed at the next checkpoint, if they have not changed for long."""
    drive.pipe_file("/bucket/run/checkpoint-000000000009-0badcafe/model.data", b"x")
    monkeypatch.setattr(remote_store, "ABANDONED_SECONDS", -1.0)
    publish(store, 1)
    assert not drive.exists("/bucket/run/checkpoint-000000000009-0badcafe")


def test_refusing_store_is_a_checkpoint_error_and_nothing_is_published(
    store: CheckpointStore, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any error of a driver becomes a CheckpointError with the place, the step and the driver's message."""

    class DriverError(Exception):
        """Of a driver."""

    def refuse(*_: object, **__: object) -> None:
        raise DriverError("quota exceeded")

    monkeypatch.setattr(type(drive), "put_file", refuse)
    with pytest.raises(CheckpointError, match=r"checkpoint of step 3 can't be written: DriverError: quota"):
        publish(store, 3)
    monkeypatch.undo()
    assert store.newest() is None


def test_ref_of_another_place_is_refused(store: CheckpointStore) -> None:
    """A checkpoint reference outside of the store is rejected."""
    for uri in ("memory://other/checkpoint-000000000001-00000000", f"{URI}/../secrets", "/etc"):
        with pytest.raises(CheckpointError, match="is not in"):
            store.local(CheckpointRef(uri=uri, step=1))


def test_discarded_checkpoint_is_gone(store: CheckpointStore) -> None:
    """A discarded checkpoint is no longer found."""
    store.discard(publish(store, 1))
    assert store.newest() is None


def test_follow_gives_each_new_checkpoint(store: CheckpointStore) -> None:
    """`follow` gives each new checkpoint, and the last one after the end, as it does for a folder."""
    first = publish(store, 1)
    seen: list[CheckpointRef] = []
    for ref in store.follow(lambda: len(seen) == 2):
        seen.append(ref)
        if len(seen) == 1:
            second = publish(store, 2)
    assert seen == [first, second]


def test_copies_go_with_the_store(drive: Drive) -> None:
    """The copies that a store made on this machine are removed with it."""
    store = open_store(URI)
    folder = store.local(publish(store, 1)).parent
    assert folder.exists()
    del store
    gc.collect()
    assert not folder.exists()


def test_path_and_file_uri_are_folders(tmp_path: Path) -> None:
    """Paths and ``file://`` URIs are local folders; only other schemes use fsspec."""
    for where in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        store = open_store(where)
        assert not isinstance(store, RemoteStore)
        assert store.place == str(tmp_path)


def test_unknown_scheme_says_what_to_install() -> None:
    """The error for an unknown scheme says what to install."""
    with pytest.raises(InvalidError, match=r"install edl-workflows\[fsspec\] and the driver"):
        open_store("nonsense://bucket/run")


def test_clock_that_jumps_back_does_not_hide_a_checkpoint(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder and at a URI, the checkpoint that is published last is the newest, even if the clock was
    set back, and retention keeps it."""
    for one in (store, CheckpointStore(tmp_path, keep=2)):
        monkeypatch.undo()
        publish(one, 1)
        monkeypatch.setattr(time, "time_ns", lambda: 5)
        for step in (2, 3, 4):
            last = publish(one, step)
            assert one.newest() == last
