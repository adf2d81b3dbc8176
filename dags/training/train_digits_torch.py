"""Train on the digits with PyTorch and workers that sum their gradients: the program of
a job with ``distributionStrategy: AllreduceStrategy``.

Run by the agent in each worker: ``edl agent run -- python train_digits_torch.py
--checkpoint-dir DIR``. Needs the extra ``torch``, and scikit-learn.
"""

import argparse
import logging
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from edl_workflows.training import connect
from edl_workflows.training.frameworks.torch_collective import (
    Dataset,
    TorchModel,
    TrainingOptions,
    training,
)

PIXELS, CLASSES, HIDDEN = 64, 10, 64
LEARNING_RATE = 2e-3
TEST_SHARE = 5
"""Held-out images: every fifth in a fixed shuffled order."""


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and labels of the training part, and those of the held-out part."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.data / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(bunch.target)[order]
    held_out = torch.arange(len(order)) % TEST_SHARE == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]


def build() -> TorchModel:
    """A network with one hidden layer, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    )

    def losses(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(images), labels, reduction="none")

    return TorchModel(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), LEARNING_RATE),
        losses=losses,
        example={"images": torch.zeros(1, PIXELS), "labels": torch.zeros(1, dtype=torch.int64)},
    )


def main() -> None:
    """Train until all epochs are over; rank 0 evaluates at the end."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    images, labels, test_images, test_labels = load()
    dataset = Dataset(len(images), options.batch_size, options.epochs)
    settings = TrainingOptions(
        options.checkpoint_dir, options.save_seconds, threads=options.threads
    )
    parts = build()
    with training(job, lambda: parts, dataset, settings) as run:
        for mini_batches in run:
            step, loss = run.step(
                [{"images": images[list(i)], "labels": labels[list(i)]} for i in mini_batches]
            )
            if run.step_made and step % options.log_steps == 0 and run.rank == 0:
                print(f"epoch {run.epoch} step {step} loss {loss:.4f}", flush=True)
            time.sleep(options.step_delay)
        if run.rank == 0:
            accuracy = (parts.model(test_images).argmax(1) == test_labels).float().mean()
            print(f"accuracy on held-out images: {float(accuracy):.3f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=30, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="records of a mini-batch (%(default)s)"
    )
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds between steps")
    parser.add_argument(
        "--save-seconds", type=float, default=10.0, help="between checkpoints (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (%(default)s)")
    parser.add_argument(
        "--log-steps", type=int, default=50, help="steps between lines (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
