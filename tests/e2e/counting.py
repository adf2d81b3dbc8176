"""What the training programs of the kill tests have in common: a model that counts how often each record of
each epoch was trained into it, and places at which they stop until they are killed or let go.

So the last checkpoint by itself says whether a record was lost, or trained twice.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import CheckpointStore, Job
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.checkpoints.tensors import load

RECORDS, EPOCHS = 1500, 6
COUNTS = "counts"
SAVE_SECONDS = 1.0
LOOK_SECONDS = 0.02

Counts = NDArray[np.int64]


def key(epoch: int, record: int) -> int:
    """Place of a record of an epoch in the model."""
    return (epoch - 1) * RECORDS + record


def nothing() -> Counts:
    """The model before training."""
    return np.zeros(RECORDS * EPOCHS, np.int64)


def read_counts(checkpoint: CheckpointRef) -> Counts:
    """The model in a checkpoint of either program."""
    folder = Path(checkpoint.uri)
    if (folder / COUNTS).exists():
        return np.frombuffer((folder / COUNTS).read_bytes(), np.int64)
    return np.rint(load(folder / STATE_FILE).tensors[COUNTS]).astype(np.int64)


def final(folder: Path) -> CheckpointRef:
    """The checkpoint that a job has left."""
    newest = CheckpointStore(folder / "checkpoints").newest()
    assert newest is not None, f"{folder}: no checkpoint"
    return newest


@dataclass(frozen=True)
class Holds:
    """Places at which training processes stop while a file says so.

    Attributes:
        folder: of the job.
    """

    folder: Path

    def set(self, place: str) -> None:
        """Who comes to this place from now on stops there."""
        self._hold(place).touch()

    def release(self, place: str) -> None:
        """All go on."""
        self._hold(place).unlink()

    def reached(self, place: str) -> int:
        """How many processes have stopped there."""
        return len(list(self.folder.glob(f"reached-{place}-*")))

    def at(self, place: str, who: str) -> None:
        """A process comes to a place."""
        hold = self._hold(place)
        if hold.exists():
            (self.folder / f"reached-{place}-{who}").touch()
        while hold.exists():
            time.sleep(LOOK_SECONDS)

    def _hold(self, place: str) -> Path:
        return self.folder / f"hold-{place}"


@dataclass(frozen=True)
class Pace:
    """How fast a process trains: it rests after each step until there is a file ``hurry``.

    Attributes:
        folder: of the job.
        delay: seconds of a rest.
    """

    folder: Path
    delay: float

    def rest(self) -> None:
        """After a step."""
        if not (self.folder / "hurry").exists():
            time.sleep(self.delay)


class Program:
    """A training process: its options, and where it stops.

    Attributes:
        folder: of the job.
        store: of its checkpoints.
        pace: how fast it trains.
    """

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("folder", type=Path)
        parser.add_argument("--step-delay", type=float, required=True)
        options = parser.parse_args()
        self.folder: Path = options.folder
        self.store = CheckpointStore(self.folder / "checkpoints")
        self.pace = Pace(self.folder, options.step_delay)

    def at(self, place: str, job: Job) -> None:
        """The process comes to a place; see `Holds`."""
        Holds(self.folder).at(place, f"{job.node}-v{job.version}")

    def prepares(self, job: Job) -> None:
        """The process is about to prepare itself: of the first version, or of a later one."""
        self.at("start" if job.version == 1 else "prepare", job)
