"""How long training stands still when a member is killed, and what is lost: ours and TorchFT, whose survivors
keep their processes, and torchrun, which restarts all.

    python -m tests.benchmarks.bench_survivors [--kills 100] [--peer-kills 3] [--seed 1]

Three members on this machine, each of ours with its agent, and the job's master; all are real processes. The
kills are SIGKILLs to training processes, at random moments; the next one follows when a replacement trains.
TorchFT's first run builds an environment of 5 GB in the user's cache.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.benchmarks.pauses import Kills, describe_load, lost_steps, measure_pauses, percentiles
from tests.benchmarks.peers.torchft_replicas import describe_versions, measure_torchft
from tests.benchmarks.peers.torchrun_restarts import measure_torchrun
from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.turns import STEPS_PER_EPOCH, Turns, command, undisturbed

WORKERS = 3
EPOCHS = 0
"""Without end: training ends after the last kill."""
AHEAD = 200
"""Steps between the newest one that the master knows of and the last one, which all members must learn in
time."""
STEP_DELAY = "0.1"
"""Seconds of rest between two steps while a replacement starts, so that it has a processor. There is no rest
when members are killed."""
HEARTBEATS = (5_000, 1_000)
"""Milliseconds after which TorchFT's lighthouse takes a silent member for dead: default, and short."""
SECONDS = 600.0
"""Longest wait for three members that train; beyond it, the job hangs."""


def kill_members(job: CollectiveStandalone, count: int, source: random.Random) -> Kills:
    """Kill members, each when all train; stops at a hang, and if the job ends."""
    turns, kills, hurry = Turns(job.folder), Kills(), job.folder / "hurry"
    version = 0
    while wait_until(job, partial(job.trains, version)):
        if len(kills.times) == count:
            return kills
        hurry.touch()
        time.sleep(source.uniform(0.2, 1.0))
        version = job.version
        victim = max(turns.processes(source.choice(job.members())), key=turns.began)
        kills.times.append(time.time())
        kills.processes.add(victim)
        os.kill(victim, signal.SIGKILL)
        print(f"{time.strftime('%H:%M:%S')} kill {len(kills.times)} of {count}", flush=True)
        if not wait_until(job, partial(job.goes_on, version)):
            break
        hurry.unlink()
    kills.hangs += 1
    return kills


def wait_until(job: CollectiveStandalone, condition: Callable[[], bool]) -> bool:
    """Whether a condition holds before the job ends, and in time."""
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end or job.master.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def finish(job: CollectiveStandalone) -> int:
    """Have the members train to the end of an epoch and stop; returns the epochs.

    Raises:
        AssertionError: the job does not end well.
    """
    epochs = (job.step() + AHEAD) // STEPS_PER_EPOCH + 1
    (job.folder / "new").write_text(str(epochs * STEPS_PER_EPOCH))
    (job.folder / "new").rename(job.folder / "last")
    (job.folder / "hurry").touch()
    job.wait(lambda: job.master.poll() is not None, SECONDS, "the job ends")
    return epochs


def measure_ours(folder: Path, count: int, seed: int) -> None:
    """Kill members of a job, and print what became of the others."""
    program = command(folder, EPOCHS, "--step-delay", STEP_DELAY)
    with CollectiveStandalone(folder, WORKERS, program, ids=count + 4 * WORKERS) as job:
        kills = kill_members(job, count, random.Random(seed))
        epochs = 0 if kills.hangs else finish(job)
    turns = Turns(folder)
    pauses = measure_pauses(turns, kills)
    others = [process for process in turns.processes() if process not in kills.processes]
    crashed = sum(not turns.reached_end(process) for process in others)
    print(f"edl_workflows: {len(kills.times)} kills, {WORKERS} members, {describe_load()}")
    print(f"  a step otherwise        {percentiles(pauses.steps)}")
    print(f"  survivors stand still   {percentiles(pauses.kills)}")
    print(f"  a newcomer joins        {percentiles(pauses.joins)}")
    print(f"  hangs {kills.hangs}, crashed survivors {crashed}, steps lost {lost_steps(turns)}")
    if epochs:
        print_losses(folder, turns, epochs)


def print_losses(folder: Path, turns: Turns, epochs: int) -> None:
    """Compare with a training that nobody disturbs."""
    wrong = max(sum(count != epochs for count in counts) for counts in turns.seen())
    expected, losses = undisturbed(folder, epochs), turns.losses()
    missing = len(expected.keys() ^ losses.keys())
    worst = max(abs(losses[step] - expected[step]) for step in expected.keys() & losses.keys())
    print(f"  records not trained exactly once in each of {epochs} epochs: {wrong}")
    print(f"  losses of {len(losses)} steps, {missing} missing, at most {worst:.1e} from undisturbed ones")


def print_torchft(count: int, heartbeat: int, seed: int) -> None:
    """Kill members of TorchFT's training, and print the same of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = measure_torchft(folder, count, WORKERS, heartbeat, seed)
        turns, kills = Turns(folder), run.kills
        pauses = measure_pauses(turns, kills)
        print(f"TorchFT, heartbeat time-out {heartbeat} ms: {len(kills.times)} kills, {describe_load()}")
        print(f"  a step otherwise        {percentiles(pauses.steps)}")
        print(f"  survivors stand still   {percentiles(pauses.kills)}")
        print(f"  a newcomer joins        {percentiles(pauses.joins)}")
        print(f"  hangs {kills.hangs}, crashed survivors {run.crashed}, steps lost {lost_steps(turns)}")
        if not run.epochs:
            log = (folder / "log").read_text(errors="replace").splitlines()
            print(f"  it did not train to the end; its last lines: {log[-3:]}")
            return
        counts = [round(count) for count in turns.seen()[0][: run.records]]
        wrong = [run.epochs - count for count in counts if count != run.epochs]
        missing, more = sum(one for one in wrong if one > 0), -sum(one for one in wrong if one < 0)
        print(f"  records not trained exactly once in each of {run.epochs} epochs: {len(wrong)}")
        print(f"  trainings of {run.records} records: {missing} are missing, {more} are too many")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of ours (default %(default)s)")
    parser.add_argument("--peer-kills", type=int, default=3, help="of each peer's (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        measure_ours(Path(name), options.kills, options.seed)
    print(describe_versions())
    for heartbeat in HEARTBEATS:
        print_torchft(options.peer_kills, heartbeat, options.seed)
    with tempfile.TemporaryDirectory() as name:
        gaps = measure_torchrun(Path(name), options.peer_kills, WORKERS)
    print(f"torchrun, a checkpoint each step: {len(gaps)} of {options.peer_kills} kills survived")
    print(f"  all stand still         {', '.join(f'{gap:.1f} s' for gap in gaps)}   {describe_load()}")


if __name__ == "__main__":
    main()
