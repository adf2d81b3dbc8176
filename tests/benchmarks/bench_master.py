"""What a job's master needs: CPU and memory of its process with many agents, each as the protocol paces it.

Each agent sends a heartbeat every 5 s, polls its directive, and reports a step every 5 s; each leases and
acknowledges shards. The master runs without a cluster; one in a cluster has the Kubernetes client besides,
which adds about 45 MiB.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import psutil

from edl_workflows.core.kubernetes import names
from tests.e2e.pods import free_ports

TOKEN = "bench-token"
PACE = 5.0
WARM_UP = 10.0
TOGETHER = 20
"""Agents that register at a time."""


class Agents:
    """The agents of a job.

    Args:
        http: to the master.
        count: how many.
    """

    def __init__(self, http: httpx.AsyncClient, count: int) -> None:
        self._http = http
        self._count = count
        self.answers = 0

    async def register(self) -> None:
        """All of them, and the data set."""
        for first in range(0, self._count, TOGETHER):
            some = range(first, min(first + TOGETHER, self._count))
            await asyncio.gather(
                *(self._post("nodes", rank=i, incarnation=f"i{i}", **_node(i)) for i in some)
            )
        await self._post("datasets", name="train", size=10**8, shard_size=1000)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What they all do, for ever."""
        each = (self._beat, self._poll, self._train)
        return [loop(number) for number in range(self._count) for loop in each]

    async def _post(self, call: str, **body: Any) -> Any:
        answer = (await self._http.post(f"/v1/{call}", json=body)).raise_for_status().json()
        self.answers += 1
        return answer

    async def _beat(self, number: int) -> None:
        while True:
            await self._post("nodes/heartbeat", incarnation=f"i{number}", **_node(number))
            await asyncio.sleep(PACE)

    async def _poll(self, number: int) -> None:
        revision = 0
        while True:
            asked: dict[str, str | int] = {"type": "worker", "id": number, "after": revision, "wait": 25}
            answer = await self._http.get("/v1/directive", params=asked)
            revision = answer.json().get("revision", revision)
            self.answers += 1

    async def _train(self, number: int) -> None:
        begun, step = time.time(), 0
        while True:
            step += 10
            at = {"time": time.time(), "first_step_time": begun}
            await self._post("steps", version=1, step=step, loss=0.1, **at, **_node(number))
            leased = await self._post("datasets/train/lease", version=1, max_shards=4, **_node(number))
            await asyncio.sleep(PACE)
            done = [
                {k: shard[k] for k in ("epoch", "ordinal", "lease")} for shard in leased.get("shards", [])
            ]
            await self._post("datasets/train/ack", done=done, **_node(number))


def _node(number: int) -> dict[str, Any]:
    return {"node": {"type": "worker", "id": number}}


async def measure(port: int, process: psutil.Process, agents: int, seconds: float) -> str:
    """One row: peak memory, and CPU a second."""
    limits = httpx.Limits(max_connections=4 * agents, max_keepalive_connections=4 * agents)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=60, limits=limits, trust_env=False
    ) as http:
        await _until(lambda: http.get("/healthz"))
        fleet = Agents(http, agents)
        await fleet.register()
        tasks = [asyncio.create_task(loop) for loop in fleet.loops()]
        await asyncio.sleep(WARM_UP)
        before, begun, peak, answers = process.cpu_times(), time.monotonic(), 0, fleet.answers
        while time.monotonic() - begun < seconds:
            peak = max(peak, process.memory_info().rss)
            await asyncio.sleep(0.5)
        after, took = process.cpu_times(), time.monotonic() - begun
        answers = fleet.answers - answers
        failed = [task.exception() for task in tasks if task.done()]
        assert not failed, failed[0]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    cores = (after.user + after.system - before.user - before.system) / took
    return f"{agents:>6} agents: {peak / 2**20:.0f} MiB, {cores:.3f} cores, {answers / took:.0f} answers/s"


async def _until(ask: Callable[[], Coroutine[Any, Any, httpx.Response]]) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        try:
            await ask()
        except httpx.HTTPError:
            await asyncio.sleep(0.1)
        else:
            return
    raise TimeoutError("the master does not answer")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=[4, 100, 300])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    for agents in options.agents:
        (port,) = free_ports(1)
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "edl_workflows",
                "master",
                "run",
                "--standalone",
                "--job",
                "big",
            ]
            command += ["--nodes", f"worker={agents}", "--port", str(port), "--state-dir", folder]
            with (Path(folder) / "log").open("ab") as log:
                env = {**os.environ, names.ENV_JOB_TOKEN: TOKEN}
                master = subprocess.Popen(command, env=env, stdout=log, stderr=log)
            try:
                print(asyncio.run(measure(port, psutil.Process(master.pid), agents, options.seconds)))
            finally:
                master.kill()
                master.wait()


if __name__ == "__main__":
    main()
