"""Ranks that save a sharded model together, and fewer ranks that restore it; each is a process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import Part, state_files
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.frameworks.torch_parts import part_of_state, restore_state
from edl_workflows.training.frameworks.torch_state import from_saved_state, split, to_saved_state

STEP = 7
WIDTH = 5
"""Rows that neither 4, 3 nor 2 ranks share evenly."""


@contextmanager
def group(rank: int, size: int, folder: Path) -> Iterator[None]:
    """A group of the first ranks of this machine."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}
    name = folder / f"store-{size}-{len(list(folder.glob(f'left-{rank}-*')))}"
    distributed.init_process_group("gloo", init_method=f"file://{name}", rank=rank, world_size=size)
    try:
        yield
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
        (folder / f"left-{rank}-{name.name}").touch()


def sharded_state(seed: int, shape: tuple[int, ...]) -> tuple[Any, Any, dict[str, Any]]:
    """A model and Adam after a step, and their state: sharded over the last axis of a mesh, with copies over
    the first."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 1)
    )
    names = ("copies", "shards")[-len(shape) :]
    fully_shard(model, mesh=distributed.init_device_mesh("cpu", shape, mesh_dim_names=names))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (seed + 1))
    model(torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))).sum().backward()
    optimizer.step()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return model, optimizer, {"model": of_model, "optimizer": of_optimizer}


def whole(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The whole tensors of a state."""
    found = split(state, sharded=True).tensors
    return {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in found.items()}


def save_together(rank: int, folder: Path, shape: tuple[int, ...]) -> None:
    """As one rank: save its part. Rank 0 publishes, and saves the whole tensors for comparison."""
    size = 4
    store = CheckpointStore(folder / "-".join(map(str, shape)))
    _, _, state = sharded_state(0, shape)
    part = part_of_state(state, STEP, {}, Part(rank, size))
    store.put_part(
        "checkpoint-000000000007-00000000", part.part, lambda file: tensors.write_state(file, part), ""
    )
    expected = whole(state)
    distributed.barrier()
    if rank == 0:
        ref = store.publish_parts(STEP, size, name="checkpoint-000000000007-00000000")
        assert len(state_files(store.manifest(ref))) == size
        tensors.save(folder, to_saved_state(expected, STEP, {}))


def restore_together(folder: Path, saved_by: str, size: int) -> None:
    """As one rank of another number: the model continues from what was saved, equal to the bit; PyTorch reads
    the same by itself."""
    store = CheckpointStore(folder / saved_by)
    ref = store.newest()
    assert isinstance(ref, CheckpointRef)
    parts = [tensors.load(Path(ref.uri) / file) for file in state_files(store.manifest(ref))]
    model, optimizer, state = sharded_state(1, (size,))
    restored = restore_state(state, parts, ref.uri)
    set_state_dict(
        model, optimizer, model_state_dict=restored["model"], optim_state_dict=restored["optimizer"]
    )

    of_model, of_optimizer = get_state_dict(model, optimizer)
    compare(folder, whole({"model": of_model, "optimizer": of_optimizer}))
    assert optimizer.param_groups[0]["lr"] == 0.01
    _, _, other = sharded_state(2, (size,))
    into = split(other, sharded=True).tensors
    checkpoint.load(dict(into), storage_reader=checkpoint.HuggingFaceStorageReader(ref.uri))
    compare(folder, whole(other))


def compare(folder: Path, found: dict[str, torch.Tensor]) -> None:
    """Fail unless tensors are, to the bit, those that 4 ranks saved."""
    expected = from_saved_state(tensors.load(folder / "state.safetensors").tensors)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def run_rank(rank: int, folder_name: str) -> None:
    """Four ranks save, sharded over all and sharded within two groups that hold copies; then three and two of
    them restore both."""
    folder = Path(folder_name)
    torch.set_num_threads(1)
    for shape in ((4,), (2, 2)):
        (folder / str(len(shape))).mkdir(exist_ok=True)
        with group(rank, 4, folder):
            save_together(rank, folder / str(len(shape)), shape)
    for size in (3, 2):
        if rank < size:
            with group(rank, size, folder):
                restore_together(folder / "1", "4", size)
                restore_together(folder / "2", "2-2", size)
