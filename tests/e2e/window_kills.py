"""Masters that are killed while acknowledgements are not stored yet, alone and together with a worker.

    python -m tests.e2e.window_kills [--kills 200] [--seed 1]

Real processes: agents whose training processes read a data set, and the job's master, which dies by SIGKILL
at a point that the seed chooses (`tests.e2e.window_master`): when a call is received, before or after its
answer leaves, in each part of a snapshot's write, or anywhere. Together with every third master a worker is
killed, with its agent, and started again. That is never worker 0: it is the chief, so its death returns the
training to its newest checkpoint, and here there is none.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.shards.snapshot import DatasetPosition, numbers_of
from edl_workflows.services.master.state.stored_state import StoredState
from tests.e2e.pods import IDS
from tests.e2e.standalone import TOKEN, Standalone
from tests.e2e.window_master import WINDOW, Point

WORKERS = 3
DATA = "train"
SHARD, BATCH = 10, 2
REST_SECONDS = 0.02
"""Of a worker after each batch."""
LONGEST_LIFE = 1.5 * WINDOW[1]
"""Seconds from a master's first call about data until it dies at the next opportunity."""
RECORDS_PER_KILL = 1500
"""More than all workers train until the next kill, so that the data lasts."""
PATIENCE = 300.0
"""Seconds after which a master that does not die, or a job that does not end, is stuck."""
TOGETHER = 3
"""With every so many masters a worker dies."""


@dataclass(frozen=True)
class WindowKill:
    """One kill of a master.

    Attributes:
        point: where it dies.
        seconds: it lives for so long after its first call about data.
        worker: rank of the worker that dies with it; None: the master dies alone.
        worker_first: whether the worker dies a moment before the master.
    """

    point: Point
    seconds: float
    worker: int | None = None
    worker_first: bool = False


@dataclass
class Outcome:
    """What became of the records.

    Attributes:
        kills: what was killed.
        lost: records that no worker trained.
        repeated: how often records were trained again.
        unstored: how many records the killed workers had trained that were not stored when they died: the
            most that may be repeated.
        oldest: seconds before its death at which a killed worker had trained a record that was not stored.
        seconds: from the start to the end.
    """

    kills: list[WindowKill]
    lost: int = 0
    repeated: int = 0
    unstored: int = 0
    oldest: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        points = ", ".join(
            f"{count} {point}" for point, count in Counter(k.point for k in self.kills).items()
        )
        workers = sum(kill.worker is not None for kill in self.kills)
        return (
            f"{len(self.kills)} masters killed ({points}), {workers} of them together with a worker: "
            f"{self.lost} records lost, {self.repeated} trained again, at most {self.unstored} may be; the "
            f"oldest record that was not stored was trained {self.oldest:.1f} s before its worker died; "
            f"{self.seconds:.0f} s"
        )


def draw(seed: int, number: int, together: int = TOGETHER) -> WindowKill:
    """A kill of a seed's sequence.

    Args:
        seed: of the sequence.
        number: in it.
        together: with every so many masters a worker dies; 0: with none.
    """
    chance = random.Random(f"{seed}/{number}")
    points = [point for point in Point if point is not Point.NEVER]
    seconds = chance.uniform(0.0, LONGEST_LIFE)
    if not together or number % together:
        return WindowKill(points[number % len(points)], seconds)
    first = chance.random() < 0.5
    point = Point.ANYWHERE if first else points[(number // together) % len(points)]
    return WindowKill(point, seconds, chance.randrange(1, WORKERS), first)


@dataclass(frozen=True)
class Note:
    """A record that a worker trained.

    Attributes:
        time: Unix seconds.
        record: its number.
    """

    time: float
    record: int


@dataclass
class WindowJob:
    """One job, whose masters are killed.

    Attributes:
        folder: for state, logs and notes.
        kills: in their order.
        limit: seconds after which no other master is killed.
    """

    folder: Path
    kills: list[WindowKill]
    limit: float = float("inf")
    outcome: Outcome = field(init=False)

    def run(self) -> Outcome:
        """Kill all, let the data end, and count."""
        begun = time.monotonic()
        self.outcome = Outcome([])
        size = WORKERS * SHARD + RECORDS_PER_KILL * len(self.kills)
        (self.folder / "size").write_text(str(size))
        with _Running(self.folder, self.kills) as job:
            for kill in self.kills:
                self._strike(job, kill)
                self.outcome.kills.append(kill)
                is_last = time.monotonic() - begun > self.limit
                job.start_master(spare=is_last)
                if is_last:
                    break
            (self.folder / "hurry").touch()
            job.wait(lambda: job.master.poll() is not None, PATIENCE, "the job ends")
        assert job.master.returncode == 0, "the job has failed"
        trained = Counter(note.record for notes in self.folder.glob("notes-*") for note in read_notes(notes))
        assert max(trained) < size
        self.outcome.lost = size - len(trained)
        self.outcome.repeated = trained.total() - len(trained)
        self.outcome.seconds = time.monotonic() - begun
        return self.outcome

    def _strike(self, job: "_Running", kill: WindowKill) -> None:
        """Wait for the master's death, and kill the worker with it."""
        if kill.worker is not None and kill.worker_first:
            job.wait_for_calls(kill.seconds)
            killed = self._kill_worker(job, kill.worker)
            job.master.kill()
        code = job.master.wait(PATIENCE)
        assert code == -signal.SIGKILL, f"the master ended with {code} before it was killed at {kill.point}"
        if kill.worker is None:
            return
        if not kill.worker_first:
            killed = self._kill_worker(job, kill.worker)
        job.pods.start(names.WORKER_TYPE, kill.worker, kill.worker)
        if killed is not None:
            self._count_unstored(killed)

    def _kill_worker(self, job: "_Running", rank: int) -> Path | None:
        """Kill an agent with its training process. Returns the notes of that process, if it had begun."""
        node = f"{names.WORKER_TYPE}-{rank}"
        job.pods.kill(node)
        notes = sorted(self.folder.glob(f"notes-{node}-*"), key=lambda path: path.stat().st_mtime)
        if not notes:
            return None
        process = int(notes[-1].name.rpartition("-")[2])
        deadline = time.monotonic() + PATIENCE
        while _is_alive(process):
            assert time.monotonic() < deadline, f"process {process} outlives its agent"
            time.sleep(0.005)
        return notes[-1]

    def _count_unstored(self, notes: Path) -> None:
        """Add the records of a killed process that the last snapshot does not have."""
        stored = StoredState.from_json((self.folder / "state" / "state.json").read_bytes())
        positions = [
            dataset.position for dataset in stored.shards.snapshot().datasets if dataset.params.name == DATA
        ]
        shards = stored_shards(positions[0] if positions else DatasetPosition())
        trained = list(read_notes(notes))
        unstored = [note for note in trained if note.record // SHARD not in shards]
        self.outcome.unstored += len(unstored)
        if unstored:
            self.outcome.oldest = max(self.outcome.oldest, notes.stat().st_mtime - unstored[0].time)


class _Running(Standalone):
    """The job's processes.

    Args:
        folder: of the job.
        kills: each master's death, in order.
    """

    def __init__(self, folder: Path, kills: list[WindowKill]) -> None:
        self._deaths: Iterator[WindowKill] = iter(kills)
        program = [sys.executable, "-m", "tests.e2e.window_worker", str(folder)]
        super().__init__(folder, str(WORKERS), program, IDS)

    def __enter__(self) -> Self:
        for rank in range(WORKERS):
            self.pods.start(names.WORKER_TYPE, rank, rank)
            self._started.add(f"{names.WORKER_TYPE}-{rank}")
        super().__enter__()
        return self

    def start_master(self, *, spare: bool = False) -> None:
        """The next master, in place of one that is dead.

        Args:
            spare: whether it and those after it are not killed.
        """
        if spare:
            self._deaths = iter(())
        self.master = self._start_master()

    def wait_for_calls(self, seconds: float) -> None:
        """Wait until a worker has trained anew, and then for so long."""
        begun, deadline = time.time(), time.monotonic() + PATIENCE
        while not any(path.stat().st_mtime > begun for path in self.folder.glob("notes-*")):
            assert time.monotonic() < deadline, "no worker trains"
            time.sleep(0.02)
        time.sleep(seconds)

    def _start_master(self) -> subprocess.Popen[bytes]:
        death = next(self._deaths, WindowKill(Point.NEVER, 0.0))
        point = Point.NEVER if death.worker_first else death.point
        words = [str(self.folder / "state"), str(self._port), self._nodes, point, str(death.seconds)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.window_master", *words],
            env={**self.pods.env, names.ENV_JOB_TOKEN: TOKEN},
            stdout=self._log,
            stderr=self._log,
        )


def read_notes(path: Path) -> Iterator[Note]:
    """What a process has noted."""
    for line in path.read_text().splitlines():
        at, *records = line.split()
        for record in records:
            yield Note(float(at), int(record))


def stored_shards(position: DatasetPosition) -> set[int]:
    """Numbers of the shards that are done."""
    done: set[int] = set()
    for sequence in position.sequences:
        done |= set(range(sequence.cursor)) - set(numbers_of(sequence.outstanding))
        done |= set(numbers_of(sequence.ahead))
    return done


def _is_alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def main() -> None:
    """Kill, and print what became of the records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="kill no other master then")
    parser.add_argument("--alone", action="store_true", help="no worker dies")
    options = parser.parse_args()
    together = 0 if options.alone else TOGETHER
    kills = [draw(options.seed, number, together) for number in range(1, options.kills + 1)]
    with tempfile.TemporaryDirectory(prefix="window-kills-") as name:
        outcome = WindowJob(Path(name), kills, 60 * options.minutes).run()
    print(f"seed {options.seed}: {outcome}")
    sys.exit(bool(outcome.lost or outcome.repeated > outcome.unstored))


if __name__ == "__main__":
    main()
