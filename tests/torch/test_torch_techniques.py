"""Common techniques of training loops under the PyTorch adapter: two members train as one does, because the
mean gradient of the global batch is that of one large batch."""

from collections.abc import Callable

import pytest
import torch

from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_collective import TorchModel
from tests.torch.members import joined, network, records, together

STEPS, BATCH, PARTS = 4, 8, 4
Technique = Callable[[TorchModel], TorchModel]


def replaced(made: TorchModel, **parts: object) -> TorchModel:
    """A model with other parts."""
    known = {name: getattr(made, name) for name in TorchModel.__dataclass_fields__}
    return TorchModel(**{**known, **parts})


def accumulated(made: TorchModel) -> TorchModel:
    """Nothing to do: a member sums the gradients of all its mini-batches."""
    return made


def autocast(made: TorchModel) -> TorchModel:
    """The forward pass in bfloat16."""

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return made.losses(x, y).float()

    return replaced(made, losses=losses)


def clipped(made: TorchModel) -> TorchModel:
    """Clipping that always takes effect, and a schedule that changes the rate in each step."""
    schedule = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, max_lr=0.1, total_steps=STEPS + 2)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(made.model.parameters(), 1e-3)
        made.optimizer.step()
        schedule.step()

    return replaced(made, update=update, more={"schedule": schedule})


def compiled(made: TorchModel) -> TorchModel:
    """A compiled model, by the tracer without a code generator, which needs no C compiler."""
    forward = torch.compile(made.model, backend="aot_eager")

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(forward(x), y, reduction="none")

    return replaced(made, losses=losses)


def losses_of(size: int, technique: Technique) -> list[float]:
    """The loss of each step with so many members, of which each has a part of each global batch."""
    members = joined(size, lambda _: technique(network(0)))
    x, y = records(STEPS * BATCH)

    def train(rank: int) -> list[float]:
        losses = []
        for step in range(STEPS):
            cuts = [
                slice(step * BATCH + part * BATCH // PARTS, step * BATCH + (part + 1) * BATCH // PARTS)
                for part in range(rank, PARTS, size)
            ]
            made = members[rank].step([{"x": x[cut], "y": y[cut]} for cut in cuts], Wishes())
            losses.append(made.loss)
        return losses

    results = together([lambda rank=rank: train(rank) for rank in range(size)])  # type: ignore[misc]
    assert all(one == results[0] for one in results)
    return results[0]


@pytest.mark.parametrize(
    ("technique", "tolerance"),
    [(accumulated, 1e-5), (autocast, 2e-2), (clipped, 1e-5), (compiled, 1e-5)],
    ids=["accumulation", "bfloat16", "clipping and schedule", "compile"],
)
def test_two_members_train_as_one(technique: Technique, tolerance: float) -> None:
    """With accumulation to the global batch, mixed precision, clipping, a schedule and a compiled model, the
    losses of two members equal those of one."""
    alone = losses_of(1, technique)

    assert len(set(alone)) == STEPS, "the model changes"
    assert losses_of(2, technique) == pytest.approx(alone, abs=tolerance)
