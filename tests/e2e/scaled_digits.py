"""The example's training program under loads that a test sets: for jobs whose size changes while they
train."""

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, str(Path(__file__).parents[2] / "dags" / "training"))

import digits  # type: ignore[import-not-found]  # of the example
import train_digits  # type: ignore[import-not-found]  # of the example

from edl_workflows.training import connect
from edl_workflows.training.frameworks.tensorflow import TrainingOptions, training

THROTTLE = """
import os, signal, sys, time
pid, share = int(sys.argv[1]), float(sys.argv[2])

def used():
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

began, before = time.monotonic(), used()
while os.getppid() == pid:
    time.sleep(0.02)
    over = used() - before - share * (time.monotonic() - began)
    if over > 0:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(over / share)
        os.kill(pid, signal.SIGCONT)
        began, before = time.monotonic(), used()
"""
"""What a kernel does to a container that wants more than its CPU limit; the embedded cluster leaves CPU
alone."""


def main() -> None:
    """Train until the data is consumed, or until there is a file ``over`` in the folder."""
    options = _options()
    job = connect()
    if job.node.type == "ps":
        if job.rank == 0 and options.load:
            _throttle()
            threading.Thread(target=_burn, args=(options.load,), daemon=True).start()
    else:
        ballast = os.urandom(2**20) * options.ballast
        assert len(ballast) == options.ballast * 2**20
    data, _ = digits.load()
    settings = TrainingOptions(options.folder / "checkpoints", save_seconds=10.0, threads=1)
    with training(job, train_digits.build, settings) as run:
        for batch in job.batches(
            "train", size=len(data), shard_size=64, batch_size=32, num_epochs=options.epochs,
            splitter="text", shuffle=True,
        ):  # fmt: skip
            if not (options.folder / "over").exists():
                time.sleep(options.wait)
                with _alone(options.folder / "lock"):
                    time.sleep(options.shared)
            run.step(images=data.images[batch.indices], labels=data.labels[batch.indices])


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _throttle() -> None:
    share = int(os.environ["CPU_LIMIT_MILLICORES"]) / 1000
    if share < 1:
        subprocess.Popen([sys.executable, "-c", THROTTLE, str(os.getpid()), str(share)])


def _burn(cores: float) -> None:
    """Wants so many cores; what a limit takes away is not made up for."""
    began, used = time.monotonic(), time.thread_time()
    while True:
        if time.monotonic() - began > 1.0:
            began, used = time.monotonic(), time.thread_time()
        if time.thread_time() - used > cores * (time.monotonic() - began):
            time.sleep(0.005)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds for which each step waits for its input"
    )
    parser.add_argument(
        "--shared", type=float, default=0.0, help="seconds of a step that one worker has at a time"
    )
    parser.add_argument("--ballast", type=int, default=0, help="MiB that a worker holds beside TensorFlow")
    parser.add_argument(
        "--load", type=float, default=0.0, help="cores that the first server wants beside its work"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
