"""The ends of epochs of a PyTorch job while members join and die."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from tqdm import tqdm

from edl_workflows.training.collective.world import World
from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.frameworks.torch_collective import (
    Dataset,
    ElasticDataLoader,
    TorchModel,
    TrainingOptions,
    training,
)
from tests.docs import torch_bar
from tests.torch import together as versions_of_together
from tests.torch.alone import JobAlone, break_steps
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


def test_the_documented_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each epoch has a bar of its steps, without the repeated ones; the schedule ends with the last step."""
    job = JobAlone(MOST)
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # no thread that outlives the test
    monkeypatch.setattr(torch_bar, "connect", lambda: job.as_job)
    break_steps(monkeypatch, repeated={2}, received=set())
    images, labels = records(RECORDS)
    torch_bar.train(images, labels, tmp_path)
    assert len(job.steps) == 9
    ended = [line.rsplit("\r", 1)[-1] for line in capsys.readouterr().err.split("\n") if line]
    assert [line.split("|")[0] for line in ended] == [f"epoch {epoch}: 100%" for epoch in (1, 2, 3)]
    assert all(" 3/3 " in line for line in ended)


def test_the_bar_of_a_resumed_epoch(tmp_path: Path) -> None:
    """A loader's length is that of the next loop: the rest of the epoch, and nothing if it is over."""
    lengths: list[tuple[int, int, int]] = []
    with training(JobAlone(MOST).as_job, build, DATASET, TrainingOptions(tmp_path)) as run:
        data = torch.utils.data.TensorDataset(*records(RECORDS))
        loader = ElasticDataLoader(run, data)
        assert len(loader) == EPOCHS * STEPS
        run._sampler.advance()
        for _ in run.epochs():
            expected = len(loader)
            made = [run.step(turn) for turn in loader]
            lengths += [(expected, len(made), len(loader))]
    assert lengths == [(STEPS - 1, STEPS - 1, 0)] + [(STEPS, STEPS, 0)] * (EPOCHS - 1)
