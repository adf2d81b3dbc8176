"""The example's training program, which also notes the records of each step that it has made."""

import argparse
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(Path(__file__).parents[2] / "dags" / "training"))

import digits  # type: ignore[import-not-found]  # of the example
import train_digits  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import CheckpointRef, CheckpointStore, connect
from edl_workflows.training.frameworks.tensorflow import TrainingOptions, training


def slow_saves(seconds: float) -> None:
    """Make the store slow, as with a large model."""
    publish = CheckpointStore.publish

    def published(store: CheckpointStore, *args: Any, **kwargs: Any) -> CheckpointRef:
        time.sleep(seconds)
        return publish(store, *args, **kwargs)

    CheckpointStore.publish = published  # type: ignore[method-assign,assignment]


def main() -> None:
    """Train; one line ``epoch step index index …`` a step in a file of this process. No more rest once
    ``hurry`` is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--step-delay", type=float, required=True)
    parser.add_argument("--async-save", action="store_true")
    parser.add_argument("--slow-save", type=float, help="seconds that a save takes; saves only on request")
    options = parser.parse_args()
    logging.basicConfig()
    logging.getLogger("edl_workflows").setLevel(logging.INFO)
    if options.slow_save:
        slow_saves(options.slow_save)
    job = connect()
    data, _ = digits.load()
    settings = TrainingOptions(
        options.folder / "checkpoints",
        save_seconds=None if options.slow_save else 3.0,
        threads=1,
        async_save=options.async_save,
        memory_seconds=0.5,
        replicate=options.async_save,
    )
    hurry = options.folder / "hurry"
    notes = options.folder / f"records-{job.node}-v{job.version}-{os.getpid()}"
    with notes.open("w") as file, training(job, train_digits.build, settings) as run:
        for batch in job.batches(
            "train", size=len(data), shard_size=64, batch_size=32, num_epochs=options.epochs,
            splitter="text", shuffle=True,
        ):  # fmt: skip
            step, _ = run.step(images=data.images[batch.indices], labels=data.labels[batch.indices])
            file.write(f"{batch.epoch} {step} {' '.join(map(str, batch.indices))}\n")
            file.flush()
            if not hurry.exists():
                time.sleep(options.step_delay)


if __name__ == "__main__":
    main()
