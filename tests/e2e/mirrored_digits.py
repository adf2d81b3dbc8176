"""The example's training program for collective jobs, which also notes the records of each step that it has
made."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "dags" / "training")]

import digits  # type: ignore[import-not-found]  # of the example
import train_digits_allreduce  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import connect
from edl_workflows.training.frameworks.tensorflow_collective import Dataset, TrainingOptions, training
from tests.e2e.noted_steps import make_parser, train_and_note

BATCH_SIZE = 16


def main() -> None:
    """Train and note the records of each step."""
    options = make_parser(__doc__).parse_args()
    job = connect()
    data, _ = digits.load()
    dataset = Dataset(len(data), BATCH_SIZE, options.epochs)
    settings = TrainingOptions(options.folder / "checkpoints", save_seconds=5.0, threads=1)
    with training(job, train_digits_allreduce.build, dataset, settings) as run:
        train_and_note(job, run, lambda i: {"images": data.images[i], "labels": data.labels[i]}, options)


if __name__ == "__main__":
    main()
