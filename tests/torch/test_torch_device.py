"""Saving from a device that copies by itself, beside training: every byte is that of the step that was
saved."""

import contextlib
import logging
import mmap
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder, claim_folder
from edl_workflows.training.checkpoints.tensors import load, read_state, save
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from edl_workflows.training.frameworks.torch_copies.device import CudaDevice
from edl_workflows.training.frameworks.torch_state import from_saved_state, split
from tests.torch.fake_device import FakeDevice
from tests.torch.members import eventually, joined, records, set_values

GPU = torch.device("cuda", 1)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The device of all models."""
    made = FakeDevice()
    monkeypatch.setattr(
        "edl_workflows.training.frameworks.torch_collective.choose_device", lambda _tensors: made
    )
    return made


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    """The node's slots. Nobody persists them."""
    return claim_folder(tmp_path / "edl-node")


def normalized(_rank: int) -> TorchModel:
    """A network whose forward pass changes its buffers, in channels-last order, with Adam."""
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 4, 2), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    model.to(memory_format=torch.channels_last)
    set_values(model, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, _ = records(2)
    return TorchModel(model, optimizer, lambda x: model(x.view(-1, 2, 2, 2)).square().sum(1), {"x": x})


def saving(member: TorchTraining, folder: SnapshotFolder, tmp_path: Path) -> FirstStage:
    """What copies the member's state."""
    store = CheckpointStore(tmp_path / "checkpoints")
    return FirstStage(TwoStages(lambda: member.state(7, {}), store), folder, 1)


def values(member: TorchTraining) -> dict[str, Any]:
    """The present values of all tensors, as bytes."""
    return {name: one.clone() for name, one in split(member._state()).tensors.items()}


def saved_values(folder: SnapshotFolder) -> dict[str, Any]:
    """Those of the newest copy."""
    newest = eventually(lambda: folder.newest)
    with folder.reading(newest.number) as block:
        assert block is not None
        return split(from_saved_state(read_state(block, "memory").tensors)).tensors


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_update_waits_for_the_copies_and_not_for_the_file(
    device: FakeDevice, folder: SnapshotFolder, tmp_path: Path
) -> None:
    """The next step computes its gradients while the copies have only begun. Its update comes after them, and
    nobody has written a file by then. The copy has the values from before the step: parameters, averages, and
    buffers that the forward pass has changed meanwhile."""
    (member,) = joined(1, normalized)
    x, _ = records(4)
    member.step([{"x": x}], Wishes())
    first = saving(member, folder, tmp_path)
    first.save(CheckpointTicket(id="1"), persist=True, wait=False)
    before = values(member)
    copied_at_the_forward_pass: list[bool] = []
    inner = member._parts.losses

    def losses(x: torch.Tensor) -> torch.Tensor:
        eventually(lambda: device.begun)
        copied_at_the_forward_pass.append(device.begun[0].done.is_set())
        return inner(x)

    member._parts = replace(member._parts, losses=losses)
    member.step([{"x": x}], Wishes())
    device.may_copy.set()  # without the wait, the copies would only be made now

    assert copied_at_the_forward_pass == [False]
    assert equal(saved_values(folder), before)
    changed = [name for name, one in values(member).items() if not torch.equal(one, before[name])]
    assert {"model/0.weight", "model/1.running_mean", "optimizer/state/0/exp_avg"} <= set(changed)


def test_a_restore_waits_for_the_copies(device: FakeDevice, folder: SnapshotFolder, tmp_path: Path) -> None:
    """Another state is loaded only after the copies of the present one."""
    (member,) = joined(1, normalized)
    device.may_copy.set()
    save(tmp_path, member.state(0, {}))
    device.may_copy.clear()
    member.step([{"x": records(4)[0]}], Wishes())
    before = values(member)
    saving(member, folder, tmp_path).save(CheckpointTicket(id="1"), persist=True, wait=False)
    member._load(from_saved_state(load(tmp_path / STATE_FILE).tensors))  # without an upload, which would wait
    device.may_copy.set()

    assert equal(saved_values(folder), before)
    assert not equal(values(member), before)


def test_a_save_that_is_waited_for_is_complete(
    device: FakeDevice, folder: SnapshotFolder, tmp_path: Path
) -> None:
    """A checkpoint for which training waits, such as the last one, holds all values when the call returns."""
    device.may_copy.set()
    (member,) = joined(1, normalized)
    saving(member, folder, tmp_path).save(CheckpointTicket(id="1"), persist=True, wait=True)

    assert folder.newest is not None
    assert all(copies.done.is_set() for copies in device.begun)
    assert equal(saved_values(folder), values(member))


def test_the_memory_is_registered_before_the_first_save(
    device: FakeDevice, folder: SnapshotFolder, tmp_path: Path
) -> None:
    """Both slots are registered before the first save. After the optimizer has made its averages, the larger
    memory is registered in place of the first, and at the end none is."""
    device.may_copy.set()
    (member,) = joined(1, normalized)
    first = saving(member, folder, tmp_path)
    first.reserve(chief=True)
    eventually(lambda: not first.reserving)
    assert device.registered == [True, True]
    member.step([{"x": records(4)[0]}], Wishes())
    first.reserve(chief=True)
    eventually(lambda: not first.reserving)
    first.save(CheckpointTicket(id="1"), persist=False, wait=True)
    assert device.registered == [False, False, True, True]

    first.close(5.0)
    assert device.registered == [False] * 4


class FakeCuda:
    """PyTorch's module `torch.cuda`, without a GPU.

    Args:
        refusal: the code that ``cudaHostRegister`` returns.

    Attributes:
        calls: names and arguments of the calls to CUDA, each with the device on which it was made.
        registering: the threads that registered memory.
    """

    def __init__(self, refusal: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.registering: list[int] = []
        self._refusal = refusal
        self._device: Any = None

    def Stream(self, device: torch.device) -> object:  # noqa: N802 - PyTorch's name
        """A stream."""
        return SimpleNamespace(
            device=device,
            wait_event=lambda event: self.calls.append(("wait", device, event)),
            synchronize=lambda: None,
        )

    def Event(self, *, blocking: bool) -> object:  # noqa: N802 - PyTorch's name
        """An event."""
        assert blocking
        return SimpleNamespace(record=lambda _stream: None, synchronize=lambda: None)

    def current_stream(self, device: torch.device) -> object:
        """The stream of the training."""
        return SimpleNamespace(record_event=lambda: f"event of {device}")

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """A context with another stream. At its end, PyTorch returns to the stream of the device before."""
        self.calls.append(("stream", self._device, stream.device))
        yield

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """A context with another device."""
        before, self._device = self._device, device
        yield
        self._device = before

    def cudart(self) -> Any:
        """CUDA's runtime."""

        def call(name: str, code: int, arguments: Sequence[int]) -> int:
            self.calls.append((name, self._device, *arguments))
            self.registering += [threading.get_ident()] if name == "register" else []
            return code

        return SimpleNamespace(
            cudaHostRegister=lambda *arguments: call("register", self._refusal, arguments),
            cudaHostUnregister=lambda *arguments: call("unregister", 0, arguments),
        )


def address_of(memory: mmap.mmap) -> int:
    return int(torch.frombuffer(memory, dtype=torch.uint8).data_ptr())


def test_memory_is_registered_with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is registered on the model's device, which need not be the first, for all devices of the
    process (``cudaHostRegisterPortable``)."""
    cuda = FakeCuda(refusal=0)
    monkeypatch.setattr(torch, "cuda", cuda)
    with mmap.mmap(-1, 8192) as memory:
        end = CudaDevice([GPU]).register(memory)
        end()
        address = address_of(memory)

    assert cuda.calls == [("register", GPU, address, 8192, 1), ("unregister", GPU, address)]
    assert cuda.registering != [threading.get_ident()], "CUDA keeps the last error of a thread"


def test_cuda_refuses_to_register(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal is logged once. The memory is used as it is, and nothing is unregistered."""
    cuda = FakeCuda(refusal=2)
    monkeypatch.setattr(torch, "cuda", cuda)
    device = CudaDevice([GPU])
    with caplog.at_level(logging.WARNING), mmap.mmap(-1, 8192) as memory:
        for _ in range(2):
            device.register(memory)()

    assert [name for name, *_ in cuda.calls] == ["register", "register"]
    (record,) = caplog.records
    assert "through pageable memory" in record.getMessage()


def on_gpu(index: int) -> Any:
    """A tensor on a GPU."""
    device = torch.device("cuda", index)
    return SimpleNamespace(device=device, is_cuda=True, copy_=lambda _source, non_blocking: non_blocking)


def test_a_tensor_that_comes_to_another_gpu_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state may get tensors on a GPU on which it had none, after the mark as well: its copies begin after
    the work that the GPU has been given. The copying thread stays on the device of each tensor."""
    cuda = FakeCuda(refusal=0)
    monkeypatch.setattr(torch, "cuda", cuda)
    device = CudaDevice([GPU])
    other = torch.device("cuda", 2)
    device.copy([(on_gpu(1), None), (on_gpu(2), None), (on_gpu(2), None)], {GPU: "mark"})

    assert cuda.calls == [
        ("wait", GPU, "mark"),
        ("stream", GPU, GPU),
        ("wait", other, "event of cuda:2"),
        ("stream", other, other),
        ("stream", other, other),
    ]
    assert list(device.mark()) == [GPU, other]


class OnDevice(torch.Tensor):  # type: ignore[misc]  # no types in the environment of the checks
    """A tensor that counts as being on a GPU: what makes the process wait for the GPU is noted."""

    waits: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note it."""
        kwargs = kwargs or {}
        moved = function is torch.Tensor.to and not kwargs.get("non_blocking")
        if function in _WAITS or moved:
            cls.waits.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs)


_WAITS = {
    getattr(torch.Tensor, name)
    for name in ("cpu", "item", "tolist", "numpy", "__float__", "__int__", "__index__", "__bool__")
}


def test_a_mini_batch_does_not_wait_for_the_device() -> None:
    """Losses stay on the device, and inputs are sent to it, without a wait in any mini-batch of a step."""

    def build(rank: int) -> TorchModel:
        made = normalized(rank)
        return replace(made, losses=lambda x: made.losses(x.as_subclass(torch.Tensor)).as_subclass(OnDevice))

    (member,) = joined(1, build)
    member._non_blocking = True  # as for a model on a GPU
    x = records(20)[0].as_subclass(OnDevice)
    OnDevice.waits.clear()
    with member._replica.guarding():
        losses, count = member._accumulate([{"x": part} for part in x.split(4)])
    waits = list(OnDevice.waits)

    assert waits == []
    assert (float(losses) > 0.0, count) == (True, 20.0)
    assert OnDevice.waits == ["__float__"], "the test notes waits"


def test_inputs_on_a_gpu_are_there_when_the_cpu_reads_them() -> None:
    """A model on the CPU may get its inputs from a GPU. Without a wait, the copy would return before the
    values are there."""
    (member,) = joined(1, normalized)
    x = records(4)[0].as_subclass(OnDevice)
    OnDevice.waits.clear()
    member.sum_losses({"x": x})

    assert OnDevice.waits == ["to"]


class Elsewhere(torch.Tensor):  # type: ignore[misc]  # no types in the environment of the checks
    """A tensor that counts as being on a second GPU: it can't be added to a tensor of the first before it is
    moved there."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse the addition, as PyTorch does."""
        if function in _ADDITIONS and any(type(value) is torch.Tensor for value in args):
            raise RuntimeError("Expected all tensors to be on the same device")
        result = super().__torch_function__(function, types, args, kwargs or {})
        moved = function is torch.Tensor.to and any(isinstance(value, torch.device) for value in args)
        return result.as_subclass(torch.Tensor) if moved else result


_ADDITIONS = {getattr(torch.Tensor, name) for name in ("add", "__add__", "__radd__")}


def test_losses_on_another_device_than_the_first_parameter() -> None:
    """The last layers of a model that is spread over two GPUs compute the losses on the second one."""

    def build(rank: int) -> TorchModel:
        made = normalized(rank)
        return replace(made, losses=lambda x: made.losses(x).as_subclass(Elsewhere))

    (member,) = joined(1, build)
    expected, _ = joined(1, normalized)[0]._accumulate([{"x": records(4)[0]}])
    with member._replica.guarding():
        losses, count = member._accumulate([{"x": records(4)[0]}])

    assert (float(losses), count) == (float(expected), 4.0)
    with pytest.raises(RuntimeError, match="same device"):
        torch.zeros(()) + torch.zeros(()).as_subclass(Elsewhere)
