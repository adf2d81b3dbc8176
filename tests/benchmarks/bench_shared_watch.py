"""A thousand waits in one process: API requests a minute and waiter, and time from a status change to its event.

Against the embedded API server in a process of its own::

    python tests/benchmarks/bench_shared_watch.py [--waiters 1000] [--seconds 60] [--rate 50]

Goals: ≤ 0.01 requests a minute and waiter, p99 ≤ 0.5 s.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster, ClusterSource, RequestRecord
from edl_workflows.kube.resources import CONFIG_MAPS, Scope
from edl_workflows.kube.shared import SharedWatches
from edl_workflows.testing import api_server

MAX_REQUESTS = 0.01
MAX_P99 = 0.5


@dataclass
class Result:
    """What was measured; times in seconds."""

    waiters: int
    seconds: float
    changes: int
    events: int
    requests: int
    requests_per_minute_and_waiter: float
    p50: float
    p99: float
    slowest: float
    loop_lag_p99: float


@dataclass
class Waits:
    """The waiters' side.

    Attributes:
        sent: when each (object, value) was sent.
        took: from then to the event.
        lags: how late the event loop woke up from short sleeps; shows whether anything blocks it.
    """

    sent: dict[tuple[str, str], float] = field(default_factory=dict)
    took: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)

    async def wait(self, watches: SharedWatches, source: ClusterSource, scope: Scope, name: str) -> None:
        """One waiter: notes how long each change took to arrive."""
        async with watches.states(source, scope, name) as states:
            async for state in states:
                if state is not None and (sent := self.sent.get((name, state["data"]["x"]))) is not None:
                    self.took.append(time.perf_counter() - sent)

    async def measure_lag(self) -> None:
        """Sleep and see how much longer it took."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.01)
            self.lags.append(time.perf_counter() - began - 0.01)


def change(cluster: Cluster, waits: Waits, options: argparse.Namespace) -> int:
    """Change objects at the given rate for the given time; how many changes were made."""
    began = time.perf_counter()
    count = 0
    with ThreadPoolExecutor(4) as pool:
        for due in _times(options.rate, options.seconds):
            time.sleep(max(0.0, began + due - time.perf_counter()))
            name = f"job-{random.randrange(options.waiters)}"
            pool.submit(_change_one, cluster, waits, name, str(count))
            count += 1
    return count


def _times(rate: float, seconds: float) -> Iterator[float]:
    return (index / rate for index in range(int(rate * seconds)))


def _change_one(cluster: Cluster, waits: Waits, name: str, value: str) -> None:
    waits.sent[name, value] = time.perf_counter()
    client.patch(cluster, CONFIG_MAPS, name, {"data": {"x": value}})


async def measure(cluster: Cluster, options: argparse.Namespace) -> Result:
    """Wait with all waiters while a thread changes objects."""
    requests: list[RequestRecord] = []
    source = ClusterSource.of(cluster.observed_by(requests.append))
    watches, waits, scope = SharedWatches(), Waits(), Scope(CONFIG_MAPS, "default")
    began = time.perf_counter()
    tasks = [
        asyncio.create_task(waits.wait(watches, source, scope, f"job-{index}"))
        for index in range(options.waiters)
    ]
    tasks.append(asyncio.create_task(waits.measure_lag()))
    changes = await asyncio.to_thread(change, cluster, waits, options)
    await asyncio.sleep(1.0)
    seconds = time.perf_counter() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    took, lags = sorted(waits.took), sorted(waits.lags)
    return Result(
        waiters=options.waiters,
        seconds=round(seconds, 1),
        changes=changes,
        events=len(took),
        requests=len(requests),
        requests_per_minute_and_waiter=round(len(requests) / (seconds / 60) / options.waiters, 6),
        p50=round(took[len(took) // 2], 4),
        p99=round(took[int(len(took) * 0.99)], 4),
        slowest=round(took[-1], 4),
        loop_lag_p99=round(lags[int(len(lags) * 0.99)], 4),
    )


def main() -> int:
    """Measure, print a table and JSON; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="changes a second")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, api_server(Path(folder)) as server:
        cluster = server.cluster()
        for index in range(options.waiters):
            metadata = {"name": f"job-{index}"}
            client.create(
                cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": ""}}
            )
        result = asyncio.run(measure(cluster, options))
    for name, value in asdict(result).items():
        print(f"{name:34} {value}")
    print(json.dumps(asdict(result)))
    met = result.requests_per_minute_and_waiter <= MAX_REQUESTS and result.p99 <= MAX_P99
    return 0 if met and result.events == result.changes else 1


if __name__ == "__main__":
    sys.exit(main())
