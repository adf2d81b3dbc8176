"""Saved states are read by PyTorch's own ``torch.distributed.checkpoint`` (DCP), on any number of ranks."""

import os
import socket
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed import checkpoint, tensor
from torch.multiprocessing import spawn

from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.frameworks.torch_state import to_saved_state

ROWS, COLUMNS = 12, 5


def saved_tensors() -> dict[str, torch.Tensor]:
    """What is saved: a weight in two types, which 2 and 3 ranks share evenly, and the optimizer's."""
    weight = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)
    return {
        "model/weight": weight,
        "model/half": (weight / 7).to(torch.bfloat16),
        "optimizer/state/0/exp_avg": -weight,
    }


def save(folder: Path) -> None:
    """Save as the adapter does."""
    weight, half, average = saved_tensors().values()
    state = {
        "model": {"weight": weight, "half": half},
        "optimizer": {"state": {0: {"exp_avg": average}}, "param_groups": [{"lr": 0.1}]},
    }
    tensors.save(folder, to_saved_state(state, 7, {}))


def load_shards(rank: int, size: int, port: int, folder: str) -> None:
    """As one rank: load each tensor as a DTensor that is sharded over all ranks, and compare this rank's part
    to the bit."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=size)
    mesh = distributed.init_device_mesh("cpu", (size,))
    into = {
        name: tensor.distribute_tensor(torch.zeros_like(one), mesh, [tensor.Shard(0)])
        for name, one in saved_tensors().items()
    }
    checkpoint.load(into, storage_reader=checkpoint.HuggingFaceStorageReader(folder))
    for name, whole in saved_tensors().items():
        mine = into[name].to_local()
        assert len(mine) == ROWS // size
        assert torch.equal(mine, whole.chunk(size)[rank])
    distributed.destroy_process_group()


@pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled:UserWarning"
)  # said although it is asked for
def test_dcp_reads_a_saved_state(tmp_path: Path) -> None:
    """A single process without a group reads the tensors by their names."""
    save(tmp_path)
    into = {name: torch.zeros_like(one) for name, one in saved_tensors().items()}

    checkpoint.load(into, storage_reader=checkpoint.HuggingFaceStorageReader(str(tmp_path)), no_dist=True)

    assert all(torch.equal(into[name], one) for name, one in saved_tensors().items())


@pytest.mark.parametrize("size", [2, 3])
def test_dcp_reshards_a_saved_state(tmp_path: Path, size: int) -> None:
    """`torch.distributed.checkpoint` loads a saved state with any number of ranks: each gets its rows of each
    tensor."""
    save(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    spawn(load_shards, (size, port, str(tmp_path)), nprocs=size)
