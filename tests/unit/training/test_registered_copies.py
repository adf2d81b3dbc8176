"""Saving with memory that is registered with a device: what happens to the registration, and to training, if
something comes in between."""

import mmap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints import slot_memory
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.copying import Copies, CopyGuard
from edl_workflows.training.checkpoints.slot_memory import SlotMemory
from edl_workflows.training.checkpoints.snapshots import claim_folder
from edl_workflows.training.checkpoints.tensors import Array, State, TensorSpec
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from tests.unit.training.fake_master import eventually


class SlowDevice:
    """A device whose copies are complete when a test says so. It notes registrations that end before."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.begun = threading.Event()
        self.registered: list[int] = []
        self.ended_early: list[int] = []

    def register(self, memory: mmap.mmap) -> Callable[[], object]:
        """Note it."""
        size = len(memory)
        self.registered.append(size)

        def end_registration() -> None:
            self.registered.remove(size)
            self.ended_early += [size] if self.begun.is_set() and not self.done.is_set() else []

        return end_registration

    def fill(self, _into: Mapping[str, Array]) -> Copies:
        """Begin to copy."""
        self.begun.set()
        return self

    def hold_back(self) -> None:
        """As `wait`."""
        self.wait()

    def wait(self) -> None:
        """Until a test says so."""
        assert self.done.wait(240)


class Trained:
    """A state that grows."""

    def __init__(self, folder: Path) -> None:
        self.device = SlowDevice()
        self.guard = CopyGuard()
        self.values = 1000
        folder.mkdir()
        self.slots = claim_folder(folder / "node")
        self.first = FirstStage(TwoStages(self.state, CheckpointStore(folder / "store")), self.slots, 1)

    def state(self) -> State:
        """The present one."""
        specs = {"model": TensorSpec(np.dtype(np.float32), (self.values,))}
        return State(1, specs, self.device.fill, guard=self.guard, registrar=self.device)

    def save(self) -> None:
        """Begin to copy it."""
        self.first.save(CheckpointTicket(id=""), persist=False, wait=False)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    """A state with two slots that nobody persists."""
    return Trained(tmp_path / "memory")


def test_memory_is_replaced_only_after_the_copy(trained: Trained) -> None:
    """A state that has grown needs larger memory. The present memory stays registered while the device copies
    to it."""
    trained.save()
    assert trained.device.begun.wait(240)
    trained.values *= 10
    trained.first.reserve(chief=True)
    trained.first._reserving.join(0.3)
    assert trained.first.reserving
    trained.device.done.set()
    eventually(lambda: not trained.first.reserving, what="the larger memory is ready")

    assert trained.device.ended_early == []
    assert min(trained.device.registered) > 4 * trained.values
    trained.first.close(5.0)
    assert trained.device.registered == []


def test_a_thread_that_does_not_start(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can be started, the checkpoint fails. The next update does not wait for it, and the next
    save has the slot."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(CheckpointError, match="the state of step 1: can't start new thread"):
            trained.save()
    assert trained.guard._free.is_set()
    trained.guard.wait()
    trained.device.done.set()
    trained.save()
    eventually(lambda: trained.slots.newest, what="the copy is complete")


def test_no_memory_is_registered_after_the_release(tmp_path: Path) -> None:
    """A thread that reserves memory may be between the two slots when the process closes the job."""
    memory, device = SlotMemory(), SlowDevice()
    memory.map(tmp_path / "slot-0", 1000, device)
    memory.release(1.0)
    memory.map(tmp_path / "slot-1", 1000, device)

    assert device.registered == []


@pytest.mark.parametrize("registered", [False, True], ids=["the CPU", "a device"])
def test_only_a_registration_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    """The end of a job waits for a thread that maps memory only if the memory is registered with a device."""
    mapping, go_on = threading.Event(), threading.Event()
    inner: Any = slot_memory._map

    def slow_map(slot: Path, size: int) -> mmap.mmap:
        mapping.set()
        assert go_on.wait(240)
        return inner(slot, size)  # type: ignore[no-any-return]

    monkeypatch.setattr(slot_memory, "_map", slow_map)
    memory, device = SlotMemory(), SlowDevice()
    arguments = tmp_path / "slot-0", 1000, device if registered else None
    thread = threading.Thread(target=memory.map, args=arguments)
    thread.start()
    assert mapping.wait(240)
    began = time.monotonic()
    memory.release(20.0 if not registered else 0.5)
    waited = time.monotonic() - began
    go_on.set()
    thread.join()

    assert waited >= 0.5 if registered else waited < 20.0
    assert device.registered == []
