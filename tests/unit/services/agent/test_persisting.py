"""The agent's part of a checkpoint: what it persists, when, and what the master hears."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.training import CheckpointEnd
from edl_workflows.services.agent import persisting
from edl_workflows.services.agent.agent_checkpoints import AgentCheckpoints
from edl_workflows.services.agent.persisting import Persister
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, Manifest
from edl_workflows.training.checkpoints.snapshots import (
    ModelSnapshot,
    SnapshotFolder,
    SnapshotStage,
    claim_folder,
    node_folder,
)
from edl_workflows.training.checkpoints.tensors import State, StateBlock, load
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from tests.unit.training.fake_master import TOKEN, FakeMaster, eventually
from tests.unit.training.test_snapshots import copied

NODE = NodeRef(type="worker", id=0)


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    """The node's copies."""
    return claim_folder(tmp_path / "memory")


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


def copy(folder: SnapshotFolder, store: CheckpointStore, step: int, **fields: Any) -> ModelSnapshot:
    """A copy of a model that has the step as its value."""
    state = State.of(step, {"w": np.full(5, step)})
    block = StateBlock(state)
    memory = bytearray(block.size)
    block.write(memoryview(memory))
    made = copied(folder, bytes(memory), step, place=store.place, keep=store.keep, **fields)
    assert made is not None
    return made


def test_copy_is_persisted_and_its_ticket_ends(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """The checkpoint has the state and the data position, and the master is told where it is."""
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
    assert newest.stage is SnapshotStage.SAVED


def test_copy_for_memory_is_persisted_only_after_a_loss(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """Copies that stay in memory cost no storage. When the process has died, the newest is persisted once."""
    persister.start()
    copy(folder, store, 10)
    eventually(lambda: master.got(CheckpointEnd, step=10))
    copy(folder, store, 11, persist=False)
    copy(folder, store, 12, persist=False)
    assert persister.wait(0)
    persister.save_newest()
    assert persister.wait(240)
    persister.save_newest()
    assert persister.wait(240)

    assert [end.step for end in master.got(CheckpointEnd)] == [10, 12]
    newest = store.newest()
    assert newest is not None
    assert newest.step == 12


def test_newest_is_looked_for_after_it_was_asked_for(
    master: FakeMaster,
    folder: SnapshotFolder,
    store: CheckpointStore,
    persister: Persister,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that was made while the agent looked through its copies is persisted, and no older one."""
    copy(folder, store, 11, persist=False)
    look, looks = folder.whole, 0

    def whole() -> list[ModelSnapshot]:
        nonlocal looks
        looks, seen = looks + 1, list(look())
        if looks == 1:
            copy(folder, store, 12, persist=False)
            persister.save_newest()
        return seen

    monkeypatch.setattr(folder, "whole", whole)
    persister.start()
    folder.ring()

    eventually(lambda: master.got(CheckpointEnd))
    assert persister.wait(240)
    assert [end.step for end in master.got(CheckpointEnd)] == [12]


def test_what_an_agent_before_left_is_persisted(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """An agent that is restarted in its pod writes the copy in memory to storage, even if the one before had
    published it but died before its report."""
    published = copy(folder, store, 10)
    with folder.reading(published.number) as block:
        assert block is not None
        content = bytes(block)
    store.publish(10, lambda path: (path / STATE_FILE).write_bytes(content), name=published.name)
    copy(folder, store, 11, persist=False)
    persister.start()
    persister.save_newest()

    assert persister.wait(240)
    assert [end.step for end in master.got(CheckpointEnd, error="")] == [10, 11]


def test_storage_that_refuses_is_told_with_its_reason(
    master: FakeMaster, folder: SnapshotFolder, tmp_path: Path, persister: Persister
) -> None:
    """If a copy can't be written to storage, the master gets the error, the training process reads the same
    error from the snapshot, and the next copy is written."""
    persister.start()
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    copy(folder, CheckpointStore(tmp_path / "checkpoints"), 10)
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "step 10 can't be written" in end.error
    newest = folder.newest
    assert newest is not None
    assert newest.stage is SnapshotStage.FAILED
    assert newest.error == end.error

    (tmp_path / "checkpoints").unlink()
    copy(folder, CheckpointStore(tmp_path / "checkpoints"), 11)
    eventually(lambda: master.got(CheckpointEnd, step=11, error=""))


def test_checkpoint_that_the_master_does_not_want_is_removed(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """If another version has become active, the checkpoint is removed from storage, so that it is not taken
    for the newest."""
    master.refuses_ends = True
    persister.start()
    copy(folder, store, 10)
    eventually(lambda: master.got(CheckpointEnd))
    eventually(lambda: store.newest() is None)


def test_end_waits_for_an_absent_master(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """A checkpoint that was persisted while the master was replaced is reported to the next one."""
    master.away = True
    persister.start()
    copy(folder, store, 10)
    eventually(store.newest)
    master.away = False
    eventually(lambda: master.got(CheckpointEnd, step=10))


def _no_room(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(SnapshotFolder, "settle", refuse)
    return {}


def _too_long(_: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"place": "/" + "x" * 4095}  # with the checkpoint's name it fits into no message


@pytest.mark.parametrize("trouble", [_no_room, _too_long])
def test_trouble_with_one_copy_does_not_end_the_agents_part(
    trouble: Callable[[pytest.MonkeyPatch], dict[str, Any]],
    master: FakeMaster,
    folder: SnapshotFolder,
    store: CheckpointStore,
    persister: Persister,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever goes wrong with one copy, the next one is persisted."""
    with monkeypatch.context() as patch:
        fields = trouble(patch)
        persister.start()
        copied(folder, b"x", 10, **{"place": store.place, **fields})
        persister.save_newest()
        assert persister.wait(240)
    copy(folder, store, 11)
    eventually(lambda: master.got(CheckpointEnd, step=11, error=""))


def test_refused_checkpoint_takes_no_others_place(
    master: FakeMaster, folder: SnapshotFolder, tmp_path: Path, persister: Persister
) -> None:
    """If only one checkpoint is kept, it is one that the master has accepted."""
    only = CheckpointStore(tmp_path / "checkpoints", keep=1)
    before = only.publish(9, lambda path: (path / "model").write_bytes(b"whole"))
    master.refuses_ends = True
    persister.start()
    made = copy(folder, only, 10)
    eventually(lambda: master.got(CheckpointEnd))
    eventually(lambda: not Path(made.ref.uri).exists())
    assert only.newest() == before

    master.refuses_ends = False
    wanted = copy(folder, only, 11)
    eventually(lambda: not Path(before.uri).exists())
    assert only.newest() == wanted.ref


def test_partner_may_persist_the_same_copy_at_the_same_time(
    master: FakeMaster,
    folder: SnapshotFolder,
    store: CheckpointStore,
    persister: Persister,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partner that could not be reached for a moment is treated as lost. Both write the same checkpoint
    without disturbing each other, the second finds it published, and no error is reported."""
    write = persisting._write

    def slowly(file: Path, block: memoryview) -> None:
        write(file, block[:100])
        store.publish(
            10, lambda path: write(path / STATE_FILE, block), name=made.name, writer="worker-1", retire=False
        )
        write(file, block)

    monkeypatch.setattr(persisting, "_write", slowly)
    made = copy(folder, store, 10)
    persister.start()
    persister.save_newest()
    assert persister.wait(240)
    assert [end.error for end in master.got(CheckpointEnd)] == [""]
    assert store.verify(made.ref) == made.ref
    assert [path.name for path in store.folder.iterdir()] == [made.name]


def test_newest_that_was_refused_does_not_hide_the_one_before(
    master: FakeMaster, folder: SnapshotFolder, store: CheckpointStore, persister: Persister
) -> None:
    """After a loss, the newest copy that can still be persisted is persisted, even if a newer one could not
    be."""
    copy(folder, store, 10, persist=False)
    copy(folder, store, 11, stage="failed")
    persister.start()
    persister.save_newest()
    assert persister.wait(240)
    assert [end.step for end in master.got(CheckpointEnd)] == [10]


def test_memory_that_can_not_be_used_is_no_reason_to_fail(
    environment: NodeEnvironment, tmp_path: Path
) -> None:
    """If shared memory can't be used, the agent runs without it, and the training process saves to storage
    itself."""
    folder = node_folder(tmp_path, "uid", environment.node.type, environment.node.id)
    (folder / "bell").mkdir(parents=True)
    folder.chmod(0o700)
    with MasterClient("http://127.0.0.1:1", TOKEN) as client:
        made = AgentCheckpoints(
            environment,
            client,
            lambda: Directive(revision=1),
            lambda: None,
            {names.ENV_SHARED_MEMORY: str(tmp_path), names.ENV_JOB_UID: "uid"},
        )
    assert made.environment == {}
