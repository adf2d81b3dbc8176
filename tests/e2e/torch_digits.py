"""The PyTorch example's model, with the records of each step that was made noted."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "dags" / "training")]

import torch
import train_digits_torch  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import connect
from edl_workflows.training.frameworks.torch_collective import Dataset, TrainingOptions, training

BATCH_SIZE = 16


def main() -> None:
    """Train. One line ``epoch step index index …`` a step in a file of this process and its version, before
    the step is tried; no more rest once ``hurry`` is there. A step that could not be made is tried again in a
    later version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--step-delay", type=float, default=0.0)
    options = parser.parse_args()
    # The losses of two trainings are compared. In 32 bits, the order in which gradients are summed changed a
    # loss by 4e-4 in one of twenty trainings, since Adam amplifies differences of rounding.
    torch.set_default_dtype(torch.float64)
    job = connect()
    images, labels, *_ = train_digits_torch.load()
    images = images.double()
    dataset = Dataset(len(images), BATCH_SIZE, options.epochs)
    settings = TrainingOptions(options.folder / "checkpoints", save_seconds=3.0, threads=1)
    hurry = options.folder / "hurry"
    with training(job, train_digits_torch.build, dataset, settings) as run:
        for mini_batches in run:
            records = " ".join(str(record) for batch in mini_batches for record in batch)
            notes = options.folder / f"records-{job.node}-v{job.version}-{os.getpid()}"
            with notes.open("a") as file:
                file.write(f"{run.epoch} {run.global_step + 1} {records}\n")
            step, loss = run.step(
                [{"images": images[list(i)], "labels": labels[list(i)]} for i in mini_batches]
            )
            if run.step_made:
                print(f"step {step} of {run.size} loss {loss!r}", flush=True)
            if not hurry.exists():
                time.sleep(options.step_delay)


if __name__ == "__main__":
    main()
