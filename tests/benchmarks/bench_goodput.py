"""Goodput of a job whose training process is killed again and again: against no kills, and against
resubmission.

``python -m tests.benchmarks.bench_goodput [--minutes 10] [--every 60] [--json]``

A real master, agents and a program without a framework that makes a step each 20 ms and saves each 2 s; three
runs of so many minutes, one after another. (a) Nobody is killed. (b) Every so many seconds the training
process is killed (SIGKILL): its node ends, and the master has another one made. (c) As (b), but nobody goes
on: everything is ended at the kill, and the job is submitted anew from the newest checkpoint, with a master
of its own. Compared are the steps of the model at the end; beside them stands what the master itself says of
goodput, and what the job's time was spent on.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import CheckpointStore, connect
from tests.e2e.standalone import Standalone

GOAL = 0.9
STEP_SECONDS = 0.02
SAVE_SECONDS = 2.0
START_SECONDS = 120.0


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        steps: of the model at the end.
        of_kill_free: of the steps that the run without kills made.
        goodput: what the master said last; 0 where several jobs had a part each.
        seconds: what the job's time was spent on, as the master said last; empty where there were several.
    """

    run: str
    minutes: float
    kills: int
    steps: int
    of_kill_free: float
    goodput: float
    seconds: dict[str, int]
    goal: str = ""
    met: bool = True


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between kills")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        train(Path(options.program))
        return
    seconds = 60 * options.minutes
    free, said, _ = survive(seconds, seconds)
    rows = [Row("kill-free", options.minutes, 0, free, 1.0, said["ratio"], said["seconds"])]
    steps, said, kills = survive(seconds, options.every)
    share = round(steps / free, 4)
    told = (said["ratio"], said["seconds"])
    rows.append(Row("killed", options.minutes, kills, steps, share, *told, f"≥ {GOAL}", share >= GOAL))
    steps, kills = resubmit(seconds, options.every)
    rows.append(Row("resubmitted", options.minutes, kills, steps, round(steps / free, 4), 0.0, {}))
    for row in rows:
        print(json.dumps(asdict(row)) if options.json else _in_words(row))
    sys.exit(any(not row.met for row in rows))


def _in_words(row: Row) -> str:
    said = f", the master says {row.goodput:.3f}" if row.goodput else ""
    met = ("ok" if row.met else "MISSED") if row.goal else ""
    return (
        f"{row.run:12} {row.minutes:g} min, {row.kills} kills: {row.steps} steps, {row.of_kill_free:.3f} of "
        "kill-free"
        f"{said} {row.goal} {met}"
    ).rstrip() + "".join(f"\n{'':14}{cause:12}{seconds:6} s" for cause, seconds in row.seconds.items())


def kill_times(seconds: float, every: float) -> list[float]:
    """Seconds after the first step at which somebody is killed."""
    return [every * number for number in range(1, int(seconds / every) + 1) if every * number < seconds]


def survive(seconds: float, every: float) -> tuple[int, dict[str, Any], int]:
    """Steps, what the master says of goodput, and kills of a job that goes on by itself."""
    kills = 0
    with _job() as job:
        begin = time.monotonic()
        for at in kill_times(seconds, every):
            time.sleep(max(0.0, begin + at - time.monotonic()))
            kills += _kill(job.folder)
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        return job.step(), job.status()["goodput"], kills


def resubmit(seconds: float, every: float) -> tuple[int, int]:
    """Steps and kills of a job that is submitted anew after each."""
    steps, begin, ends = 0, 0.0, [*kill_times(seconds, every), seconds]
    with tempfile.TemporaryDirectory() as name:
        for number, at in enumerate(ends):
            with _job(Path(name), number) as job:
                begin = begin or time.monotonic()
                time.sleep(max(0.0, begin + at - time.monotonic()))
                saved = CheckpointStore(Path(name) / "checkpoints").newest()
                steps = max(job.step(), saved.step if saved else 0)
    return steps, len(ends) - 1


@contextlib.contextmanager
def _job(shared: Path | None = None, number: int = 0) -> Iterator[Standalone]:
    """A job that trains; `shared` holds the checkpoints of its predecessors."""
    with tempfile.TemporaryDirectory() as own:
        folder = Path(own) if shared is None else shared / f"run-{number}"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.benchmarks.bench_goodput", "--program", str(shared or folder)]
        with Standalone(folder, "worker=1", command) as job:
            if not number:
                job.wait(job.step, START_SECONDS, "the first step")
            yield job


def _kill(folder: Path) -> bool:
    """SIGKILL to the training process; False if there is none just now."""
    try:
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def train(folder: Path) -> None:
    """The program: its model is its step."""
    store, step = CheckpointStore(folder / "checkpoints"), 0

    def save() -> CheckpointRef:
        return store.publish(step, lambda path: (path / "step").write_text(str(step)))

    with connect() as job:
        job.save_with(save, every_seconds=SAVE_SECONDS)
        job.wait_until_active()
        if (start := job.start_from(store)) is not None:
            step = start.step
        (folder / "pid").write_text(str(os.getpid()))
        while True:
            job.between_steps()
            step += 1
            job.report_step(step)
            time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main()
