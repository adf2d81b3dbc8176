"""Lightning in a collective job, with the real library and a tiny model."""

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.frameworks.lightning import ElasticStrategy
from edl_workflows.training.options import TrainingOptions
from tests.torch.alone import JobAlone, break_steps
from tests.torch.together import DIES, JOINS, members, train_together

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its imports
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping

from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.torch.members import CLASSES, PIXELS, records, set_values

RECORDS, BATCH, MOST = 50, 2, 3
pytestmark = [  # of Lightning's own code, and its advice for long trainings
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


class Network(LightningModule):  # type: ignore[misc]  # no types in the environment of the checks
    """A network with a schedule that steps every two steps, and one that steps every epoch."""

    def __init__(self, rate: float = 0.05, interval: str = "step", frequency: int = 2) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(PIXELS, 16), torch.nn.Tanh(), torch.nn.Linear(16, CLASSES)
        )
        set_values(self.layers, 0)
        self._rate, self._schedule = rate, {"interval": interval, "frequency": frequency}
        self.rates: list[float] = []
        self.batches: list[list[int]] = []

    def training_step(self, batch: Sequence[torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        """The mean loss."""
        x, y, index = batch
        self.batches.append(index.tolist())
        loss = cross_entropy(self.layers(x), y)
        self.log("train_loss", loss, on_epoch=True)
        return {"loss": loss}

    def validation_step(self, batch: Sequence[torch.Tensor]) -> None:
        """The mean loss on the same data."""
        self.log("val_loss", cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam."""
        optimizer = torch.optim.Adam(self.parameters(), self._rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, **self._schedule}}


class Curve(Callback):  # type: ignore[misc]
    """Notes loss, learning rate, epoch and step of each step, and each epoch's mean of validation."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float, int, int]] = []
        self.validated: list[float] = []

    def on_train_batch_end(self, trainer: Trainer, module: Network, outputs: Any, *_more: Any) -> None:
        """Note."""
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.steps.append((float(outputs["loss"]), rate, trainer.current_epoch, trainer.global_step))

    def on_validation_end(self, trainer: Trainer, _module: Network) -> None:
        """Note."""
        self.validated.append(float(trainer.callback_metrics["val_loss"]))


def loader(shuffle: bool = False, batch_size: int = BATCH, **more: Any) -> "DataLoader[Any]":
    """The training data."""
    return DataLoader(TensorDataset(*records(RECORDS), torch.arange(RECORDS)), batch_size, shuffle, **more)


def trainer_of(callbacks: Sequence[Callback] = (), **more: Any) -> Trainer:
    """A short training on the CPU."""
    settings = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "gradient_clip_val": 0.5,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 1,
    }
    return Trainer(callbacks=list(callbacks), **{**settings, **more})


def elastic(folder: Path, job: JobAlone, callbacks: Sequence[Callback] = (), **more: Any) -> Trainer:
    """A ``Trainer`` of this job."""
    strategy = ElasticStrategy(job.as_job, TrainingOptions(folder / "checkpoints", save_seconds=None))
    return trainer_of(callbacks, strategy=strategy, **more)


@pytest.mark.parametrize(("interval", "frequency"), [("step", 2), ("epoch", 1)])
def test_the_training_is_that_of_lightning_itself(tmp_path: Path, interval: str, frequency: int) -> None:
    """Losses, learning rates, epochs, validation and weights equal those of a plain ``Trainer`` whose batch
    is as large as those of all members together."""
    plain, expected = Network(interval=interval, frequency=frequency), Curve()
    trainer_of([expected]).fit(plain, loader(batch_size=BATCH * MOST), loader())
    job, curve, module = JobAlone(MOST), Curve(), Network(interval=interval, frequency=frequency)
    trainer = elastic(tmp_path, job, [curve])
    trainer.fit(module, loader(), loader())

    assert [list(step) for step in curve.steps] == [pytest.approx(step, abs=1e-5) for step in expected.steps]
    assert curve.validated == pytest.approx(expected.validated, abs=1e-5)
    for mine, its in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, its, atol=1e-5)
    assert job.steps[-1][2] == job.expected == 2 * RECORDS
    assert trainer.current_epoch == 2
    assert job.metrics["val_loss"] == pytest.approx(expected.validated[-1], abs=1e-5)


def test_it_goes_on_from_the_jobs_checkpoint(tmp_path: Path) -> None:
    """A process that is told to exit during the second epoch saves, and exits with 143. The next one makes
    the remaining steps from that position, and validates once an epoch."""
    whole, straight = Curve(), JobAlone(MOST)
    elastic(tmp_path / "straight", straight, [whole]).fit(Network(), loader(), loader())
    before, after = Curve(), Curve()
    first, second = JobAlone(MOST, leave_at=12), JobAlone(MOST)
    with pytest.raises(SystemExit) as ended:
        elastic(tmp_path, first, [before]).fit(Network(), loader(), loader())
    elastic(tmp_path, second, [after]).fit(Network(), loader(), loader())

    assert ended.value.code == 143
    assert first.losses + second.losses == pytest.approx(straight.losses, abs=1e-5)
    steps = before.steps + after.steps
    assert [list(step) for step in steps] == [pytest.approx(step, abs=1e-5) for step in whole.steps]
    assert before.validated + after.validated == pytest.approx(whole.validated, abs=1e-5)


@pytest.mark.parametrize("limits", [{"max_steps": 12}, {"max_epochs": -1, "max_steps": 7}])
def test_limit_of_steps_is_the_end_of_the_job(tmp_path: Path, limits: dict[str, Any]) -> None:
    """The job's status expects as many records as the steps have; nobody knows an end without a limit."""
    job = JobAlone(MOST)
    elastic(tmp_path, job, **limits).fit(Network(), loader())
    assert job.expected == job.steps[-1][2]


def test_it_goes_on_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    """If the process ended between two epochs, the next process begins with the next epoch."""
    first, second = JobAlone(MOST, leave_at=8), JobAlone(MOST)
    with pytest.raises(SystemExit):
        elastic(tmp_path, first, max_epochs=3).fit(Network(), loader(), loader())
    trainer = elastic(tmp_path, second, max_epochs=3)
    trainer.fit(Network(), loader(), loader())

    assert [step for step, *_ in first.steps + second.steps] == list(range(1, 28))
    assert (trainer.current_epoch, trainer.global_step) == (3, 27)


def test_steps_during_which_members_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that no member completed is repeated. A step that only another member completed is not:
    Lightning counts it and continues from the received state. The result equals that without losses."""
    whole, curve = Network(), Curve()
    elastic(tmp_path / "whole", JobAlone(MOST)).fit(whole, loader(), loader())
    break_steps(monkeypatch, repeated={3, 9}, received={5, 9, 18})
    job, module = JobAlone(MOST), Network()
    trainer = elastic(tmp_path / "broken", job, [curve])
    trainer.fit(module, loader(), loader())

    assert [step for *_, step in curve.steps] == list(range(1, 19))
    assert [step for step, *_ in job.steps] == [step for step in range(1, 19) if step not in (5, 9, 18)]
    for mine, its in zip(module.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, its)


def test_a_member_joins_and_another_one_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``Trainer`` joins another one that trains, gets its model and position, and continues alone when the
    other one dies. Each step has the loss of an undisturbed training."""
    alone, whole = JobAlone(MOST), Curve()
    elastic(tmp_path / "alone", alone, [whole]).fit(Network(), loader(), loader())
    jobs, curves = members(MOST), [Curve(), Curve()]
    trainers = [elastic(tmp_path / "together", job, [one]) for job, one in zip(jobs, curves, strict=True)]
    fits = [partial(trainer.fit, Network(), loader(), loader()) for trainer in trainers]
    train_together(monkeypatch, fits)
    first, second = jobs

    assert [step for step, *_ in first.steps] == list(range(1, DIES + 1))
    assert [step for step, *_ in second.steps] == list(range(JOINS + 2, len(alone.steps) + 1))
    for curve, job in zip(curves, jobs, strict=True):
        expected = whole.steps[job.steps[0][0] - 1 : job.steps[-1][0]]
        assert [list(step) for step in curve.steps] == [pytest.approx(step, abs=1e-5) for step in expected]
    assert second.steps[-1][2] == 2 * RECORDS
    assert curves[1].validated == pytest.approx(whole.validated, abs=1e-5)
    assert trainers[1].is_global_zero


def test_early_stopping_counts_on(tmp_path: Path) -> None:
    """After a restart, EarlyStopping continues with its counters."""

    def run(job: JobAlone) -> None:
        patience = EarlyStopping("val_loss", patience=3)
        elastic(tmp_path, job, [patience], max_epochs=9).fit(Network(rate=0.0), loader(), loader())

    with pytest.raises(SystemExit):
        run(JobAlone(MOST, leave_at=22))
    job = JobAlone(MOST)
    run(job)

    assert job.steps[-1][0] == 4 * 9, "the best was epoch 1; epochs 2, 3 and 4 are not better"


def test_shuffled_epochs_have_each_record_once(tmp_path: Path) -> None:
    """With a random order in each epoch, accumulated batches and workers that read ahead, each epoch has each
    record once."""

    class WithoutIndex(Network):
        def training_step(self, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return super().training_step(batch, 0)

    job, module = JobAlone(MOST), WithoutIndex()
    data = loader(shuffle=True, num_workers=1)
    elastic(tmp_path, job, accumulate_grad_batches=2).fit(module, data)
    rows = [row for batch in module.batches[1:] for row in batch]  # the first is the warm-up

    assert all(len(batch) <= BATCH for batch in module.batches)
    assert sorted(rows[:RECORDS]) == sorted(rows[RECORDS:]) == list(range(RECORDS))
    assert rows[:RECORDS] != rows[RECORDS:]
    assert len(job.steps) == 2 * 5, "12 records a step"


def test_what_it_can_not_do_is_refused(tmp_path: Path) -> None:
    """Each unsupported option is an error that names it."""

    class Manual(Network):
        automatic_optimization = False

    def refused(module: Network, **more: Any) -> str:
        with pytest.raises(InvalidError) as refusal:
            elastic(tmp_path, JobAlone(MOST), **more).fit(module, loader())
        return str(refusal.value)

    assert "automatic optimization" in refused(Manual(), gradient_clip_val=None)
    assert "limit_train_batches" in refused(Network(), limit_train_batches=3)
    trainer = elastic(tmp_path, JobAlone(MOST))
    ordered = DataLoader(Subset(loader().dataset, range(4)), BATCH, sampler=[3, 2, 1, 0])
    with pytest.raises(InvalidError, match="order of a list"):
        trainer.fit(Network(), ordered)
