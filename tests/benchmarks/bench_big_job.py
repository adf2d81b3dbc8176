"""One big job: 1,024 simulated agents against a real master, with the real controller.

    python -m tests.benchmarks.bench_big_job [--members 1024] [--seconds 60]

1. All agents register at once, and the first cluster version is formed.
2. They train. In a step of 5 s each member finishes a shard and reports the step, and twice that it is there,
   as the library does every 2 s; it sends a heartbeat every 5 s, and polls its directive.
3. 30 % die at once, each with an error text of 1 MB.
4. The master is killed with SIGKILL and started again; all register at once.
5. The data ends, and with it the job.

The master's goals are in its CPU time, which other programs on the machine change little; times until
something is reached include the agents' and the API server's work, which has the same processors.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.datasets import DatasetParams
from edl_workflows.runtime.process.connections import raise_descriptor_limit
from edl_workflows.testing import ApiServerProcess, api_server
from tests.benchmarks.big_job_agents import DATASET, Fleet, MasterConnection, SimulatedAgent, until_answered
from tests.benchmarks.big_job_cluster import (
    TOKEN,
    Kubelet,
    MasterProcess,
    Place,
    create_job,
    job_phase,
    running_controller,
    state_size,
    status_size,
)

SHARD = 100
"""Records."""
TEXT = (
    "Traceback (most recent call last):\n"
    + "  some line of a program's output\n" * 30_000
    + "ValueError: bad\n"
)
"""What a process that dies has written: a megabyte."""
CODE = 1
LOST = 0.3
PATIENCE = 600.0
MIB = 2.0**20


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        most: what it may be; None: it has no goal.
        counted: whether it is a count, which does not depend on the machine's speed.
    """

    name: str
    number: float
    most: float | None = None
    counted: bool = False

    @property
    def met(self) -> bool:
        return self.most is None or self.number <= self.most

    def __str__(self) -> str:
        goal = "" if self.most is None else f"  (≤ {self.most:g}){'' if self.met else '  MISSED'}"
        return f"  {self.name:68} {self.number:10.2f}{goal}"


@dataclass
class BigJob:
    """One run.

    Attributes:
        server: the API server.
        members: how many.
        seconds: of the steady phase.
        figures: what was measured so far.
    """

    server: ApiServerProcess
    members: int
    seconds: float
    figures: list[Figure] = field(default_factory=list)

    async def run(self) -> Self:
        """All phases."""
        self._loop = asyncio.get_running_loop()
        self._cluster = self.server.cluster()
        self._master = MasterProcess(self.server)
        self._fleet = Fleet(self._master.port, TOKEN)
        self._agents: dict[int, SimulatedAgent] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._waiting: list[Place] = []
        self._may_start = False
        await asyncio.to_thread(create_job, self._cluster, self.members)
        self._kubelet = Kubelet(self._cluster, self._pod_runs)
        try:
            self._master.start()
            await self._until(lambda: len(self._waiting) == self.members)
            await self._form_first_version()
            await self._train_steadily()
            await self._lose_members()
            await self._replace_master()
            await self._end()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._master.kill()
            await asyncio.to_thread(self._kubelet.stop)
        return self

    async def _form_first_version(self) -> None:
        print("1. all register at once", flush=True)
        begun, cpu = time.monotonic(), self._master.usage[0]
        self._may_start = True
        for place in self._waiting:
            self._start_agent(place)
        await self._until(lambda: len(self._seen(1)) == self.members)
        formed = max(self._seen(1).values()) - begun
        self._note("seconds until all train in the first version", formed, 2.0)
        self._note("the same: the master's CPU seconds", self._master.usage[0] - cpu)
        self._count("ScalePlans for its pods", self._kubelet.created["ScalePlan"], 1)
        params = DatasetParams(name=DATASET, size=self.members * SHARD * 30, shard_size=SHARD, timeout_s=600)
        connection = MasterConnection(self._fleet)
        await until_answered(lambda: connection.call(routes.DATASET, params))

    async def _train_steadily(self) -> None:
        print("2. all train", flush=True)
        await asyncio.sleep(10.0)
        answers, cores, peak = await self._measure(self.seconds)
        self._note("the master's cores", cores, 1.0)
        self._note("its memory, MiB", peak, 512)
        self._note("its answers a second", answers)

    async def _lose_members(self) -> None:
        print(f"3. {LOST:.0%} die at once", flush=True)
        lost = random.Random(1).sample(sorted(self._agents), round(LOST * self.members))
        agents = [self._agents.pop(node) for node in lost]
        before, memory, begun = dict(self._kubelet.created), self._master.usage[1], time.monotonic()
        cpu, known = self._master.usage[0], set(self._fleet.activations)
        for node in lost:
            self._tasks.pop(node).cancel()
        survivors = set(self._agents)
        watch = asyncio.create_task(self._watch_memory())
        await asyncio.gather(*(self._die(agent) for agent in agents))
        self._note("seconds until all deaths are reported", time.monotonic() - begun)
        await self._until(lambda: self._newest > max(known) and self._seen(self._newest).keys() >= survivors)
        self._note(
            "seconds until all survivors train again",
            max(
                min(
                    times[node]
                    for version, times in self._fleet.activations.items()
                    if version not in known and node in times
                )
                for node in survivors
            )
            - begun,
        )
        await self._until(self._is_whole)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
        self._note("seconds until all are replaced and train", time.monotonic() - begun)
        self._note("the same: the master's CPU seconds", self._master.usage[0] - cpu)
        versions = [version for version in self._fleet.activations if version not in known]
        self._note("versions: of the survivors, and with the replacements", len(versions), 2)
        created = self._kubelet.created
        self._note("ScalePlans", created["ScalePlan"] - before["ScalePlan"], 1)
        self._count("pods created, beyond those lost", created["Pod"] - before["Pod"] - len(lost), 0)
        self._note("the master's memory at most, MiB", self._peak / MIB, 512)
        self._note("growth of its memory, MiB", (self._peak - memory) / MIB, 50)
        self._count(
            "the job with its status, KiB", await asyncio.to_thread(status_size, self._cluster) / 1024, 64
        )
        self._count("the stored state, KiB", await asyncio.to_thread(state_size, self._cluster) / 1024, 1800)

    async def _die(self, agent: SimulatedAgent) -> None:
        await agent.die(TEXT, CODE)
        self._kubelet.end_worker(agent.ref.id, CODE, TEXT)

    async def _replace_master(self) -> None:
        print("4. the master is killed", flush=True)
        await asyncio.sleep(self._fleet.step_seconds)
        created, newest = dict(self._kubelet.created), self._newest
        self._master.kill()
        await self._until(lambda: not any(agent.registered for agent in self._agents.values()))
        begun = time.monotonic()
        self._master.start()
        connection = MasterConnection(self._fleet)
        await until_answered(lambda: connection.send("GET", routes.HEALTH.path, b""))
        answers = time.monotonic()
        self._note("seconds until the new master answers", answers - begun)
        await self._until(lambda: all(agent.registered for agent in self._agents.values()))
        self._note("from then until all are registered again", time.monotonic() - answers, 5.0)
        trained = self._fleet.trained.total()
        await self._until(lambda: self._fleet.trained.total() >= trained + 2 * self.members)
        self._note("from then until each member has finished two shards", time.monotonic() - answers)
        self._count("versions", self._newest - newest, 0)
        self._count("ScalePlans and pods", sum(self._kubelet.created.values()) - sum(created.values()), 0)
        _, cores, peak = await self._measure(10.0)
        self._note("the new master's cores", cores, 1.0)
        self._note("its memory, MiB", peak, 512)

    async def _end(self) -> None:
        print("5. the data ends", flush=True)
        self._fleet.shards_per_step = 4
        begun = time.monotonic()
        await self._until(lambda: self._fleet.trained.total() >= self.members * 30)
        ended = time.monotonic()
        await self._until(lambda: all(agent.code is not None for agent in self._agents.values()))
        self._note("seconds until the data was trained", ended - begun)
        self._note("from then until all members have ended", time.monotonic() - ended)
        for node in self._agents:
            self._kubelet.end_worker(node, 0)
        await self._until(lambda: self._master.exit_code is not None)
        self._count("the master's exit code", float(self._master.exit_code or 0), 0)
        self._kubelet.end_master(self._master.exit_code or 0)
        await self._until(lambda: job_phase(self._cluster) == "Succeeded")
        times = self._fleet.trained
        self._count("records lost", self.members * 30 - len(times), 0)
        self._count("shards trained twice", times.total() - len(times), round(LOST * self.members) * 2)

    def _pod_runs(self, place: Place) -> None:
        self._loop.call_soon_threadsafe(self._welcome, place)

    def _welcome(self, place: Place) -> None:
        if self._may_start:
            self._start_agent(place)
        else:
            self._waiting.append(place)

    def _start_agent(self, place: Place) -> None:
        agent = self._agents[place.node] = SimulatedAgent(self._fleet, place.node, place.rank)
        self._tasks[place.node] = asyncio.create_task(agent.run())

    @property
    def _newest(self) -> int:
        return max(self._fleet.activations, default=0)

    def _seen(self, version: int) -> dict[int, float]:
        return self._fleet.activations.get(version, {})

    def _is_whole(self) -> bool:
        """Whether as many members as wanted have seen a version of all."""
        newest = next(iter(self._agents.values())).directive.active
        whole = newest is not None and len(newest.workers) == self.members
        return whole and newest is not None and self._seen(newest.version).keys() >= set(self._agents)

    async def _measure(self, seconds: float) -> tuple[float, float, float]:
        """Answers a second, cores, and most memory in MiB, for so many seconds."""
        (cpu, _), answers, begun = self._master.usage, self._fleet.answers, time.monotonic()
        watch = asyncio.create_task(self._watch_memory())
        await asyncio.sleep(seconds)
        watch.cancel()
        took = time.monotonic() - begun
        cores = (self._master.usage[0] - cpu) / took
        return (self._fleet.answers - answers) / took, cores, self._peak / MIB

    async def _watch_memory(self) -> None:
        self._peak = 0
        while True:
            self._peak = max(self._peak, self._master.usage[1])
            await asyncio.sleep(0.05)

    async def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for task in self._tasks.values():
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE} s")
            await asyncio.sleep(0.02)

    def _count(self, name: str, number: float, most: float) -> None:
        self._note(name, number, most, counted=True)

    def _note(self, name: str, number: float, most: float | None = None, *, counted: bool = False) -> None:
        self.figures.append(Figure(name, number, most, counted))
        print(self.figures[-1], flush=True)


def main() -> int:
    """Run the command line; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--members", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the steady phase")
    options = parser.parse_args()
    raise_descriptor_limit()
    print(f"load of the machine: {psutil.getloadavg()[0]:.1f}")
    with (
        tempfile.TemporaryDirectory() as folder,
        api_server(Path(folder)) as server,
        running_controller(server),
    ):
        job = asyncio.run(BigJob(server, options.members, options.seconds).run())
    print(f"load of the machine: {psutil.getloadavg()[0]:.1f}")
    return 0 if all(figure.met for figure in job.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
