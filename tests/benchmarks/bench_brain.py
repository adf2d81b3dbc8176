"""Brain under many jobs: ``python -m tests.benchmarks.bench_brain [--jobs N …] [--database sqlite postgresql]
[--json]``.

A Brain process, and so many jobs, each with a connection of its own, that report a sample of 5 nodes every 15
seconds and ask for a plan every 5 minutes, evenly spread. A report is answered when it is committed: SQLite
flushes its log to the disk for each commit, PostgreSQL runs with its defaults. A look of a cluster monitor is
written every 15 seconds, so that the jobs' shares of the cluster are worked out as well. The first 15 seconds
are not counted.

Latency is that of reports, seen by the client in its own process. The numbers of the machine's other work
stand beside: on a machine that does other things as well, the slowest answers tell of those.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import httpx
import psutil

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.services.brain import auth
from edl_workflows.services.brain.observations import ClusterObservation, JobObservation
from edl_workflows.services.brain.store.store import BrainStore
from edl_workflows.testing import free_port
from tests.unit.services.brain import postgres

PERIOD = 15.0
ASK_PERIOD = 300.0
WARM_UP = PERIOD
SECONDS = 60.0
LIMIT_MS = 50.0
WORKERS = 4
GIB = 2.0**30


@dataclass(frozen=True)
class Row:
    """One line of the result.

    Attributes:
        lost: reports that were not answered with 200.
        memory_mib: the most that the Brain process had resident.
        cores: that the Brain process used on average.
        busy: what all processes of the machine used of its cores, 0 to 1.
    """

    database: str
    jobs: int
    reports: int
    lost: int
    p50_ms: float
    p99_ms: float
    worst_ms: float
    ask_p99_ms: float
    memory_mib: float
    cores: float
    busy: float
    met: bool


@dataclass
class Seen:
    """What the jobs saw: seconds of answers."""

    reports: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    lost: int = 0


@dataclass(frozen=True)
class Job:
    """One job's side."""

    number: int

    @property
    def facts(self) -> dict[str, object]:
        """As its master says it."""
        size = {"cpu": 4, "memory": 8_192}
        return {
            "uid": f"uid-{self.number}",
            "namespace": "bench",
            "name": f"job-{self.number}",
            "roles": {"ps": {"count": 1, "resource": size}, "worker": {"count": WORKERS, "resource": size}},
            "limits": {"cpu": 100, "memory": 400_000, "gpu": 0},
        }

    @property
    def nodes(self) -> list[tuple[str, str, int]]:
        """Name, role and id of each."""
        there = [("ps", 0), *(("worker", i) for i in range(WORKERS))]
        return [(f"job-{self.number}-edljob-{role}-{i}", role, i) for role, i in there]

    def report(self, step: int) -> bytes:
        """What it reports now."""
        used = [{"name": name, "role": role, "cpu": 2.5, "memory": 4_000.5} for name, role, _ in self.nodes]
        sample = {"time": time.time(), "step": step, "speed": 12.5, "nodes": used}
        return json.dumps({"job": self.facts, "samples": [sample]}).encode()

    def question(self) -> bytes:
        """What it asks."""
        size = {"cpu": 4, "memory": 8_192}
        nodes = [{"name": name, "role": role, "id": i, "resource": size} for name, role, i in self.nodes]
        return json.dumps(
            {"job": self.facts, "stage": "job_stage_running", "phase": "stable", "nodes": nodes}
        ).encode()


class Connection:
    """A job's connection: a plain HTTP client, so that the load costs little beside what is measured."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: brain\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes) -> int:
        """The answer's status; 0 for none."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            head = f"POST /v1/{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(line for line in answer.splitlines() if line.startswith("content-length:"))
            await reader.readexactly(int(length.partition(":")[2]))
            return int(answer.split()[1])
        except (OSError, asyncio.IncompleteReadError):
            self._streams = None
            return 0


async def run_job(job: Job, count: int, port: int, token: str, began: float, seen: Seen) -> None:
    """One job from its first report to the end."""
    connection = Connection(port, token)
    share = job.number / count
    due, ask_due = began + share * PERIOD, began + share * ASK_PERIOD
    end, step = began + WARM_UP + SECONDS, 0
    while due < end:
        await asyncio.sleep(due - time.monotonic())
        seconds, status = await _timed(connection, "metrics", job.report(step))
        if due >= began + WARM_UP:
            seen.reports.append(seconds)
            seen.lost += status != 200
        if ask_due <= due:
            seconds, status = await _timed(connection, "optimize", job.question())
            if due >= began + WARM_UP:
                seen.asked.append(seconds)
                seen.lost += status != 200
            ask_due += ASK_PERIOD
        due, step = due + PERIOD, step + 100


async def _timed(connection: Connection, path: str, body: bytes) -> tuple[float, int]:
    began = time.perf_counter()
    status = await connection.post(path, body)
    return time.perf_counter() - began, status


async def run_jobs(count: int, port: int, token: str) -> Seen:
    """All of them."""
    seen, began = Seen(), time.monotonic() + 1.0
    await asyncio.gather(*(run_job(Job(i), count, port, token, began, seen) for i in range(count)))
    return seen


def monitor(database_url: str, count: int, stop: float) -> None:
    """What a cluster monitor would write meanwhile: the jobs once, the cluster every 15 seconds."""
    requests = {"cpu": 20.0, "memory": 40 * GIB}
    total = {name: amount * count * 1.5 for name, amount in requests.items()}
    taken = {name: amount * count for name, amount in requests.items()}
    jobs = [
        JobObservation(f"uid-{i}", "ElasticJob", "bench", f"job-{i}", "Running", requests=requests)
        for i in range(count)
    ]
    with BrainStore(database_url) as store:
        store.record_jobs(jobs, [], time.time())
        while time.monotonic() < stop:
            store.record_cluster(ClusterObservation(time.time(), 100, 100, total, taken))
            time.sleep(PERIOD)


@contextlib.contextmanager
def brain(database_url: str, folder: Path) -> Iterator[tuple[psutil.Process, int, str]]:
    """A Brain process; with its port and a token."""
    token, row = auth.new_token("bench", ["bench"])
    file = folder / "tokens.json"
    file.unlink(missing_ok=True)
    auth.add_token(file, row)
    port = free_port()
    words = ["brain", "run", "--port", str(port), "--tokens-file", str(file), "--metrics-port", "0"]
    command = [sys.executable, "-m", "edl_workflows", *words]
    environment = os.environ | {"EDL_BRAIN_DATABASE_URL": database_url}
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(command, stderr=log, env=environment) as running,
    ):
        try:
            deadline = time.monotonic() + 60
            while not _answers(port):
                if running.poll() is not None or time.monotonic() > deadline:
                    raise UnavailableError(f"Brain did not start: {(folder / 'log').read_text()}")
                time.sleep(0.1)
            yield psutil.Process(running.pid), port, token
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(60)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}/openapi.json", timeout=5).status_code == 200
    return False


def measure(database: str, database_url: str, count: int) -> Row:
    """One database with so many jobs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        brain(database_url, Path(folder)) as (process, port, token),
        ThreadPoolExecutor(1) as pool,
    ):
        watching = pool.submit(monitor, database_url, count, time.monotonic() + WARM_UP + SECONDS)
        psutil.cpu_percent()
        began, used = time.monotonic(), sum(process.cpu_times()[:2])
        seen = asyncio.run(run_jobs(count, port, token))
        cores = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
        busy = psutil.cpu_percent() / 100
        memory = _peak_memory(process.pid)
        watching.result()
    p99 = _part(seen.reports, 0.99)
    return Row(
        database,
        count,
        len(seen.reports),
        seen.lost,
        _part(seen.reports, 0.5),
        p99,
        max(seen.reports) * 1000,
        _part(seen.asked, 0.99),
        memory,
        cores,
        busy,
        met=p99 <= LIMIT_MS and seen.lost == 0,
    )


def _part(seconds: list[float], part: float) -> float:
    """A quantile in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, math.floor(part * len(ordered)))] * 1000 if ordered else math.nan


def _peak_memory(pid: int) -> float:
    """MiB."""
    line = next(
        row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def table(rows: list[Row]) -> str:
    """The result, for people."""
    head = (
        "| database | jobs | reports | lost | p50 | p99 | worst | plan p99 | memory | cores | machine busy | "
        "p99 ≤ 50 ms |"
    )
    lines = [head, "|" + "---|" * head.count(" | ") + "---|"]
    for row in rows:
        cells = [
            row.database,
            f"{row.jobs:,}",
            f"{row.reports:,}",
            str(row.lost),
            *(f"{value:.1f} ms" for value in (row.p50_ms, row.p99_ms, row.worst_ms, row.ask_p99_ms)),
            f"{row.memory_mib:.0f} MiB",
            f"{row.cores:.2f}",
            f"{row.busy:.0%}",
            "yes" if row.met else "NO",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and say by the exit code whether the limit holds for 1,000 jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 1_000, 3_000])
    parser.add_argument(
        "--database", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"]
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    rows = []
    for database in arguments.database:
        for count in arguments.jobs:
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                url = f"sqlite:///{folder}/brain.db"
                if database == "postgresql":
                    url = postgres.create_database(stack.enter_context(postgres.server()), "bench")
                rows.append(measure(database, url, count))
                print(asdict(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows]) if arguments.json else table(rows))
    return 0 if all(row.met for row in rows if row.jobs <= 1_000) else 1


if __name__ == "__main__":
    sys.exit(main())
