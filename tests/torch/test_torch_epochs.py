"""The ends of epochs of a PyTorch job while members join and die."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch

from edl_workflows.training.collective.world import World
from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.frameworks.torch_collective import (
    Dataset,
    ElasticDataLoader,
    TorchModel,
    TrainingOptions,
    training,
)
from tests.torch import together as versions_of_together
from tests.torch.alone import JobAlone
from tests.torch.members import SECONDS, network, records, together
from tests.torch.together import Died, JobTogether, members

RECORDS, EPOCHS, MOST = 48, 4, 2
DATASET = Dataset(RECORDS, batch_size=2, num_epochs=EPOCHS, global_batch=8)
STEPS = 6
"""Of an epoch."""


def build() -> TorchModel:
    """A model whose inputs come as tuples, as from a `TensorDataset`."""
    model = network(seed=1)
    return TorchModel(
        model.model,
        model.optimizer,
        lambda x, y: torch.nn.functional.cross_entropy(model.model(x), y, reduction="none"),
        records(2),
        model.update,
        model.more,
    )


def train(
    job: JobAlone, folder: Path, at_end: Callable[[World], object] = lambda _run: None
) -> list[tuple[int, int, float]]:
    """Train all epochs: for each, its number, how many steps, and rank 0's loss on all records."""
    model, data = build(), torch.utils.data.TensorDataset(*records(RECORDS))
    turns = []
    with training(job.as_job, lambda: model, DATASET, TrainingOptions(folder)) as run:
        loader = ElasticDataLoader(run, data)

        def evaluate() -> dict[str, float]:
            at_end(run)
            with torch.no_grad():
                return {"val_loss": float(model.losses(*data.tensors).mean())}

        for epoch in run.epochs():
            before = len(job.steps)
            for mini_batches in loader:
                run.step(mini_batches)
            turns.append((epoch, len(job.steps) - before, run.validate(evaluate)["val_loss"]))
    return turns


def test_a_member_joins_between_the_last_step_of_an_epoch_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It validates that epoch together with the first one, as rank 0 says. When the first one dies in the
    end of the next epoch, the second one ends it alone. The curves are those of an undisturbed training, and
    the best checkpoint is kept."""
    expected = train(JobAlone(MOST), tmp_path / "alone")
    assert [turn[:2] for turn in expected] == [(epoch, STEPS) for epoch in range(1, EPOCHS + 1)]
    monkeypatch.setattr(versions_of_together, "JOINS", STEPS - 1)
    jobs, dead = members(MOST), threading.Event()

    def die(run: World) -> None:
        job = cast("JobTogether", run.job)
        if run.global_step == 2 * STEPS and job.number == 0:
            job.versions.activate(3)
            dead.set()
            raise Died
        if run.global_step == 2 * STEPS:
            assert dead.wait(SECONDS)

    def first() -> list[tuple[int, int, float]]:
        with pytest.raises(Died):
            train(jobs[0], tmp_path / "together", die)
        return []

    _, turns = together([first, lambda: train(jobs[1], tmp_path / "together", die)])

    assert [turn[:2] for turn in turns] == [(1, 0)] + [turn[:2] for turn in expected[1:]]
    assert [turn[2] for turn in turns] == pytest.approx([turn[2] for turn in expected], abs=1e-5)
    best = min(expected, key=lambda turn: turn[2])[0]
    assert open_model(tmp_path / "together" / "best").checkpoint.step == best * STEPS
