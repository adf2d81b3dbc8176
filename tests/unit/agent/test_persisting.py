"""The agent's part of a checkpoint: what it persists, when, and what the master hears."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.agent.checkpoints import MANIFEST, STATE_FILE, CheckpointStore, Manifest
from edl_workflows.agent.client import MasterClient
from edl_workflows.agent.persisting import Persister
from edl_workflows.agent.snapshots import Snapshot, SnapshotFolder, Stage, take_folder
from edl_workflows.agent.tensors import Block, State, load
from edl_workflows.protocol.nodes import NodeRef
from edl_workflows.protocol.training import CheckpointEnd
from tests.unit.agent.fake_master import TOKEN, FakeMaster, eventually
from tests.unit.agent.test_snapshots import copied

NODE = NodeRef(type="worker", id=0)


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    """The node's copies."""
    return take_folder(tmp_path / "memory")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Where they go."""
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def persister(master: FakeMaster, folder: SnapshotFolder) -> Iterator[Persister]:
    """Not yet started."""
    with MasterClient(master.url, TOKEN) as client:
        made = Persister(folder, client, NODE)
        yield made
        if made.running:
            made.close(10)


def copy(folder: SnapshotFolder, store: CheckpointStore, step: int, **fields: Any) -> Snapshot:
    """A copy of a model that has the step as its value."""
    state = State.of(step, {"w": np.full(5, step)})
    block = Block(state)
    memory = bytearray(block.size)
    block.write(memoryview(memory))
    made = copied(folder, bytes(memory), step, place=store.place, keep=store.keep, **fields)
    assert made is not None
    return made


def test_copy_is_persisted_and_its_ticket_ends(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """The checkpoint is whole, holds the state and the data position, and the master hears where it is."""
    persister.start()
    position = {"datasets": {"train": {"epoch": 2}}}
    made = copy(folder, store, 10, position=position)

    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert (end.uri, end.step, end.error) == (made.ref.uri, 10, "")
    assert store.newest() == made.ref
    assert load(Path(end.uri) / STATE_FILE).tensors["w"].tolist() == [10] * 5
    assert Manifest.model_validate_json(Path(end.uri, MANIFEST).read_bytes()).position == position
    newest = folder.newest
    assert newest is not None
    assert newest.stage is Stage.SAVED


def test_copy_for_memory_is_persisted_only_after_a_loss(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """Many copies cost the storage nothing; when the process has died the newest is persisted, once."""
    persister.start()
    copy(folder, store, 10)
    eventually(lambda: master.got(CheckpointEnd, step=10))
    copy(folder, store, 11, persist=False)
    copy(folder, store, 12, persist=False)
    assert persister.wait(0)
    persister.save_newest()
    assert persister.wait(10)
    persister.save_newest()
    assert persister.wait(10)

    assert [end.step for end in master.got(CheckpointEnd)] == [10, 12]
    newest = store.newest()
    assert newest is not None
    assert newest.step == 12


def test_what_an_agent_before_left_is_persisted(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """An agent that is started again in its pod goes on with what is in memory, also where the one before had published
    the checkpoint and died before it said so."""
    published = copy(folder, store, 10)
    with folder.reading(published.number) as block:
        assert block is not None
        content = bytes(block)
    store.publish(10, lambda path: (path / STATE_FILE).write_bytes(content), name=published.name)
    copy(folder, store, 11, persist=False)
    persister.start()
    persister.save_newest()

    assert persister.wait(10)
    assert [end.step for end in master.got(CheckpointEnd, error="")] == [10, 11]


def test_storage_that_refuses_is_told_with_its_reason(
    master: FakeMaster, folder: SnapshotFolder, tmp_path: Path, persister: Persister
) -> None:
    """The ticket ends with the storage's words, the training process can read them, and the next copy is tried again."""
    persister.start()
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    copy(folder, CheckpointStore(tmp_path / "checkpoints"), 10)
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "step 10 can't be written" in end.error
    newest = folder.newest
    assert newest is not None
    assert newest.stage is Stage.FAILED
    assert newest.error == end.error

    (tmp_path / "checkpoints").unlink()
    copy(folder, CheckpointStore(tmp_path / "checkpoints"), 11)
    eventually(lambda: master.got(CheckpointEnd, step=11, error=""))


def test_checkpoint_that_the_master_does_not_want_is_removed(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """Another version became active: the model is one that nobody continues, and must not be taken for the newest."""
    master.refuses_ends = True
    persister.start()
    copy(folder, store, 10)
    eventually(lambda: master.got(CheckpointEnd))
    eventually(lambda: store.newest() is None)


def test_end_waits_for_an_absent_master(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """A checkpoint that was persisted while the master was replaced is not lost."""
    master.away = True
    persister.start()
    copy(folder, store, 10)
    eventually(store.newest)
    master.away = False
    eventually(lambda: master.got(CheckpointEnd, step=10))
