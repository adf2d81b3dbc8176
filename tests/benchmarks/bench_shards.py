"""Dynamic sharding against DLRover 0.6.1, side by side in one run: ``python tests/benchmarks/bench_shards.py
[--json]``.

(a) in process: 10,000 tasks of 100 records dispatched and completed for 8 workers in turn, upstream's
TaskManager and our `Dataset`. (b) over the network, server and clients in two processes, 8 client threads:
upstream's gRPC LocalJobMaster, two calls a task, all in memory; ours by HTTP from the real master, which
stores acknowledgements with its snapshots, with the library's `ShardReader`, which holds as many tasks ahead
as the row says, so that it leases one a request or many. (c) memory
of pending shards.

Rates are the best of several turns in alternation, so that a busy machine hurts both. The peer lives in an
environment of its own, ``.venv-bench``, made on first use with ``uv`` (`make bench` brings it).
"""

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from dataclasses import asdict, dataclass
from pathlib import Path

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.protocol.datasets import DatasetParams, LeaseRequest, LeaseState
from edl_workflows.core.protocol.nodes import NodeRef, Registration
from edl_workflows.services.master.shards.dataset import ShardedDataset
from edl_workflows.testing import free_port
from edl_workflows.training.client import MasterClient
from edl_workflows.training.data.shards import ShardReader

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEER = ROOT / ".venv-bench"
PEER_PACKAGES = (
    "psutil",
    "deprecated",
    "requests",
    "packaging",
    "grpcio",
    "protobuf",
    "kubernetes",
    "tornado",
)
"""What dlrover's master imports. It is installed without its own list, which wants a GPU library."""

SHARD_SIZE = 100
TASKS = 10_000
GRPC_TASKS = 1_000
"""Fewer, since each is two calls; the rate does not depend on the number."""
HTTP_SINGLE_TASKS = 5_000
HTTP_TASKS = 80_000
"""More, since ours ends when all is stored, which takes the same time for any number."""
WORKERS = 8
HTTP_BATCH = 500
TURNS = 3
TOKEN = "bench"


@dataclass(frozen=True)
class Row:
    """One line of the result: ours, the peer's (0: none), their ratio, and the goal for ratio or value."""

    case: str
    unit: str
    ours: float
    dlrover: float
    ratio: float
    goal: str
    met: bool


def prepare_peer() -> None:
    """Makes the peer's environment if it is not there.

    Raises:
        SystemExit: ``uv`` is missing.
    """
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{Path.home()}/.local/bin") or shutil.which(
        "uv"
    )
    if (PEER / "lib").exists():
        return
    if uv is None:
        raise SystemExit(
            "bench_shards: uv is needed to install dlrover 0.6.1 into .venv-bench: pip install uv"
        )
    python = f"{PEER}/bin/python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(PEER)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*install, "--no-deps", "dlrover==0.6.1"], check=True)
    subprocess.run([*install, *PEER_PACKAGES], check=True)


def peer_rate(case: str, tasks: int) -> float:
    """Upstream's tasks a second."""
    script = HERE / "peers" / "dlrover_shards.py"
    command = [
        f"{PEER}/bin/python",
        str(script),
        case,
        str(tasks * SHARD_SIZE),
        str(SHARD_SIZE),
        str(WORKERS),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    result = json.loads(output.splitlines()[-1])
    assert result["tasks"] == tasks
    return float(result["tasks"] / result["seconds"])


def in_process_rate(batch: int) -> float:
    """Our tasks a second through the data set's methods."""
    dataset = ShardedDataset.new(DatasetParams(name="bench", size=TASKS * SHARD_SIZE, shard_size=SHARD_SIZE))
    nodes = [f"worker-{number}" for number in range(WORKERS)]
    tasks = turn = 0
    began = time.perf_counter()
    while shards := dataset.lease(nodes[turn % WORKERS], batch, time.time()):
        dataset.acknowledge("", shards, time.time())
        tasks += len(shards)
        turn += 1
    seconds = time.perf_counter() - began
    assert tasks == TASKS
    assert dataset.state is LeaseState.END
    return tasks / seconds


def http_rate(batch: int, tasks: int) -> float:
    """Our tasks a second over HTTP: a real master in a process of its own, with its state in a file."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as folder:
        port = free_port()
        command = [
            sys.executable, "-m", "edl_workflows", "master", "run", "--standalone", "--job", "bench",
            "--nodes", f"worker={WORKERS}", "--port", str(port), "--state-dir", folder,
        ]  # fmt: skip
        log = Path(folder) / "master.log"
        with (
            log.open("wb") as out,
            subprocess.Popen(
                command, env={**os.environ, "EDL_JOB_TOKEN": TOKEN}, stdout=out, stderr=out
            ) as server,
        ):
            try:
                return lease_all(f"http://127.0.0.1:{port}", batch, tasks)
            finally:
                server.kill()  # a graceful stop waits for open connections


def lease_all(url: str, batch: int, tasks: int) -> float:
    """Consumes a data set of so many tasks with one reader of the library a thread, which leases ahead and
    acknowledges in the background; tasks a second until all is durable."""
    clients = [MasterClient(url, TOKEN) for _ in range(WORKERS)]
    for worker, client in enumerate(clients):
        await_registered(client, NodeRef(type="worker", id=worker))
    params = DatasetParams(name="bench", size=tasks * SHARD_SIZE, shard_size=SHARD_SIZE)
    clients[0].dataset(params)
    counts = [0] * WORKERS

    def work(worker: int) -> None:
        ask = LeaseRequest(node=NodeRef(type="worker", id=worker), max_shards=batch)
        reader = ShardReader(clients[worker], ask, params, lambda: True, lambda: None)
        counts[worker] = sum(1 for _ in reader.shards())

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    assert sum(counts) == tasks
    return tasks / seconds


def await_registered(client: MasterClient, node: NodeRef) -> None:
    """Registers a node once the master listens."""
    deadline = time.monotonic() + 60
    while True:
        try:
            client.register(Registration(node=node, rank=node.id, incarnation="bench"))
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def bytes_per_pending_shard(shards: int) -> float:
    """Memory of a data set whose shards all wait but for one, over their number."""
    params = DatasetParams(name="bench", size=shards * SHARD_SIZE, shard_size=SHARD_SIZE, shuffle=True)
    gc.collect()
    tracemalloc.start()
    dataset = ShardedDataset.new(params)
    dataset.lease("worker-0", 1, 0.0)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / shards


def ratio_row(case: str, ours: list[float], peer: list[float], goal: float) -> Row:
    """Compares the best turns."""
    ratio = max(ours) / max(peer)
    return Row(case, "tasks/s", max(ours), max(peer), ratio, f">= {goal:g}x", ratio >= goal)


def measure() -> list[Row]:
    """All rows."""
    turns = [
        (in_process_rate(1), in_process_rate(10), in_process_rate(100), peer_rate("inprocess", TASKS))
        for _ in range(TURNS)
    ]
    single, tens, hundreds, peer = (list(rates) for rates in zip(*turns, strict=True))
    network = [
        (http_rate(1, HTTP_SINGLE_TASKS), http_rate(HTTP_BATCH, HTTP_TASKS), peer_rate("grpc", GRPC_TASKS))
        for _ in range(2)
    ]
    http_single, http_batch, grpc = (list(rates) for rates in zip(*network, strict=True))
    rows = [
        ratio_row("in process, 1 task a lease", single, peer, 1.1),
        ratio_row("in process, 10 a lease", tens, peer, 2.4),
        ratio_row("in process, 100 a lease", hundreds, peer, 2.8),
        ratio_row("HTTP against gRPC, 1 task a lease", http_single, grpc, 1),
        ratio_row(f"HTTP against gRPC, {HTTP_BATCH} a lease", http_batch, grpc, 20),
    ]
    for shards in (100_000, 1_000_000):
        used = bytes_per_pending_shard(shards)
        rows.append(
            Row(f"memory a shard, {shards:,} pending, shuffled", "bytes", used, 0, 0, "<= 100", used <= 100)
        )
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [f"{'case':44} {'ours':>12} {'dlrover':>12} {'ratio':>8}  goal"]
    for row in rows:
        ours = f"{row.ours:,.0f} /s" if row.dlrover else f"{row.ours:.2f} B"
        peer = f"{row.dlrover:,.0f} /s" if row.dlrover else ""
        ratio = f"{row.ratio:.2f}x" if row.dlrover else ""
        verdict = " met" if row.met else " MISSED"
        lines.append(f"{row.case:44} {ours:>12} {peer:>12} {ratio:>8}  {row.goal}{verdict}")
    return "\n".join(lines)


def main() -> int:
    """Prints the table or JSON; fails when a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    prepare_peer()
    rows = measure()
    print(json.dumps([asdict(row) for row in rows]) if arguments.json else table(rows))
    return 0 if all(row.met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
