"""What the training programs of collective jobs have in common: they note the records of each step."""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl_workflows.training import Job
from edl_workflows.training.collective.world import World


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of each of these programs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--step-delay", type=float, default=0.0)
    return parser


def train_and_note(
    job: Job, world: World, load: Callable[[list[int]], Any], options: argparse.Namespace
) -> None:
    """Train until the data is consumed. Each step adds a line ``epoch step index index …`` to a file of this
    process.

    Args:
        job: this process's.
        world: the training that this process is a member of.
        load: makes a mini-batch of the records with these indices.
        options: of `make_parser`. Training no longer pauses after a step once its folder has a file
            ``hurry``.
    """
    notes = options.folder / f"records-{job.node}-v{job.version}-{os.getpid()}"
    with notes.open("w") as file:
        for mini_batches in world:
            epoch = world.epoch
            step, loss = world.step([load(list(indices)) for indices in mini_batches])
            records = " ".join(str(record) for batch in mini_batches for record in batch)
            file.write(f"{epoch} {step} {records}\n")
            file.flush()
            if world.rank == 0:
                print(f"step {step} of {world.size} loss {loss!r}", flush=True)
            if not (options.folder / "hurry").exists():
                time.sleep(options.step_delay)
