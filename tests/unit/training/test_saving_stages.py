"""When the training process copies its state, and what it does when it can't."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.snapshots import (
    ModelSnapshot,
    SnapshotFolder,
    SnapshotStage,
    claim_folder,
)
from edl_workflows.training.checkpoints.tensors import State, TensorSpec
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, cluster, eventually

Connect = Callable[[], Job]


@pytest.fixture
def connect(
    master: FakeMaster, environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Makes a job of version 1, which trains, for worker 0, the chief."""
    jobs: list[Job] = []
    monkeypatch.setattr("edl_workflows.training.checkpoints.saving.RETRY_SECONDS", 0.02)

    def make() -> Job:
        master.say(active=cluster(1))
        jobs.append(Job(environment, 1, MasterClient(master.url, TOKEN)))
        eventually(lambda: jobs[-1].active)
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SnapshotFolder:
    """The node's copies; nobody persists them in this test."""
    folder = claim_folder(tmp_path / "memory")
    monkeypatch.setenv(names.ENV_SNAPSHOT_DIR, str(folder.folder))
    return folder


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Where checkpoints go."""
    return CheckpointStore(tmp_path / "checkpoints")


def step_until(job: Job, condition: Callable[[], bool]) -> None:
    """Come to step boundaries until the condition is fulfilled."""

    def boundary() -> bool:
        job.between_steps()
        return condition()

    eventually(boundary)


def state(step: int = 7) -> State:
    return State.of(step, {"w": np.full(3, step)})


def test_without_an_agent_the_process_saves_itself(
    master: FakeMaster, connect: Connect, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an agent, the training process itself saves the checkpoint with its data position and reports
    it, while training waits."""
    monkeypatch.delenv(names.ENV_SNAPSHOT_DIR, raising=False)
    master.position = {"datasets": {"train": {"epoch": 1}}}
    job = connect()
    job.save_in_two_stages(TwoStages(state, store))
    saved = job.checkpoint(stored=True)
    assert saved is not None
    assert saved == store.newest()
    assert store.manifest(saved).position == master.position
    eventually(lambda: master.got(CheckpointEnd, uri=saved.uri, step=7))
    with job.state(saved, store) as loaded:
        assert loaded.tensors["w"].tolist() == [7, 7, 7]


def test_copies_are_made_more_often_than_they_are_persisted(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """A copy on request is persisted; copies in between stay in memory. Each has a ticket of its own, since
    each belongs to a data position."""
    job = connect()
    job.save_in_two_stages(TwoStages(state, store, memory_seconds=0.01))

    def boundary() -> ModelSnapshot | None:
        before = memory.newest
        step_until(job, lambda: memory.newest != before)
        return memory.newest

    first = boundary()
    master.say(save="now")
    eventually(lambda: job.should_checkpoint() and job._watch.latest.save)
    second = boundary()
    assert first is not None
    assert second is not None
    assert (first.persist, second.persist) == (False, True)
    assert first.ticket != second.ticket
    assert [begin.request for begin in master.got(CheckpointBegin)] == ["", "now"]


def test_slow_agent_does_not_hold_periodic_copies_up(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """While the older copy is being persisted, the next periodic copy is postponed without a ticket."""
    job = connect()
    job.save_in_two_stages(TwoStages(state, store, every_seconds=0.01))
    step_until(job, lambda: len(memory.whole()) == 2)
    older = memory.whole()[0]
    with memory.reading(older.number):
        begun = len(master.got(CheckpointBegin))
        for _ in range(5):
            job.between_steps()
        assert len(master.got(CheckpointBegin)) == begun
        memory.settle(older.number, SnapshotStage.SAVED)
    step_until(job, lambda: memory.find(older.number) is None)


def test_storage_that_hangs_fails_the_checkpoint_that_was_asked_for(
    master: FakeMaster,
    connect: Connect,
    store: CheckpointStore,
    memory: SnapshotFolder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A requested checkpoint waits for a free slot for a limited time. Then it fails, and the master gets the
    reason."""
    monkeypatch.setattr("edl_workflows.training.checkpoints.two_stages.SLOT_SECONDS", 0.2)
    job = connect()
    job.save_in_two_stages(TwoStages(state, store))
    job.checkpoint()
    job.checkpoint()
    assert job.checkpoint() is None
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "still persisting an earlier copy after 0 s" in end.error


def test_final_checkpoint_that_can_not_be_stored_is_none(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """A caller that waits until the checkpoint is on storage is told that it could not be written."""
    job = connect()
    job.save_in_two_stages(TwoStages(state, store))

    def agent() -> None:
        eventually(lambda: memory.newest)
        with memory.reading(1):
            memory.settle(1, SnapshotStage.FAILED, "disk full")

    thread = threading.Thread(target=agent)
    thread.start()
    assert job.checkpoint(stored=True) is None
    thread.join()
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "disk full" in end.error


def test_state_that_can_not_be_read_leaves_the_copies_as_they_were(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """A server is lost during the copy. The ticket ends with the reason, the partial copy does not count, and
    the newest complete copy stays."""

    def lost(_into: Mapping[str, Any]) -> None:
        raise RuntimeError("socket closed")

    states = [state(0), state(1), state(2), State(3, {"w": TensorSpec(np.dtype("int64"), (3,))}, lost)]
    job = connect()
    job.save_in_two_stages(
        TwoStages(lambda: states.pop(0), store)
    )  # the first one says how much memory it takes
    job.checkpoint()
    with memory.reading(1):
        memory.settle(1, SnapshotStage.SAVED)
    job.checkpoint()
    assert job.checkpoint() is None

    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "RuntimeError: socket closed" in end.error
    newest = memory.newest
    assert newest is not None
    assert newest.step == 2
    assert len(memory.whole()) == 1


def test_model_that_can_not_be_saved_is_said_at_once(
    connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """A model that can't be saved is an error at the start, not after hours of training."""
    with pytest.raises(InvalidError, match="tensor 'words'"):
        connect().save_in_two_stages(TwoStages(lambda: State.of(0, {"words": np.array(["a"])}), store))


def test_memory_that_goes_is_not_taken_for_a_checkpoint(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """A caller that waits for a persisted checkpoint asks storage if the copy in memory has disappeared, and
    gets None if it is not there."""
    job = connect()
    job.save_in_two_stages(TwoStages(state, store))

    def lose() -> None:
        eventually(lambda: memory.newest)
        (memory.folder / "slot-0.json").unlink()

    thread = threading.Thread(target=lose)
    thread.start()
    assert job.checkpoint(stored=True) is None
    thread.join()
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "no complete checkpoint" in end.error


def test_a_request_waits_for_the_memory_while_training_goes_on(
    master: FakeMaster, connect: Connect, store: CheckpointStore, memory: SnapshotFolder
) -> None:
    """While the memory for copies is being registered with the device, no copy is due, although one is
    requested. When it is ready, the request is served. A process that has stopped for a switch does not go on
    meanwhile, so it saves at once. When the job is closed, no memory is registered any more."""
    ready, registered = threading.Event(), [0]

    class SlowRegistrar:
        def register(self, _memory: object) -> Callable[[], object]:
            assert ready.wait(240)
            registered[0] += 1
            return lambda: registered.__setitem__(0, registered[0] - 1)

    job = connect()
    of_device = replace(state(), registrar=SlowRegistrar())
    job.save_in_two_stages(TwoStages(lambda: of_device, store))
    master.say(save="now")
    eventually(lambda: job._watch.latest.save)
    assert not job.should_checkpoint()
    assert job._saving.due(job._watch.latest.model_copy(update={"drain": False})) is False
    job._saving.drained = True
    assert job._saving.due(job._watch.latest.model_copy(update={"drain": True}))
    job._saving.drained = False
    ready.set()
    eventually(job.should_checkpoint)
    assert job.checkpoint() is not None
    assert memory.newest is not None
    assert registered == [2]
    job.close()
    assert registered == [0]
