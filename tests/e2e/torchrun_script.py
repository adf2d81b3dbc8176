"""An ordinary script for ``torchrun``, which knows nothing of this package: DistributedDataParallel on
synthetic data, with a checkpoint every few steps, and from there after a restart.

Each start of a process leaves a line ``pid rank local-rank world-size restart step`` in ``starts``. Without a
file ``hurry`` in the folder it rests after each step.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

SAVE_STEPS = 5
FEATURES = 8


def main() -> None:
    """Train as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, help="steps, in fact")
    parser.add_argument("--step-delay", type=float, default=0.0)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    assert distributed.is_torchelastic_launched()
    rank, local = distributed.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    file = options.folder / "checkpoint.pt"
    step = load(file, model, optimizer)
    with (options.folder / "starts").open("a") as starts:
        restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
        starts.write(f"{os.getpid()} {rank} {local} {distributed.get_world_size()} {restart} {step}\n")
    parallel = DistributedDataParallel(model)
    goal = torch.arange(FEATURES, dtype=torch.float32)
    while step < options.epochs:
        inputs = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = ((parallel(inputs).squeeze(1) - inputs @ goal) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and (step % SAVE_STEPS == 0 or step == options.epochs):
            save(file, model, optimizer, step)
        if not (options.folder / "hurry").exists():
            time.sleep(options.step_delay)
    # A rank that ends while others use the group, or the model's hooks refer to it, may abort at its exit.
    distributed.barrier()
    del parallel
    distributed.destroy_process_group()


def load(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step of the checkpoint, which is loaded; 0 without one."""
    if not file.exists():
        return 0
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return int(saved["step"])


def save(file: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the checkpoint."""
    part = file.with_suffix(".part")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
    part.replace(file)


if __name__ == "__main__":
    main()
