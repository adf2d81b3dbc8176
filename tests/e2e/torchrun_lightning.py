"""An ordinary Lightning script for ``torchrun``, which knows nothing of this package: DDP on synthetic data,
with a checkpoint every few steps, and from there after a restart.

Each start of a process leaves a line ``pid rank local-rank world-size restart step`` in ``starts``. Without a
file ``hurry`` in the folder it rests after each step.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

SAVE_STEPS = 5
RECORDS, FEATURES = 1000, 8


class Network(LightningModule):  # type: ignore[misc]  # no types in the environment of the checks
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(FEATURES, 1)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The mean loss of a batch."""
        inputs, goals = batch
        return ((self.layer(inputs).squeeze(1) - goals) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


class NotedStart(Callback):  # type: ignore[misc]
    """Notes the start of the training."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_start(self, trainer: Trainer, _module: Network) -> None:
        """Note."""
        with (self._folder / "starts").open("a") as starts:
            restart, local = os.environ["TORCHELASTIC_RESTART_COUNT"], trainer.local_rank
            size, step = trainer.world_size, trainer.global_step
            starts.write(f"{os.getpid()} {trainer.global_rank} {local} {size} {restart} {step}\n")


class Resting(Callback):  # type: ignore[misc]
    """Rests after each step until there is a file ``hurry``."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._hurry, self._seconds = folder / "hurry", seconds

    def on_train_batch_end(self, *_arguments: Any, **_more: Any) -> None:
        """Rest."""
        if not self._hurry.exists():
            time.sleep(self._seconds)


def main() -> None:
    """Train as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, help="steps, in fact")
    parser.add_argument("--step-delay", type=float, default=0.0)
    options = parser.parse_args()
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(RECORDS, FEATURES, generator=source)
    data = TensorDataset(inputs, inputs @ torch.arange(FEATURES, dtype=torch.float32))
    saving = ModelCheckpoint(options.folder / "out", every_n_train_steps=SAVE_STEPS, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=options.epochs,
        callbacks=[saving, NotedStart(options.folder), Resting(options.folder, options.step_delay)],
        default_root_dir=options.folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = options.folder / "out" / "last.ckpt"
    trainer.fit(Network(), DataLoader(data, 4, shuffle=True), ckpt_path=str(last) if last.exists() else None)


if __name__ == "__main__":
    main()
