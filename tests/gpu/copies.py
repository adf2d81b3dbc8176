"""Copies, streams and graphs of CUDA itself under the PyTorch adapter: ``python -m tests.gpu.copies CHECK``,
with an interpreter that has PyTorch. An error is an AssertionError."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edl_workflows.core.protocol.training import CheckpointTicket
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.snapshots import claim_folder
from edl_workflows.training.checkpoints.tensors import load, read_state, save
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from edl_workflows.training.frameworks.torch_copies.device import CudaDevice
from edl_workflows.training.frameworks.torch_copies.transfer import add_weighted, upload
from edl_workflows.training.frameworks.torch_state import from_saved_state, split
from tests.torch.members import eventually, joined

GPU = torch.device("cuda", torch.cuda.device_count() - 1)
"""The last one, since the adapter must not depend on device 0."""
SLEEP_CYCLES = 10**9
"""Cycles of the GPU, about half a second."""
BATCH, WIDTH = 64, 1024


def network(*, graphed: bool = False) -> TorchModel:
    """Layers on the GPU, with a fused optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(12))).to(GPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(BATCH, WIDTH, device=GPU)
    forward = torch.cuda.make_graphed_callables(model, (x,)) if graphed else model
    return TorchModel(model, optimizer, lambda x: forward(x).square().mean(1), {"x": x})


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    """The same inputs in each call, in pinned memory."""
    source = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(BATCH, WIDTH, generator=source).pin_memory()} for _ in range(count)]


def values(member: TorchTraining) -> dict[str, torch.Tensor]:
    """All tensors of a member's state, on the CPU."""
    return {name: tensor.cpu().clone() for name, tensor in split(member._state()).tensors.items()}


def require_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Fail unless all tensors are equal to the bit."""
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def check_saves() -> None:
    """Saves beside training, with registered memory: each copy has the values from before the next step."""
    (member,) = joined(1, lambda _: network())
    assert isinstance(member._copy_device, CudaDevice)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        slots = claim_folder(Path(folder) / "node")
        first = FirstStage(
            TwoStages(lambda: member.state(1, {}), CheckpointStore(Path(folder) / "store")), slots, 1
        )
        for number in range(1, 6):
            member.step(batches(2), Wishes())
            first.reserve(chief=True)
            before = values(member)
            # Without a wait, the update would be much earlier than the copies.
            with torch.cuda.stream(member._copy_device._streams[GPU]):
                torch.cuda._sleep(SLEEP_CYCLES)
            first.save(CheckpointTicket(id=""), persist=False, wait=False)
            member.step(batches(2), Wishes())
            eventually(lambda: slots.find(number))  # noqa: B023 - called at once
            with slots.reading(number) as block:
                assert block is not None
                require_equal(split(from_saved_state(read_state(block, "here").tensors)).tensors, before)
        first.close(5.0)
        assert not member._copy_device._warned, "the memory is registered"


def check_restore() -> None:
    """A restore through registered memory."""
    saver, restorer = joined(1, lambda _: network())[0], joined(1, lambda _: network())[0]
    saver.step(batches(2), Wishes())
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), saver.state(1, {}))
        restorer.load(load(Path(folder) / STATE_FILE).tensors)
    require_equal(values(restorer), values(saver))
    large = np.random.default_rng(1).integers(0, 2**60, 2**24)
    tensor = torch.zeros(2**24, dtype=torch.int64, device=GPU)
    upload(CudaDevice([GPU]), [(tensor, large)])
    assert np.array_equal(tensor.cpu().numpy(), large)


def check_mini_batches() -> None:
    """No operation of a mini-batch waits for the GPU, as PyTorch itself notes."""
    (member,) = joined(1, lambda _: network())
    inputs = batches(4)
    torch.cuda.set_sync_debug_mode("error")
    losses, _ = member._accumulate(inputs)
    torch.cuda.set_sync_debug_mode("default")
    assert float(losses) > 0.0


def check_graphs() -> None:
    """Forward and backward passes that are replayed as CUDA graphs train as the same ones that are not."""
    losses: list[list[float]] = []
    for graphed in (False, True):
        (member,) = joined(1, lambda _: network(graphed=graphed))  # noqa: B023 - called at once
        losses.append([member.step(batches(4), Wishes()).loss for _ in range(5)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def check_checksum() -> None:
    """The checksum of the same bytes is the same on the GPU and on the CPU."""
    content = torch.randint(0, 256, (2**24 + 3,), dtype=torch.uint8)

    def of(tensor: torch.Tensor) -> int:
        return int(add_weighted(torch.zeros((), dtype=torch.int64, device=tensor.device), tensor))

    assert of(content) == of(content.to(GPU))


CHECKS: dict[str, Callable[[], Any]] = {
    "saves": check_saves,
    "restore": check_restore,
    "mini-batches": check_mini_batches,
    "graphs": check_graphs,
    "checksum": check_checksum,
}

if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
