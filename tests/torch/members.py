"""Members of a group as threads of one process."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining

PIXELS, CLASSES = 8, 4
SECONDS = 300.0
"""After these something hangs. On a machine that is busy with much else, a step that takes seconds took two
minutes."""
T = TypeVar("T")


def places(size: int, version: int = 1) -> list[Place]:
    """Places of the members of a version, at free ports of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as first:
        addresses = tuple(f"127.0.0.1:{first.getsockname()[1]}" for _ in range(size))
    return [Place(version, rank, addresses) for rank in range(size)]


def together(works: Sequence[Callable[[], T]]) -> list[T]:
    """The results of functions that wait for each other, each run in a thread."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int, work: Callable[[], T]) -> None:
        try:
            results[index] = work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    if errors:
        raise errors[0]
    assert len(results) == len(works), "a member still waits"
    return [results[index] for index in range(len(works))]


def eventually(condition: Callable[[], T | None]) -> T:
    """The condition's first true value; fails when there is none in time."""
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < end, condition
        time.sleep(0.01)
    return value


def records(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels that are the same in each call."""
    source = torch.Generator().manual_seed(7)
    return torch.randn(count, PIXELS, generator=source), torch.randint(CLASSES, (count,), generator=source)


def set_values(model: torch.nn.Module, seed: int) -> None:
    """Initial values by a source of this call's own: other threads build their models meanwhile."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=source) * 0.3)


def network(seed: int) -> TorchModel:
    """A small network with Adam and a schedule."""
    model = torch.nn.Sequential(torch.nn.Linear(PIXELS, 16), torch.nn.Tanh(), torch.nn.Linear(16, CLASSES))
    set_values(model, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    x, y = records(2)
    return TorchModel(model, optimizer, losses, {"x": x, "y": y}, update, {"schedule": schedule})


def joined(size: int, build: Callable[[int], TorchModel] = network) -> list[TorchTraining]:
    """The members of a new group; each builds its model with its rank."""
    members = [TorchTraining(lambda rank=rank: build(rank)) for rank in range(size)]  # type: ignore[misc]
    together([lambda one=one, at=at: one.join(at) for one, at in zip(members, places(size), strict=True)])  # type: ignore[misc]
    return members


def parameters(member: TorchTraining) -> dict[str, Any]:
    """Values of a member's model."""
    return {name: one.clone() for name, one in member._parts.model.state_dict().items()}
