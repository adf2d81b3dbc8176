"""How long training waits for a checkpoint: in two stages against direct saving, in one run.

``python -m tests.benchmarks.bench_checkpoint [--mib 500] [--turns 5] [--cases arrays,tensorflow] [--json]``

A real master and real agents. (a) arrays: a program without a framework saves a model of so many MiB in turns
directly (written, synced and summed by the training process) and in two stages (a copy in shared memory; the
agent does the rest). (b) tensorflow: the same with the parameter-server adapter and one server, in a process
for each way; what both ways wait for there is the variables' way from the server. What is measured is how
long the loop stands at the step boundary, the master's ticket included; and how long until the checkpoint
stands on storage.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.e2e.standalone import Standalone

GOAL = 0.1
TENSORS = 50
REST_SECONDS = 1.0
"""Of steps between two saves."""
RUN_SECONDS = 1800.0


@dataclass(frozen=True)
class Row:
    """A case: medians over the turns."""

    case: str
    mib: int
    direct_s: float
    direct_cpu_s: float
    copy_s: float
    copy_cpu_s: float
    stored_after_s: float
    ratio: float
    goal: str
    met: bool


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=500)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", default="arrays,tensorflow")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--program", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        way, folder = options.program
        PROGRAMS[way](Path(folder), options.mib, options.turns)
        return
    rows = [CASES[case](options.mib, options.turns) for case in options.cases.split(",")]
    for row in rows:
        print(json.dumps(asdict(row)) if options.json else _in_words(row))
    sys.exit(any(not row.met for row in rows))


def _in_words(row: Row) -> str:
    return (
        f"{row.case:12} {row.mib} MiB: direct {row.direct_s:.2f} s ({row.direct_cpu_s:.2f} s of CPU), two "
        "stages "
        f"{row.copy_s:.3f} s ({row.copy_cpu_s:.3f} s of CPU), stored after {row.stored_after_s:.2f} s, "
        f"ratio {row.ratio:.3f} {row.goal} {'ok' if row.met else 'MISSED' if row.goal else ''}"
    )


def _row(case: str, mib: int, turns: list[dict[str, Any]], *, goal: float | None) -> Row:
    def median(way: str, field: str) -> float:
        return float(statistics.median(turn[field] for turn in turns if turn["way"] == way))

    direct, copy = median("direct", "wall"), median("stages", "wall")
    return Row(
        case=case,
        mib=mib,
        direct_s=round(direct, 3),
        direct_cpu_s=round(median("direct", "cpu"), 3),
        copy_s=round(copy, 4),
        copy_cpu_s=round(median("stages", "cpu"), 4),
        stored_after_s=round(median("stages", "stored"), 2),
        ratio=round(copy / direct, 4),
        goal=f"≤ {goal}" if goal else "",
        met=goal is None or copy / direct <= goal,
    )


def arrays(mib: int, turns: int) -> Row:
    """Part (a)."""
    return _row("arrays", mib, _measured("arrays", "worker=1", mib, turns), goal=GOAL)


def tensorflow(mib: int, turns: int) -> Row:
    """Part (b)."""
    measured = [
        turn
        for way in ("tensorflow-direct", "tensorflow-stages")
        for turn in _measured(way, "ps=1,worker=1", mib, turns)
    ]
    return _row("tensorflow", mib, measured, goal=None)


def _measured(way: str, nodes: str, mib: int, turns: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "tests.benchmarks.bench_checkpoint", "--program", way, name]
        command += ["--mib", str(mib), "--turns", str(turns)]
        with Standalone(folder, nodes, command) as job:
            job.wait(lambda: job.master.poll() is not None, RUN_SECONDS, "the job ends")
        lines = (folder / "measured").read_text().splitlines()
    return [json.loads(line) for line in lines]


class _Notes:
    """What the program has measured, after a first turn that does not count."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "measured"
        self._first = {"direct", "stages"}

    def measure(self, way: str, save: Callable[[], object], stored: Callable[[], object]) -> None:
        """Save once; `stored` returns when the checkpoint stands on storage."""
        wall, cpu = time.perf_counter(), time.process_time()
        save()
        turn = {"way": way, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        stored()
        turn["stored"] = time.perf_counter() - wall
        if way in self._first:
            self._first.remove(way)
            return
        with self._file.open("a") as file:
            file.write(json.dumps(turn) + "\n")


def _stored(folder: Path) -> None:
    """Wait until no copy is left that is not persisted."""
    from edl_workflows.training.checkpoints.snapshots import SnapshotStage
    from edl_workflows.training.environment import open_snapshots

    memory = open_snapshots(os.environ)
    while memory is not None and any(copy.stage is SnapshotStage.MEMORY for copy in memory.whole()):
        time.sleep(0.01)


def _program_of_arrays(folder: Path, mib: int, turns: int) -> None:
    import numpy as np

    from edl_workflows.training import CheckpointStore, connect
    from edl_workflows.training.checkpoints.tensors import State, save
    from edl_workflows.training.checkpoints.two_stages import TwoStages

    job = connect()
    store = CheckpointStore(folder / "checkpoints")
    generator = np.random.default_rng(0)
    model = {
        f"layer-{i}": generator.random(mib * 2**20 // TENSORS // 4, dtype=np.float32) for i in range(TENSORS)
    }
    notes, step = _Notes(folder), 0
    job.wait_until_active()

    def train() -> None:
        nonlocal step
        until = time.monotonic() + REST_SECONDS
        while time.monotonic() < until:
            for layer in model.values():
                np.multiply(layer, np.float32(0.999), out=layer)
            step += 1
            job.report_step(step)

    for _ in range(turns + 1):
        train()
        job.save_with(
            lambda: store.publish(
                step, lambda path: save(path, State.of(step, model)), position=job.data_position
            )
        )
        notes.measure("direct", job.checkpoint, lambda: None)
        train()
        job.save_in_two_stages(TwoStages(lambda: State.of(step, model), store))
        notes.measure("stages", job.checkpoint, lambda: _stored(folder))
    job.close()


def _program_of_tensorflow(folder: Path, mib: int, turns: int, *, async_save: bool) -> None:
    import tensorflow as tf

    from edl_workflows.training import connect
    from edl_workflows.training.frameworks.tensorflow import Model, TrainingOptions, tf1, training

    def build() -> Model:
        size = mib * 2**20 // TENSORS // 4
        layers = [
            tf1.get_variable(f"layer-{i}", (size,), initializer=tf1.random_uniform_initializer())
            for i in range(TENSORS)
        ]
        moved = tf1.assign_add(tf1.train.get_global_step(), 1)
        return Model(train=moved, loss=tf.reduce_mean(next(iter(layers[0]))), inputs={})

    job = connect()
    notes = _Notes(folder)
    settings = TrainingOptions(folder / "checkpoints", None, async_save=async_save)
    with training(job, build, settings) as run:
        for _ in range(turns + 1):
            until = time.monotonic() + REST_SECONDS
            while time.monotonic() < until:
                run.step()
            notes.measure("stages" if async_save else "direct", job.checkpoint, lambda: _stored(folder))


PROGRAMS: dict[str, Callable[[Path, int, int], None]] = {
    "arrays": _program_of_arrays,
    "tensorflow-direct": lambda *a: _program_of_tensorflow(*a, async_save=False),
    "tensorflow-stages": lambda *a: _program_of_tensorflow(*a, async_save=True),
}
CASES: dict[str, Callable[[int, int], Row]] = {"arrays": arrays, "tensorflow": tensorflow}


if __name__ == "__main__":
    main()
