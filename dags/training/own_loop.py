"""Train on the digits with a PyTorch loop of one's own: an average of the weights, warm-up,
accumulated gradients, early stop, the best model and a CSV file.

`own_loop.py` knows nothing of this package; `own_loop_elastic.py` is the same program as an
elastic job: ``diff own_loop.py own_loop_elastic.py`` shows what is different.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

PIXELS, HIDDEN, CLASSES = 64, 64, 10
TEST_SHARE = 5
"""Held-out images: every fifth in a fixed shuffled order."""


def load() -> tuple[TensorDataset, TensorDataset]:
    """The training part and the held-out part."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.data / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(bunch.target)[order]
    held_out = torch.arange(len(order)) % TEST_SHARE == 0
    return (
        TensorDataset(images[~held_out], labels[~held_out]),
        TensorDataset(images[held_out], labels[held_out]),
    )


def evaluate(model: torch.nn.Module, held_out: TensorDataset) -> dict[str, float]:
    """Loss and accuracy on held-out images."""
    images, labels = held_out.tensors
    model.eval()
    with torch.no_grad():
        scores = model(images)
    return {
        "val_loss": float(cross_entropy(scores, labels)),
        "val_accuracy": float((scores.argmax(1) == labels).float().mean()),
    }


def write_row(file: Path, row: dict[str, float]) -> None:
    """Append a row to the CSV file."""
    fresh = not file.exists()
    with file.open("a", newline="") as out:
        writer = csv.DictWriter(out, row)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    """Make the model and what trains it, and train."""
    options = _options()
    torch.manual_seed(options.seed)
    training_set, held_out = load()
    model = torch.nn.Sequential(
        torch.nn.Linear(PIXELS, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, CLASSES)
    )
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(options.decay))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / options.warm_up)
    )

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        ema.update_parameters(model)

    loader = DataLoader(training_set, options.batch_size, shuffle=True)
    train(options, model, ema, update, loader, held_out)


def train(
    options: argparse.Namespace,
    model: torch.nn.Module,
    ema: AveragedModel,
    update: Callable[[], None],
    loader: DataLoader,
    held_out: TensorDataset,
) -> None:
    """Train until the last epoch, or until the model does not get better any more."""
    best, waited, step = float("inf"), 0, 0
    for epoch in range(1, options.epochs + 1):
        model.train()
        for number, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images), labels) / options.accumulate
            loss.backward()
            if number % options.accumulate:
                continue
            update()
            step += 1
            if step % options.log_steps == 0:
                print(f"epoch {epoch} step {step}", flush=True)
            time.sleep(options.step_delay)
        metrics = evaluate(ema, held_out)
        row = {"epoch": epoch, "step": step, **metrics}
        write_row(options.output / "metrics.csv", row)
        print(f"epoch {epoch} ended with {metrics}", flush=True)
        waited += 1
        if metrics["val_loss"] < best:
            best, waited = metrics["val_loss"], 0
            torch.save(ema.module.state_dict(), options.output / "best.pt")
        if waited >= options.patience:
            break


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--epochs", type=int, default=60, help="at most (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="default %(default)s")
    parser.add_argument(
        "--accumulate", type=int, default=4, help="batches of a step (default %(default)s)"
    )
    parser.add_argument("--learning-rate", type=float, default=4e-3, help="default %(default)s")
    parser.add_argument("--warm-up", type=int, default=20, help="steps (default %(default)s)")
    parser.add_argument("--clip", type=float, default=1.0, help="of the gradient (%(default)s)")
    parser.add_argument("--decay", type=float, default=0.9, help="of the average (%(default)s)")
    parser.add_argument(
        "--patience", type=int, default=5, help="epochs without progress (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds between steps")
    parser.add_argument(
        "--log-steps", type=int, default=20, help="steps between lines (default %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
