"""Shared memory for copies: mapped once, and registered with the device for as long as it is mapped."""

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_workflows.training.checkpoints.slot_memory import NoMemoryError, SlotMemory

SMALL, LARGE = 5_000, 9 * 2**20


class RecordingRegistrar:
    """Notes what is registered, by size."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def register(self, memory: mmap.mmap) -> Callable[[], object]:
        """Note it."""
        size = len(memory)
        memory[:1] = b"x"
        self.events.append(("registered", size))
        return lambda: self.events.append(("ended", size))


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    """The file of a slot."""
    return tmp_path / "slot-0"


def test_memory_is_registered_once_for_each_size(slot: Path) -> None:
    """Memory that is large enough stays as it is. Larger memory has the content of the former, whose
    registration ends, and at the end no memory is registered."""
    memory, registrar = SlotMemory(), RecordingRegistrar()
    first = memory.map(slot, SMALL, registrar)
    first[1:3] = b"yz"
    assert memory.map(slot, SMALL - 1, registrar) is first
    second = memory.map(slot, LARGE, registrar)
    memory.release(1.0)
    memory.release(1.0)

    assert second[:3] == b"xyz"
    assert registrar.events == [
        ("registered", SMALL),
        ("ended", SMALL),
        ("registered", LARGE),
        ("ended", LARGE),
    ]


def test_memory_of_the_cpu_is_not_registered(slot: Path) -> None:
    """Memory that no device copies to is only mapped; when a device comes, it is registered as it is."""
    memory, registrar = SlotMemory(), RecordingRegistrar()
    first = memory.map(slot, SMALL, None)

    assert memory.map(slot, SMALL, registrar) is first
    assert registrar.events == [("registered", SMALL)]


def test_too_little_memory_leaves_the_present_one(slot: Path) -> None:
    """If there is no room for larger memory, the present one stays mapped and registered."""
    memory, registrar = SlotMemory(), RecordingRegistrar()
    first = memory.map(slot, SMALL, registrar)
    with pytest.raises(NoMemoryError, match="MiB left"):
        memory.map(slot, 2**60, registrar)

    assert memory.map(slot, SMALL, registrar) is first
    assert registrar.events == [("registered", SMALL)]
