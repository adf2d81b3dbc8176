"""Train on the digits with Lightning and workers that come and go: the program of a job
with ``distributionStrategy: AllreduceStrategy``.

Run by the agent in each worker: ``edl agent run -- python train_lightning.py
--checkpoint-dir DIR``. Needs the extra ``lightning``, and scikit-learn.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
import train_digits_torch as digits
from lightning.pytorch import LightningModule, Trainer
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, StackDataset

from edl_workflows.training.frameworks.lightning import ElasticStrategy, TrainingOptions, connect


class Network(LightningModule):
    """A network with one hidden layer, which knows nothing of the job."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(digits.PIXELS, digits.HIDDEN),
            torch.nn.ReLU(),
            torch.nn.Linear(digits.HIDDEN, digits.CLASSES),
        )

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The mean loss of a batch."""
        loss = cross_entropy(self.layers(batch["images"]), batch["labels"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        """The accuracy on held-out images."""
        right = self.layers(batch["images"]).argmax(1) == batch["labels"]
        self.log("accuracy", right.float().mean())

    def configure_optimizers(self) -> dict[str, Any]:
        """Adam, with a tenth of the rate after each 10 epochs."""
        optimizer = torch.optim.Adam(self.parameters(), digits.LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def loaders(batch_size: int) -> tuple["DataLoader[Any]", "DataLoader[Any]"]:
    """The training data and the held-out images."""
    images, labels, test_images, test_labels = digits.load()
    training = StackDataset(images=images, labels=labels, index=torch.arange(len(images)))
    held_out = StackDataset(images=test_images, labels=test_labels)
    return DataLoader(training, batch_size, shuffle=True), DataLoader(held_out, batch_size)


def make_trainer(strategy: ElasticStrategy, options: argparse.Namespace, **more: Any) -> Trainer:
    """Lightning's ``Trainer`` with this strategy."""
    return Trainer(
        strategy=strategy,
        accelerator="cpu",
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,  # the job saves
        enable_progress_bar=False,
        enable_model_summary=False,
        **more,
    )


def main() -> None:
    """Train until all epochs are over."""
    options = parse(argparse.ArgumentParser(description=__doc__))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    settings = TrainingOptions(options.checkpoint_dir, options.save_seconds, threads=1)
    trainer = make_trainer(ElasticStrategy(job, settings), options)
    training, held_out = loaders(options.batch_size)
    trainer.fit(Network(), training, held_out)


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line."""
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=30, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="records of a mini-batch (%(default)s)"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=10.0, help="between checkpoints (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
