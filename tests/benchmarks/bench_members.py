"""How long the survivors of a collective job of PyTorch stand still when a member is killed, by the number of
members: 3, 8, 32 and 128 on this machine.

    python -m tests.benchmarks.bench_members [--members 3 8 32 128] [--kills 20] [--seed 1]

Members and agents are real processes that share one import of PyTorch (`tests.benchmarks.many_members`).
They meet over Gloo, and the job has its real master. The kills are SIGKILLs to training processes, at random
moments. When an eighth of the members is gone, replacements join before the next one dies. All processes
have the same cores, so a pause contains the computing of all members: that time is printed, too.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from tests.benchmarks.bench_survivors import wait_until
from tests.benchmarks.pauses import Kills, describe_load, lost_steps, measure_pauses, percentiles
from tests.e2e.collective_standalone import CollectiveStandalone
from tests.e2e.pods import Pods
from tests.e2e.standalone import TOKEN
from tests.e2e.turns import Turns, torch_python

STEADY_SECONDS = 10.0
DELAY = 0.02
GONE = 4
"""Replacements join when one member in so many is gone."""
SPARES = 2
"""Training processes that a node may need."""


class ForkedPods(Pods):
    """Agents that are forks of one process with PyTorch.

    Args:
        folder, master, token, command, ids: of `Pods`.
    """

    def __init__(self, folder: Path, master: str, token: str, command: list[str], ids: int) -> None:
        super().__init__(folder, master, token, command, ids)
        self.nodes: dict[str, int] = {}
        """Process of each agent, by node."""
        self.may_start = threading.Event()
        """Whether nodes start now; else they wait."""
        self.may_start.set()
        self._closing = False
        self._errors: IO[bytes] = (folder / "members.log").open("ab")
        self._parent = subprocess.Popen(
            [str(torch_python()), "-m", "tests.benchmarks.many_members", str(folder)],
            env={**self.env, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._read() == "ready"

    def start(self, kind: str, node_id: int, rank: int) -> None:
        """Start a node's agent, as soon as nodes may start."""
        self.may_start.wait()
        if self._closing:
            return
        node, added = f"{kind}-{node_id}", self.environment(kind, node_id, rank)
        order = {"env": added, "log": str(self.folder / f"{node}.log"), "spares": SPARES}
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        self.nodes[node] = int(self._read())

    def stop_starting(self) -> None:
        """Start no other nodes, not even those that wait for it."""
        self._closing = True
        self.may_start.set()

    def logs(self) -> str:
        """The end of what the newest nodes have written."""
        return "\n".join(f"== {node}\n{self.log(node)[-2000:]}" for node in list(self.nodes)[-3:])

    def close(self) -> None:
        """End all that runs: the agents end with their parent, and the members with their agents."""
        self._parent.kill()
        self._parent.wait(10)
        for pipe in (self._parent.stdin, self._parent.stdout):
            assert pipe is not None
            pipe.close()
        self._errors.close()
        super().close()

    def _read(self) -> str:
        assert self._parent.stdout is not None
        return str(self._parent.stdout.readline()).strip()


class ManyMembers(CollectiveStandalone):
    """A job whose members share one import."""

    pods: ForkedPods

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pods.stop_starting()
        super().__exit__(kind, error, trace)

    def _make_pods(self, master: str, command: list[str], ids: int) -> ForkedPods:
        return ForkedPods(self.folder, master, TOKEN, command, ids)


@dataclass
class Cpu:
    """CPU seconds of a job's processes, by process.

    Attributes:
        master, agents, members: those of each kind.
    """

    master: dict[int, float] = field(default_factory=dict)
    agents: dict[int, float] = field(default_factory=dict)
    members: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, job: ManyMembers) -> Self:
        """So far, of those that run."""
        members = Turns(job.folder).processes()
        return cls(_seconds([job.master.pid]), _seconds(list(job.pods.nodes.values())), _seconds(members))

    def since(self, before: "Cpu") -> "Cpu":
        """What was used in between, by processes that ran before and after."""
        return Cpu(
            _used(before.master, self.master),
            _used(before.agents, self.agents),
            _used(before.members, self.members),
        )

    @property
    def all(self) -> float:
        """Of all processes."""
        return sum(sum(kind.values()) for kind in (self.master, self.agents, self.members))


def _used(before: dict[int, float], after: dict[int, float]) -> dict[int, float]:
    return {process: after[process] - before[process] for process in after.keys() & before.keys()}


def _seconds(processes: Iterable[int]) -> dict[int, float]:
    seconds = {}
    for number in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(number).cpu_times()
            seconds[number] = times.user + times.system
    return seconds


def _mean(seconds: dict[int, float]) -> float:
    return statistics.fmean(seconds.values()) if seconds else 0.0


@dataclass
class Run:
    """What was measured.

    Attributes:
        members: how many.
        kills: of members.
        spent: CPU used from a kill until the survivors' first step is known, for each.
        steady: CPU used while all train.
        steps: that were made in that time.
    """

    members: int
    kills: Kills = field(default_factory=Kills)
    spent: list[Cpu] = field(default_factory=list)
    steady: Cpu = field(default_factory=Cpu)
    steps: int = 0

    def describe(self, folder: Path) -> None:
        """Print it."""
        turns = Turns(folder)
        pauses, cores = measure_pauses(turns, self.kills), os.cpu_count() or 1
        print(f"{self.members} members: {len(self.kills.times)} kills, {describe_load()}")
        print(f"  a step otherwise        {percentiles(pauses.steps)}")
        print(f"  survivors stand still   {percentiles(pauses.kills)}")
        print(f"  a newcomer joins        {percentiles(pauses.joins)}")
        if self.spent:
            spent = statistics.median(cpu.all for cpu in self.spent)
            master = statistics.median(_mean(cpu.master) for cpu in self.spent)
            member = statistics.median(_mean(cpu.members) for cpu in self.spent)
            agent = statistics.median(_mean(cpu.agents) for cpu in self.spent)
            print(
                f"  CPU of a kill, median   {spent:.2f} s, on {cores} cores {spent / cores:.2f} s; "
                f"master {master:.3f} s, a member {member:.4f} s, its agent {agent:.4f} s"
            )
        if self.steps:
            per_step = [
                1000 * _mean(kind) / self.steps
                for kind in (self.steady.members, self.steady.agents, self.steady.master)
            ]
            print(
                f"  CPU of a step           a member {per_step[0]:.2f} ms, its agent {per_step[1]:.3f} ms, "
                f"the master {per_step[2]:.2f} ms; {self.steps} steps"
            )
        print(f"  hangs {self.kills.hangs}, steps lost {lost_steps(turns)}", flush=True)


def measure(folder: Path, members: int, count: int, delay: float, source: random.Random) -> Run:
    """Kill members of a job, each when all train; stops at a hang."""
    (folder / "delay").write_text(str(delay))
    run, hurry = Run(members), folder / "hurry"
    ids = members + count + 8
    with ManyMembers(folder, members, ["member"], ids=ids, most=members) as job:
        if not wait_until(job, job.trains):
            raise AssertionError(f"the {members} members don't train: {job.pods.logs()}")
        job.pods.may_start.clear()
        before, step = Cpu.of(job), job.step()
        time.sleep(STEADY_SECONDS)
        run.steady, run.steps = Cpu.of(job).since(before), job.step() - step
        for number in itertools.count(1):
            if len(run.kills.times) == count:
                return run
            hurry.touch()
            time.sleep(source.uniform(0.2, 1.0) + delay)
            if not kill_member(job, run, source):
                break
            print(f"{time.strftime('%H:%M:%S')} kill {number} of {count}", flush=True)
            if number % max(1, members // GONE) == 0 and number < count:
                hurry.unlink()
                job.pods.may_start.set()
                if not wait_until(job, partial(job.trains, job.version)):
                    break
                job.pods.may_start.clear()
    run.kills.hangs += 1
    return run


def kill_member(job: ManyMembers, run: Run, source: random.Random) -> bool:
    """Kill a member; returns whether the others go on."""
    turns, version = Turns(job.folder), job.version
    victim = max(turns.processes(source.choice(job.members())), key=turns.began)
    before = Cpu.of(job)
    run.kills.times.append(time.time())
    run.kills.processes.add(victim)
    os.kill(victim, signal.SIGKILL)
    if not wait_until(job, partial(job.goes_on, version)):
        return False
    run.spent.append(Cpu.of(job).since(before))
    return True


def main() -> None:
    """Print a table for each number of members."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="+", default=[3, 8, 32, 128])
    parser.add_argument("--kills", type=int, default=20, help="for each (default %(default)s)")
    parser.add_argument(
        "--delay",
        type=float,
        default=DELAY,
        help="seconds of rest after a step, for each member, so that a newcomer has a processor; there is no "
        "rest when members are killed (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    options = parser.parse_args()
    for members in options.members:
        with tempfile.TemporaryDirectory() as name:
            source = random.Random(options.seed)
            delay = options.delay * members
            measure(Path(name), members, options.kills, delay, source).describe(Path(name))


if __name__ == "__main__":
    main()
