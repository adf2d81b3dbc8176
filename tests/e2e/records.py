"""What training consumed, read from what `recorded_digits.py` noted, and how good the model became."""

import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TRAINING = Path(__file__).parents[2] / "dags" / "training"
RECORDS = 1437
"""Of the digits' training part, as the examples load it; `tests.e2e.ring_digits` trains all digits."""
SHARD = 64
"""Records of a shard."""
HELD = 5
"""Shards that are leased to a worker at most: four ahead and the one being processed. What it has trained and
not yet told is another matter."""

_VERSION = re.compile(r"-v(\d+)-")


def consumed(folder: Path) -> Iterator[tuple[str, int, int, list[int]]]:
    """File, epoch, global step and records of each step that was made."""
    for file in sorted(folder.glob("records-*")):
        for line in file.read_text().splitlines():
            epoch, step, *records = map(int, line.split())
            yield file.name, epoch, step, records


def evaluate(folder: Path) -> dict[str, float]:
    """What the example's evaluation says of the job's checkpoints."""
    run = subprocess.run(
        [
            sys.executable,
            str(TRAINING / "evaluate_digits.py"),
            "--checkpoint-dir",
            str(folder / "checkpoints"),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert run.returncode == 0, run.stderr
    metrics: dict[str, float] = json.loads(run.stdout)
    return metrics


def all_records(epochs: int) -> set[tuple[int, int]]:
    """Each record of each epoch."""
    return {(epoch, record) for epoch in range(1, epochs + 1) for record in range(RECORDS)}


def trained(folder: Path) -> "collections.Counter[tuple[int, int]]":
    """How often each (epoch, record) was trained into the model as it is at the end.

    A cluster version that was restored from a checkpoint begins behind the checkpoint's step: what its
    predecessors made beyond that step is in no model any more, and does not count.
    """
    made = [(version_of(name), step, epoch, records) for name, epoch, step, records in consumed(folder)]
    first: dict[int, int] = {}
    for version, step, _, _ in made:
        first[version] = min(step, first.get(version, step))
    return collections.Counter(
        (epoch, record)
        for version, step, epoch, records in made
        if all(step < start for later, start in first.items() if later > version)
        for record in records
    )


def version_of(name: str) -> int:
    """The cluster version whose process wrote a file."""
    found = _VERSION.search(name)
    assert found, f"{name}: not a file of recorded_digits.py"
    return int(found[1])
