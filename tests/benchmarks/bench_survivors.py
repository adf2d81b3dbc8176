"""How long training stands still when a member is killed: ours, whose survivors keep their processes, against
torchrun, which restarts all.

    python -m tests.benchmarks.bench_survivors [--kills 100] [--peer-kills 3] [--seed 1]

Three members on this machine, each of ours with its agent, and the job's master; all are real processes. The
kills are SIGKILLs to training processes, at random moments; the next one follows when a replacement trains.
"""

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

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
SECONDS = 600.0
"""Longest wait for three members that train; beyond it, the job hangs."""


@dataclass
class Kills:
    """The kills of a run.

    Attributes:
        times: Unix seconds of each.
        processes: that were killed.
        hangs: how often training did not go on within `SECONDS`; the run ends with the first.
    """

    times: list[float] = field(default_factory=list)
    processes: set[int] = field(default_factory=set)
    hangs: int = 0


@dataclass
class Pauses:
    """How long members stood still: seconds from the last step before an event to the end of the first step
    after it, less the rest between two steps.

    Attributes:
        kills: of each survivor of a kill.
        joins: of each member that a newcomer joined.
        steps: of all other steps.
    """

    kills: list[float] = field(default_factory=list)
    joins: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


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


def measure_pauses(turns: Turns, kills: Kills) -> Pauses:
    """From what the members noted."""
    pauses = Pauses()
    for process in turns.processes():
        made = [turn for turn in turns.of(process) if turn[3]]
        for before, after in pairwise(made):
            if any(before[0] < at < after[0] for at in kills.times):
                kind = pauses.kills
            else:
                kind = pauses.joins if after[2] > before[2] else pauses.steps
            kind.append(after[0] - before[0] - before[6])
    return pauses


def lost_steps(turns: Turns) -> int:
    """How often a member made a step that it had made before."""
    made = [[turn[4] for turn in turns.of(process) if turn[3]] for process in turns.processes()]
    return sum(after <= before for steps in made for before, after in pairwise(steps))


def percentiles(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum."""
    if len(seconds) < 2:
        return "too few to say"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {cuts[49]:6.3f} s   p99 {cuts[98]:6.3f} s   max {max(seconds):6.3f} s   of {len(seconds)}"


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


def describe_load() -> str:
    """How busy the machine is."""
    one, five, fifteen = os.getloadavg()
    return f"{os.cpu_count()} cores, load average {one:.1f} {five:.1f} {fifteen:.1f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of ours (default %(default)s)")
    parser.add_argument("--peer-kills", type=int, default=3, help="of torchrun's (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        measure_ours(Path(name), options.kills, options.seed)
    with tempfile.TemporaryDirectory() as name:
        gaps = measure_torchrun(Path(name), options.peer_kills, WORKERS)
    print(f"torchrun, a checkpoint each step: {len(gaps)} of {options.peer_kills} kills survived")
    print(f"  all stand still         {', '.join(f'{gap:.1f} s' for gap in gaps)}   {describe_load()}")


if __name__ == "__main__":
    main()
