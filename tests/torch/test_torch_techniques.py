"""Common techniques of training loops under the PyTorch adapter: two members train as one does, because the
mean gradient of the global batch is that of one large batch.

CUDA graphs can't be captured without a GPU. What is special in a step that replays one is that its results
are always in the same memory; `graphed` does that on the CPU. `tests/gpu` has a captured one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.tensors import load, save
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.frameworks.torch_collective import TorchModel, TorchTraining
from tests.torch.members import PIXELS, joined, network, parameters, records, set_values, together

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


class _Replayed(torch.autograd.Function):  # type: ignore[misc]  # no types in the environment of the checks
    """A pass of which losses and gradients are always in the same memory, as those of
    `torch.cuda.make_graphed_callables` are."""

    @staticmethod
    def forward(
        context: Any, compute: Callable[[], torch.Tensor], memory: dict[str, Any], *trained: torch.Tensor
    ) -> torch.Tensor:
        with torch.enable_grad():
            losses = compute()
        context.pass_made = losses, memory, trained
        kept: torch.Tensor = memory.setdefault("losses", torch.empty_like(losses)).copy_(losses.detach())
        return kept.detach()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        losses, memory, trained = context.pass_made
        computed = torch.autograd.grad(losses, memory["trained"], gradients)
        kept = memory.setdefault("gradients", [torch.empty_like(one) for one in trained])
        return None, None, *(one.copy_(value).detach() for one, value in zip(kept, computed, strict=True))


def graphed(made: TorchModel) -> TorchModel:
    """Forward and backward pass in the same memory each time."""
    memory: dict[str, Any] = {"trained": list(made.model.parameters())}

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        replayed: torch.Tensor = _Replayed.apply(lambda: made.losses(x, y), memory, *memory["trained"])
        return replayed

    return replaced(made, losses=losses)


def scaled(made: TorchModel) -> TorchModel:
    """Gradients that are scaled before they are computed, and scaled back before they are clipped."""
    scaler = torch.amp.GradScaler("cpu")

    def update() -> None:
        scaler.unscale_(made.optimizer)
        torch.nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        scaler.step(made.optimizer)
        scaler.update()

    return replaced(made, update=update, more={"scaler": scaler})


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
    [
        (accumulated, 1e-5),
        (autocast, 2e-2),
        (clipped, 1e-5),
        (compiled, 1e-5),
        (graphed, 1e-5),
        (scaled, 1e-5),
    ],
    ids=["accumulation", "bfloat16", "clipping and schedule", "compile", "same memory", "scaler"],
)
def test_two_members_train_as_one(technique: Technique, tolerance: float) -> None:
    """With accumulation to the global batch, mixed precision, clipping, a schedule and a compiled model, the
    losses of two members equal those of one."""
    alone = losses_of(1, technique)

    assert len(set(alone)) == STEPS, "the model changes"
    assert losses_of(2, technique) == pytest.approx(alone, abs=tolerance)


def unscheduled(made: TorchModel) -> TorchModel:
    """What `scaled` is, without a scaler."""

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        made.optimizer.step()

    return replaced(made, update=update)


@pytest.mark.parametrize(
    ("technique", "plain"),
    [(graphed, accumulated), (compiled, accumulated), (scaled, unscheduled)],
    ids=["same memory", "compile", "scaler"],
)
def test_a_technique_does_not_change_the_training(technique: Technique, plain: Technique) -> None:
    """Losses, as the adapter reports them, are those of the same training without the technique."""
    assert losses_of(2, technique) == pytest.approx(losses_of(2, plain), abs=1e-5)


def overflowing(made: TorchModel) -> TorchModel:
    """A scaler, and gradients that overflow for a record with large values."""

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return made.losses(x.clamp(-9, 9), y) * torch.where(x[:, 0] > 9, 3e38, 1.0)

    scaler = torch.amp.GradScaler("cpu", growth_interval=2)
    return replaced(made, losses=losses, update=None, more={"scaler": scaler})


def test_an_overflow_in_one_member_is_left_out_by_all(tmp_path: Path) -> None:
    """The gradients of one member overflow: no member updates, and all halve the scale. The scale grows again
    in all members, and a restored member has it."""
    members = joined(2, lambda _: overflowing(network(0)))
    x, y = records(8)
    large = torch.cat([x[:1] + 100.0, x[1:]])

    def step(of_first: torch.Tensor) -> list[float]:
        batches = [{"x": of_first[:4], "y": y[:4]}, {"x": x[4:], "y": y[4:]}]
        together([lambda rank=rank: members[rank].step([batches[rank]], Wishes()) for rank in range(2)])  # type: ignore[misc]
        return [scale_of(member) for member in members]

    first = scale_of(members[0])
    assert step(x) == [first, first]
    before = [parameters(member) for member in members]
    assert step(large) == [first / 2, first / 2]
    for member, values in zip(members, before, strict=True):
        assert all(torch.equal(one, values[name]) for name, one in parameters(member).items())
    assert [step(x), step(x)] == [[first / 2] * 2, [first] * 2]
    assert step(large) == [first / 2, first / 2]
    save(tmp_path, members[0].state(4, {}))
    (restored,) = joined(1, lambda _: overflowing(network(1)))
    restored.load(load(tmp_path / STATE_FILE).tensors)
    assert scale_of(restored) == first / 2


def scale_of(member: TorchTraining) -> float:
    """The present scale of a member's gradients."""
    scaler = member._scaler
    assert scaler is not None
    return float(scaler.get_scale())


def test_two_scalers_are_refused() -> None:
    """It would not be clear which one scales."""
    more = {name: torch.amp.GradScaler("cpu") for name in ("scaler", "other")}

    with pytest.raises(InvalidError, match="several GradScalers"):
        TorchTraining(lambda: replaced(network(0), more=more)).prepare()


def convolution(*, channels_last: bool, fused: bool) -> TorchModel:
    """A convolution whose parameters are in either order in memory."""
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 8, 2), torch.nn.Tanh(), torch.nn.Flatten())
    set_values(model, 0)
    order = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=order)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, fused=fused)

    def losses(x: torch.Tensor) -> torch.Tensor:
        pictures = x.view(-1, 2, 2, PIXELS // 4).contiguous(memory_format=order)
        return model(pictures).square().sum(1)

    return TorchModel(model, optimizer, losses, {"x": records(2)[0]})


def train_convolution(member: TorchTraining, steps: Sequence[int]) -> list[float]:
    """The losses of some steps."""
    x, _ = records(16)
    return [member.step([{"x": x[step : step + 4]}], Wishes()).loss for step in steps]


@pytest.mark.parametrize("fused", [False, True], ids=["by tensor", "fused"])
def test_channels_last(tmp_path: Path, fused: bool) -> None:
    """With parameters in channels-last order, the training is that with parameters in the usual order, also
    after a restore. Gradients and averages have the parameters' order, as fused optimizers need."""
    (usual,) = joined(1, lambda _: convolution(channels_last=False, fused=fused))
    expected = train_convolution(usual, range(8))
    build = partial(_channels_last, fused=fused)
    (first,) = joined(1, build)
    losses = train_convolution(first, range(4))
    save(tmp_path, first.state(4, {}))
    (second,) = joined(1, build)
    second.load(load(tmp_path / STATE_FILE).tensors)
    losses += train_convolution(second, range(4, 8))

    assert losses == pytest.approx(expected, abs=1e-5)
    weight = next(second._parts.model.parameters())
    averages = second._parts.optimizer.state[weight]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.grad is not None
    assert weight.grad.stride() == averages["exp_avg"].stride() == weight.stride() != usual_strides(weight)


def _channels_last(_rank: int, *, fused: bool) -> TorchModel:
    return convolution(channels_last=True, fused=fused)


def usual_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.contiguous().stride())


class Counting(torch.optim.SGD):  # type: ignore[misc]  # no types in the environment of the checks
    """An optimizer that keeps a value that belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:
        """Update, and count."""
        self.state["updates"] = self.state.get("updates", 0) + 1
        return super().step(closure)


def test_an_optimizer_with_a_value_of_no_parameter(tmp_path: Path) -> None:
    """Such an optimizer trains, and a restored one has the value."""

    def build(_rank: int) -> TorchModel:
        made = network(0)
        optimizer = Counting(made.model.parameters(), lr=0.1)
        optimizer.state["updates"] = 0
        return replaced(made, optimizer=optimizer, update=None, more=None)

    first, second = joined(1, build)[0], joined(1, build)[0]
    x, y = records(4)
    for _ in range(2):
        first.step([{"x": x, "y": y}], Wishes())
    save(tmp_path, first.state(2, {}))
    second.load(load(tmp_path / STATE_FILE).tensors)

    assert second._parts.optimizer.state["updates"] == 2
