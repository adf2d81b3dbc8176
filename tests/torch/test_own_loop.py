"""The training loop of one's own in the examples, as it is and as an elastic job."""

import csv
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch

from edl_workflows.training.frameworks.saved_model import open_model
from edl_workflows.training.frameworks.torch_collective import from_saved_state
from tests.torch.alone import JobAlone

TRAINING = Path(__file__).parents[2] / "dags" / "training"
MOST = 2


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Both programs."""
    monkeypatch.syspath_prepend(str(TRAINING))
    torch.set_num_threads(1)  # other processes need the processors, too
    return import_module("own_loop"), import_module("own_loop_elastic")


def rows(
    program: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> list[dict[str, str]]:
    """Train; the rows of the CSV file."""
    monkeypatch.setattr(sys, "argv", ["train", f"--output={folder}", *options])
    folder.mkdir(exist_ok=True)
    program.main()
    with (folder / "metrics.csv").open() as lines:
        return list(csv.DictReader(lines))


def test_the_elastic_loop_is_the_same_training(
    programs: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both learn alike, write the same columns, and stop early. The average of the weights is in the best
    checkpoint by its name, and a process that starts again trains nothing."""
    own, elastic = programs
    job = JobAlone(MOST)
    monkeypatch.setattr(elastic, "connect", lambda: job.as_job)
    few = ("--epochs=4", "--learning-rate=0.02", "--patience=2")
    plain, other = (
        rows(own, tmp_path / "a", monkeypatch, *few),
        rows(elastic, tmp_path / "b", monkeypatch, *few),
    )

    assert [row.keys() for row in plain] == [row.keys() for row in other]
    assert [row["epoch"] for row in other] == ["1", "2", "3", "4"]
    assert float(other[-1]["val_accuracy"]) == pytest.approx(float(plain[-1]["val_accuracy"]), abs=0.05)
    assert job.metrics["val_loss"] == float(other[-1]["val_loss"])
    best = from_saved_state(open_model(tmp_path / "b" / "checkpoints" / "best").tensors)
    assert "module.0.weight" in best["more"]["ema"]

    impatient = ("--epochs=50", "--learning-rate=0", "--patience=2")
    stopped = rows(elastic, tmp_path / "c", monkeypatch, *impatient)
    assert [row["epoch"] for row in stopped] == ["1", "2", "3"]
    assert rows(elastic, tmp_path / "c", monkeypatch, *impatient) == stopped
