"""A checkpoint in parts: each member's agent persists one, the chief's publishes it when all are there."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from edl_workflows.services.agent.persisting import Persister
from edl_workflows.training.checkpoints.checkpoint_parts import Part, shared_checkpoint_name
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.copying import CopyGuard
from edl_workflows.training.checkpoints.part_saving import SavedAs, save_part
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.restoring import CheckpointRestorer
from edl_workflows.training.checkpoints.saving import SaveWish
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder, SnapshotStage, claim_folder
from edl_workflows.training.checkpoints.tensor_parts import load_checkpoint, write_offsets
from edl_workflows.training.checkpoints.tensors import State, StateBlock, TensorSpec, load, write_state
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.frameworks.saved_model import export_safetensors
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, eventually, world
from tests.unit.training.test_snapshots import copied

PARTS = 3
ROWS = 2
"""Of the tensor "w" in each part."""


def part_of(step: int, index: int) -> State:
    """A part of a state: some rows of a tensor, and a tensor of its own, with values that show the step."""
    arrays = {"w": np.full((ROWS, 4), step * 10 + index), f"of-{index}": np.full(5, step)}
    places = write_offsets({"w": (ROWS * index, 0), f"of-{index}": (0,)})
    whole = State.of(step, arrays, places | {"data": "here"})
    return State(step, whole.specs, whole.fill, whole.metadata, part=Part(index, PARTS))


def is_whole(folder: Path, step: int) -> bool:
    """Whether a checkpoint holds the state of a step."""
    loaded = load_checkpoint(str(folder))
    rows = [step * 10 + index for index in range(PARTS) for _ in range(ROWS)]
    assert loaded.metadata == {"data": "here"}
    assert loaded.tensors.keys() == {"w", *(f"of-{index}" for index in range(PARTS))}
    return bool(loaded.tensors["w"][:, 0].tolist() == rows)


class Node:
    """A member's agent: its copies, and what persists them."""

    def __init__(self, folder: Path, client: MasterClient, store: CheckpointStore, index: int) -> None:
        folder.mkdir(exist_ok=True)
        self.memory = claim_folder(folder / f"node-{index}")
        self.persister = Persister(self.memory, client, NodeRef(type="worker", id=index))
        self._store = store
        self._index = index

    def copy(self, step: int, **fields: Any) -> None:
        """Copy this member's part of a step's state."""
        block = StateBlock(part_of(step, self._index))
        content = bytearray(block.size)
        block.write(memoryview(content))
        name = shared_checkpoint_name(step, "demo", 1)
        place, keep = self._store.place, self._store.keep
        fields = {"part": self._index, "parts": PARTS, "name": name, "place": place, "keep": keep, **fields}
        assert copied(self.memory, bytes(content), step, **fields) is not None


@pytest.fixture(params=["folder", "memory://bucket/run"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Where checkpoints go: a folder, and an object store."""
    if request.param == "folder":
        yield CheckpointStore(tmp_path / "checkpoints")
        return
    fsspec = pytest.importorskip("fsspec")
    yield open_store(request.param)
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def nodes(master: FakeMaster, tmp_path: Path, store: CheckpointStore) -> Iterator[list[Node]]:
    """The members' agents, which don't persist yet."""
    with MasterClient(master.url, TOKEN) as client:
        made = [Node(tmp_path / "memory", client, store, index) for index in range(PARTS)]
        yield made
        for node in made:
            if node.persister.running:
                node.persister.close(10, newest=False)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chief that does not wait long for the others."""
    monkeypatch.setattr("edl_workflows.training.checkpoints.part_saving.LOST_PART_SECONDS", 0.3)
    monkeypatch.setattr(CheckpointStore, "part_seconds", 0.3)
    monkeypatch.setattr("edl_workflows.training.checkpoints.remote_store.RemoteStore.part_seconds", 0.3)


def test_checkpoint_appears_when_all_parts_are_there(
    master: FakeMaster, store: CheckpointStore, nodes: list[Node]
) -> None:
    """Until the last part is stored, there is no checkpoint. Then the master receives one report, with the
    complete checkpoint and its data position."""
    for node in nodes[:-1]:
        node.copy(10, position={"datasets": {}})
        node.persister.start()
    name = shared_checkpoint_name(10, "demo", 1)
    eventually(lambda: store.missing_parts(name, PARTS)[0] == [PARTS - 1])
    assert store.newest() is None
    assert not master.got(CheckpointEnd)
    nodes[-1].copy(10)
    nodes[-1].persister.start()

    (end,) = eventually(lambda: master.got(CheckpointEnd))
    found = store.newest()
    assert found is not None
    assert (end.uri, end.step, end.error) == (found.uri, 10, "")
    assert is_whole(store.local(found), 10)
    manifest = store.manifest(found)
    assert manifest.position == {"datasets": {}}
    assert list(manifest.files) == [Part(index, PARTS).file for index in range(PARTS)]
    eventually(lambda: all(node.memory.newest.stage is SnapshotStage.SAVED for node in nodes))  # type: ignore[union-attr]


@pytest.mark.usefixtures("quick")
def test_checkpoint_without_a_part_fails(
    master: FakeMaster, store: CheckpointStore, nodes: list[Node]
) -> None:
    """If a member is lost before its part is on storage, the master is told which part is missing, and the
    previous checkpoint stays the newest."""
    for node in nodes:
        node.copy(10)
        node.persister.start()
    eventually(lambda: master.got(CheckpointEnd, step=10))
    for node in nodes[:-1]:
        node.copy(20)

    end = eventually(lambda: [end for end in master.got(CheckpointEnd) if end.error])[0]
    assert f"of {PARTS} parts some are missing: {PARTS};" in end.error
    newest = store.newest()
    assert newest is not None
    assert newest.step == 10
    missing, size = store.missing_parts(shared_checkpoint_name(20, "demo", 1), PARTS)
    assert (missing, size) == ([0, 1, 2], 0), "the parts take no room"


@pytest.mark.usefixtures("quick")
def test_after_a_loss_the_newest_step_of_all_is_persisted(
    master: FakeMaster, store: CheckpointStore, nodes: list[Node]
) -> None:
    """The processes were killed before one of them had copied its newest step. The newest step that all have
    copied is persisted."""
    for node in nodes:
        node.copy(10, persist=False)
    for node in nodes[:-1]:
        node.copy(20, persist=False)
    for node in nodes:
        node.persister.start()
        node.persister.save_newest()

    eventually(lambda: master.got(CheckpointEnd, step=10))
    newest = store.newest()
    assert newest is not None
    assert is_whole(store.local(newest), 10)


def test_part_of_an_outdated_checkpoint_is_not_persisted(
    store: CheckpointStore, nodes: list[Node], tmp_path: Path
) -> None:
    """Copies in memory that are older than the last published checkpoint are not persisted, and leave no
    files."""
    nodes[1].copy(10, persist=False)
    store.publish(20, lambda folder: write_state(folder / "state.safetensors", part_of(20, 0)))
    nodes[1].persister.start()
    nodes[1].persister.save_newest()
    assert nodes[1].persister.wait(240)

    assert store.missing_parts(shared_checkpoint_name(10, "demo", 1), PARTS) == ([0, 1, 2], 0)
    assert not list((tmp_path / "checkpoints").glob(".unfinished*"))


class KilledError(BaseException):
    """The agent is killed here."""


CHANGES = ("rename", "write_text", "mkdir")
"""Of the storage, by name of a path's method."""


def save(store: CheckpointStore, step: int, *indexes: int) -> None:
    """Save parts, as agents do."""
    for index in indexes:
        saved_as = SavedAs(shared_checkpoint_name(step, "demo", 1), step, Part(index, PARTS))
        part = part_of(step, index)
        save_part(store, saved_as, lambda file, part=part: write_state(file, part), "x", threading.Event())  # type: ignore[misc]


def kill_at(patch: pytest.MonkeyPatch, change: int, work: Callable[[], object]) -> bool:
    """Do the work; killed before a change of the storage, counted from 1. Returns whether that came."""
    made = 0

    def killed(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            if made == change:
                raise KilledError
            return real(*args, **named)

        return call

    with patch.context() as within, contextlib.suppress(KilledError):
        for name in CHANGES:
            within.setattr(Path, name, killed(getattr(Path, name)))
        within.setattr(Path, "unlink", lambda _self, **_: None)  # a killed agent tidies nothing up
        work()
    return made >= change


@pytest.mark.parametrize("index", [0, 1], ids=["the chief's", "another's"])
def test_crash_at_any_instant_leaves_the_checkpoint_before(
    tmp_path: Path, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent is killed before each of its writes to storage in turn. Each time the newest checkpoint is
    complete, and the next agent completes the one that was being written."""
    change = 0
    came = True
    while came:
        change += 1
        store = CheckpointStore(tmp_path / str(change))
        save(store, 10, 2, 1, 0)
        save(store, 20, *((2, 1) if index == 0 else (2,)))
        came = kill_at(monkeypatch, change, lambda store=store: save(store, 20, index))  # type: ignore[misc]
        newest = store.newest()
        assert newest is not None
        assert is_whole(Path(newest.uri), newest.step)
        if newest.step == 10:  # else it was killed when the checkpoint was published
            save(store, 20, *sorted({index, 0}, reverse=True))
        newest = store.newest()
        assert newest is not None
        assert is_whole(Path(newest.uri), 20)
    assert change > 3


def test_member_reads_its_own_part_from_memory(tmp_path: Path, master: FakeMaster) -> None:
    """A member restores its own part from its node's memory without reading storage. A reader of all parts
    takes the others from storage."""
    store = CheckpointStore(tmp_path / "checkpoints")
    name = shared_checkpoint_name(10, "demo", 1)
    for index in range(PARTS):
        store.put_part(name, Part(index, PARTS), lambda file, i=index: write_state(file, part_of(10, i)), "")  # type: ignore[misc]
    saved = store.publish_parts(10, PARTS, name=name)
    with MasterClient(master.url, TOKEN) as client:
        node = Node(tmp_path / "memory", client, store, 1)
        node.copy(10)
        restorer = CheckpointRestorer(client, NodeRef(type="worker", id=1), 1, node.memory)
        assert restorer.holds(saved)
        with restorer.state(saved, store) as whole:
            assert whole.tensors["w"].shape == (PARTS * ROWS, 4)
        (Path(saved.uri) / Part(2, PARTS).file).unlink()
        with restorer.parts(saved, store) as parts:
            assert next(parts).tensors["of-1"].tolist() == [10] * 5
            with pytest.raises(CheckpointError, match="can't be read"):
                list(parts)


def test_export_is_one_file(tmp_path: Path) -> None:
    """The export has the tensors of all parts in one file, which any safetensors library can read."""
    store = CheckpointStore(tmp_path / "checkpoints")
    name = shared_checkpoint_name(10, "demo", 1)
    for index in range(PARTS):
        store.put_part(name, Part(index, PARTS), lambda file, i=index: write_state(file, part_of(10, i)), "")  # type: ignore[misc]
    saved = store.publish_parts(10, PARTS, name=name)
    export_safetensors(Path(saved.uri), tmp_path / "model.safetensors")

    exported = load(tmp_path / "model.safetensors")
    assert exported.tensors["w"].tolist() == load_checkpoint(Path(saved.uri)).tensors["w"].tolist()
    assert exported.metadata == {"data": "here"}


def test_incomplete_checkpoint_can_not_be_published(tmp_path: Path) -> None:
    """A checkpoint that lacks a part can't be published."""
    store = CheckpointStore(tmp_path / "checkpoints")
    name = shared_checkpoint_name(10, "demo", 1)
    store.put_part(name, Part(0, 2), lambda file: write_state(file, part_of(10, 0)), "")
    with pytest.raises(CheckpointError, match="can't be written"):
        store.publish_parts(10, 2, name=name)
    assert store.newest() is None


Connect = Callable[[int], Job]


@pytest.fixture
def members(
    master: FakeMaster, pod_env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[Job, SnapshotFolder]]]:
    """Two members of a version, each with the memory of its node."""
    master.say(active=world(1, (0, 1)))
    (tmp_path / "memory").mkdir()
    made = []
    for index in range(2):
        folder = claim_folder(tmp_path / "memory" / f"node-{index}")
        monkeypatch.setenv(names.ENV_SNAPSHOT_DIR, str(folder.folder))
        environment = NodeEnvironment.read({**pod_env, names.ENV_NODE_ID: str(index)})
        made.append((Job(environment, 1, MasterClient(master.url, TOKEN)), folder))
        eventually(lambda: made[-1][0].active)
    yield made
    for job, _ in made:
        job.close()


def test_members_copy_parts_of_one_checkpoint(
    master: FakeMaster, members: list[tuple[Job, SnapshotFolder]], tmp_path: Path
) -> None:
    """The members agree on the checkpoint's name without asking each other. The chief alone takes a ticket,
    which holds the data position."""
    master.position = {"datasets": {}}
    store = CheckpointStore(tmp_path / "checkpoints")
    for index, (job, _) in enumerate(members):
        options = TwoStages(lambda: part_of(7, 0), store, part=lambda i=index: part_of(7, i))  # type: ignore[misc]
        job.save_in_two_stages(options)
    assert members[1][0].checkpoint_wish() is SaveWish.NOTHING
    for job, _ in members:
        job.checkpoint_part(SaveWish.CHECKPOINT)

    first, second = (folder.newest for _, folder in members)
    assert first is not None
    assert second is not None
    assert (first.name, first.part, first.parts) == (second.name, 0, PARTS)
    assert (second.part, second.ticket, second.position, second.due) == (1, "", None, True)
    assert first.position == master.position
    assert len(master.got(CheckpointBegin)) == 1


def test_state_is_copied_while_training_goes_on(
    members: list[tuple[Job, SnapshotFolder]], tmp_path: Path
) -> None:
    """A state with a guard is copied in another thread while training continues. The owner waits for the copy
    before it changes the tensors. A copy that the caller waits for is complete."""
    job, folder = members[0]
    guard, may_copy = CopyGuard(), threading.Event()
    value = np.zeros(3)

    def fill(into: Any) -> None:
        may_copy.wait(240)
        np.copyto(into["w"], value)

    state = State(7, {"w": TensorSpec(value.dtype, value.shape)}, fill, guard=guard)
    job.save_in_two_stages(TwoStages(lambda: state, CheckpointStore(tmp_path / "checkpoints")))
    assert job.checkpoint() is not None
    assert folder.newest is None
    may_copy.set()
    guard.wait()
    value += 1

    newest = eventually(lambda: folder.newest)
    with folder.reading(newest.number) as block:
        assert block is not None
        assert bytes(block).endswith(bytes(np.zeros(3)))


def test_memory_grows_with_the_state_before_it_is_copied(
    members: list[tuple[Job, SnapshotFolder]], tmp_path: Path
) -> None:
    """The optimizer's averages exist only after the first step. Both slots are then enlarged in the
    background, and not while training waits for a copy."""
    job, folder = members[0]
    size = 1000
    job.save_in_two_stages(
        TwoStages(lambda: State.of(7, {"w": np.zeros(size)}), CheckpointStore(tmp_path / "checkpoints"))
    )
    size = 100_000
    job.reserve_memory()

    def sizes() -> list[int]:
        return [file.stat().st_size for file in folder.folder.glob("slot-?")]

    eventually(lambda: len(sizes()) == 2 and min(sizes()) > size * np.dtype(float).itemsize)


def test_failed_copy_in_the_background_is_told(
    master: FakeMaster, members: list[tuple[Job, SnapshotFolder]], tmp_path: Path
) -> None:
    """If a copy in the background fails, the master gets the reason, the guard no longer waits for it, and
    the slot is free."""
    job, folder = members[0]
    guard = CopyGuard()

    def fill(_into: Any) -> None:
        raise RuntimeError("the device is gone")

    state = State(7, {"w": TensorSpec(np.dtype(float), (3,))}, fill, guard=guard)
    job.save_in_two_stages(TwoStages(lambda: state, CheckpointStore(tmp_path / "checkpoints")))
    job.checkpoint()
    guard.wait()

    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "the device is gone" in end.error
    assert folder.newest is None
    assert not folder.busy
