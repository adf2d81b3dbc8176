"""State that goes to a device: from checkpoints through registered memory, and from other members."""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE, Part
from edl_workflows.training.checkpoints.tensors import Array, load, save, write_state
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_copies import transfer
from edl_workflows.training.frameworks.torch_copies.transfer import add_weighted, upload
from edl_workflows.training.frameworks.torch_parts import part_of_state, restore_state
from edl_workflows.training.frameworks.torch_state import split
from tests.torch.fake_device import FakeDevice
from tests.torch.members import joined, records
from tests.torch.test_torch_device import equal, normalized, values

DEVICE = torch.device("meta")
"""Stands for a GPU where only the place of a tensor counts."""


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so small that each place in the registered memory is used many times."""
    monkeypatch.setattr(transfer, "_PIECE", 64)
    monkeypatch.setattr(transfer, "_MAX_THREADS", 3)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The device of all models. It reads the registered memory as late as it may."""
    made = FakeDevice(lazy=True)
    monkeypatch.setattr(
        "edl_workflows.training.frameworks.torch_collective.choose_device", lambda _tensors: made
    )
    return made


@pytest.mark.usefixtures("small_pieces")
def test_all_bytes_are_uploaded(device: FakeDevice) -> None:
    """Arrays of several types and shapes, some read-only, some not in order in memory: their tensors have the
    same values, although the registered memory is used again and again, and in the end it is not registered
    any more."""
    source = np.random.default_rng(1)
    arrays: list[Array] = [
        source.integers(0, 2**60, 1000),
        source.random((40, 30)).astype(np.float32).T,
        np.frombuffer(bytes(range(200)), np.uint8),
        np.array(7.0),
        np.zeros((0, 3)),
    ]
    tensors = [torch.zeros(array.shape, dtype=torch.from_numpy(array.copy()).dtype) for array in arrays]
    turned = torch.zeros(30, 40).T
    upload(device, [*zip(tensors, arrays, strict=True), (turned, arrays[1].T)])

    for tensor, array in zip(tensors, arrays, strict=True):
        assert np.array_equal(tensor.numpy(), array)
    assert np.array_equal(turned.numpy(), arrays[1].T)
    assert device.registered == [False]
    assert len(device.begun) > 3 * 2


@pytest.mark.usefixtures("small_pieces")
def test_an_upload_that_fails(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the device is raised when no copy reads the memory any more, which is then not registered
    any more."""
    inner = device.copy

    def copy(pairs: Any, after: Any = None) -> Any:
        if len(device.begun) >= 4:  # another thread may have begun one more
            raise RuntimeError("the device is gone")
        return inner(pairs, after)

    monkeypatch.setattr(device, "copy", copy)
    with pytest.raises(RuntimeError, match="the device is gone"):
        upload(device, [(torch.zeros(1000), np.ones(1000, np.float32))])

    assert all(copies.done.is_set() for copies in device.begun)
    assert device.registered == [False]


@pytest.mark.usefixtures("small_pieces")
def test_tensors_that_are_not_in_order_are_copied_some_at_a_time(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor whose values are not in order in memory needs another one meanwhile. A model with many of them
    does not need twice its size, and the memory is registered once."""
    monkeypatch.setattr(transfer, "_REORDERED", 1000, raising=False)
    inner, made = transfer._dense_like, []
    largest = 0

    def dense_like(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        dense = inner(tensor)
        made.append(weakref.ref(dense))
        largest = max(largest, sum(one.nbytes for ref in made if (one := ref()) is not None))
        return dense

    monkeypatch.setattr(transfer, "_dense_like", dense_like)
    arrays = [np.full((10, 12), number, np.float32) for number in range(9)]
    tensors = [torch.zeros(12, 10).T for _ in arrays]
    upload(device, list(zip(tensors, arrays, strict=True)))

    assert [tensor.unique().tolist() for tensor in tensors] == [[float(number)] for number in range(9)]
    assert len(made) == 9
    assert largest == 2 * 480
    assert device.registered == [False]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("room", [True, False], ids=["on the device", "too little room"])
def test_a_member_restores_to_its_device(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """A member restores a checkpoint through registered memory; if the device has no room for another copy of
    the state, through the host's memory. It then goes on as the member that saved."""
    saver, restorer = joined(1, normalized)[0], joined(1, normalized)[0]
    x, _ = records(4)
    for _ in range(2):
        saver.step([{"x": x}], Wishes())
    save(tmp_path, saver.state(2, {}))
    begun = len(device.begun)
    if not room:

        def no_room(*_arguments: Any) -> None:
            raise torch.OutOfMemoryError

        monkeypatch.setattr(transfer, "upload", no_room)
    restorer.load(load(tmp_path / STATE_FILE).tensors)
    monkeypatch.undo()

    assert (len(device.begun) > begun) == room
    assert equal(values(restorer), values(saver))
    assert restorer.step([{"x": x}], Wishes()) == saver.step([{"x": x}], Wishes())
    assert equal(values(restorer), values(saver))


@pytest.mark.usefixtures("small_pieces")
def test_parts_are_restored_through_the_device(device: FakeDevice, tmp_path: Path) -> None:
    """The parts that three ranks saved are restored in place, through registered memory."""

    def state(seed: int) -> Mapping[str, Any]:
        source = torch.Generator().manual_seed(seed)
        return {f"layer-{i}": torch.randn(4 + i, 8, generator=source) for i in range(7)}

    parts = [Part(rank, 3) for rank in range(3)]
    for part in parts:
        write_state(tmp_path / part.file, part_of_state(state(1), 7, {}, part))
    restored = restore_state(state(2), [load(tmp_path / part.file) for part in parts], "here", device)

    assert device.begun
    assert equal(split(restored).tensors, split(state(1)).tensors)


def weighted(content: bytes) -> int:
    """The checksum of bytes as of a tensor on a GPU."""
    tensor = torch.frombuffer(bytearray(content + b"x"), dtype=torch.uint8)[: len(content)]
    return int(add_weighted(torch.zeros((), dtype=torch.int64), tensor))


@given(st.binary(min_size=1, max_size=70), st.integers(0, 69), st.integers(0, 7))
def test_the_checksum_of_a_gpu_sees_each_bit(content: bytes, index: int, bit: int) -> None:
    """It differs if any bit differs, and is the same for the same bytes."""
    damaged = bytearray(content)
    damaged[index % len(content)] ^= 1 << bit

    assert weighted(content) == weighted(bytes(content))
    assert weighted(bytes(damaged)) != weighted(content)


def test_the_checksum_of_a_gpu_sees_what_changed_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, pieces and tensors that changed places, zeros that were added, and bytes that are not at a
    multiple of four in memory."""
    monkeypatch.setattr(transfer, "_CHECKED", 4)
    monkeypatch.setattr(transfer, "_WEIGHTS", {})
    first, second = bytes(range(16)), bytes(range(16, 32))
    different = [first + second, second + first, first, first + b"\0", first + b"\0\0\0\0",
                 first[4:8] + first[:4] + first[8:] + second]  # fmt: skip
    shifted = torch.frombuffer(bytearray(b"x" + first + second), dtype=torch.uint8)[1:]
    none = torch.zeros((), dtype=torch.int64)
    tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in (first, second)]
    in_turn = [add_weighted(add_weighted(none, one), other) for one, other in (tensors, tensors[::-1])]

    assert len({weighted(content) for content in different}) == len(different)
    assert int(add_weighted(none, shifted)) == weighted(first + second)
    assert in_turn[0] != in_turn[1]


def test_the_state_of_another_member_goes_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sender has on its device is received on the device, and the rest on the CPU. If the device has
    too little room, all is received on the CPU."""
    expected = [
        transfer._Expected("weight", torch.float32, [2, 3], "cuda"),
        transfer._Expected("step", torch.float32, [], "cpu"),
    ]
    room = transfer._make_room(expected, DEVICE)
    assert {name: tensor.device.type for name, tensor in room.items()} == {"weight": "meta", "step": "cpu"}
    inner = torch.empty

    def empty(*arguments: Any, device: torch.device, **options: Any) -> torch.Tensor:
        if device == DEVICE:
            raise torch.OutOfMemoryError
        return inner(*arguments, device=device, **options)

    monkeypatch.setattr(torch, "empty", empty)
    room = transfer._make_room(expected, DEVICE)
    assert {name: tensor.device.type for name, tensor in room.items()} == {"weight": "cpu", "step": "cpu"}
