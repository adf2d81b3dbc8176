"""One of two members that make steps with the same model: ours, or DistributedDataParallel's. Prints the
seconds of each step as JSON.

    python -m tests.benchmarks.torch_step ours|ddp RANK PORT STEPS
"""

import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining

SIZE, WARM_UP = 2, 5
WIDTH, CLASSES, BATCH = 1024, 10, 256
Step = Callable[[torch.Tensor, torch.Tensor], float]


def network() -> torch.nn.Sequential:
    """Four million parameters."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(4):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, CLASSES))


def our_step(rank: int, port: str) -> Step:
    """A step of the adapter."""
    model = network()

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(x), y, reduction="none")

    example = {"x": torch.zeros(1, WIDTH), "y": torch.zeros(1, dtype=torch.int64)}
    optimizer = torch.optim.Adam(model.parameters())
    member = TorchTraining(lambda: TorchModel(model, optimizer, losses, example))
    member.join(Place(1, rank, (f"127.0.0.1:{port}",) * SIZE))
    return lambda x, y: member.step([{"x": x, "y": y}], Wishes()).loss


def peers_step(rank: int, port: str) -> Step:
    """A step as PyTorch's tutorial writes it, with the mean loss of all members as ours reports it."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    distributed.init_process_group("gloo", rank=rank, world_size=SIZE)
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach()
        distributed.all_reduce(total)
        return float(total) / SIZE

    return step


def main() -> None:
    """Make the steps."""
    mode, rank, port, steps = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    step = our_step(rank, port) if mode == "ours" else peers_step(rank, port)
    source = torch.Generator().manual_seed(rank)
    x = torch.randn(BATCH, WIDTH, generator=source)
    y = torch.randint(CLASSES, (BATCH,), generator=source)
    seconds = []
    for index in range(WARM_UP + steps):
        began = time.perf_counter()
        loss = step(x, y)
        if index >= WARM_UP:
            seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
