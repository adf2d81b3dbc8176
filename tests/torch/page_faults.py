"""Prints how many pages a member's step takes anew from the kernel: ``python -m tests.torch.page_faults``. In
a process of its own, since it depends on what the process has freed before."""

import resource

import torch

from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from tests.torch.members import places

WIDTH, LAYERS, WARM_UP, STEPS = 1024, 12, 3, 20


def build() -> TorchModel:
    """Each layer has 4 MiB of parameters, hence gradients of 4 MiB."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.Adam(model.parameters())
    return TorchModel(model, optimizer, lambda x: model(x).square().mean(1), {"x": torch.zeros(1, WIDTH)})


def main() -> None:
    """Make the steps."""
    member = TorchTraining(build, threads=1)
    member.join(places(1)[0])
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        member.step([{"x": torch.ones(8, WIDTH)}], Wishes())
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // STEPS, flush=True)


if __name__ == "__main__":
    main()
