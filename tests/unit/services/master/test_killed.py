"""A real master process, killed with SIGKILL while it works: nothing that it confirmed is lost or
repeated.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.datasets import DatasetParams, LeaseRequest
from edl_workflows.core.protocol.nodes import ExitReport, NodeRef, Registration
from edl_workflows.training.client import MasterClient, call_until_answered
from edl_workflows.training.data.shards import ShardReader

TOKEN = "token-of-the-test"
SHARDS = 4000
BATCH = 50
DEADLINE = 120.0


class MasterProcess:
    """A standalone master with its state in a folder; each start goes on where the one before was."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "edl_workflows",
            "master",
            "run",
            "--standalone",
            "--nodes",
            "worker=2",
        ]
        command += ["--port", str(self.port), "--state-dir", str(self.folder)]
        self.process = subprocess.Popen(command, env={**os.environ, names.ENV_JOB_TOKEN: TOKEN})

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(240)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(240)


class FakeWorker(threading.Thread):
    """Leases and acknowledges until all data is consumed; repeats what was not answered. Keeps nothing, as a
    worker of an earlier version."""

    def __init__(self, url: str, node_id: int) -> None:
        super().__init__(daemon=True)
        self.node = {"type": "worker", "id": node_id}
        self.confirmed: dict[int, float] = {}
        """When the acknowledgement of a shard was answered, by its first record."""
        self.leased: list[tuple[int, float]] = []
        """Shards, and when the request for them was made."""
        self.http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=240)

    def call(self, path: str, **body: Any) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                response = self.http.post(path, json=body)
            except httpx.TransportError:
                assert time.monotonic() < deadline, "the master does not come back"
                time.sleep(0.05)
                continue
            assert response.status_code == 200, response.text
            answer: dict[str, Any] = response.json()
            return answer

    def run(self) -> None:
        self.call("/v1/nodes", node=self.node, rank=self.node["id"], incarnation="a")
        self.call("/v1/datasets", name="train", size=SHARDS, shard_size=1)
        while True:
            asked = time.monotonic()
            lease = self.call("/v1/datasets/train/lease", node=self.node, max_shards=BATCH, holding=[])
            if lease["state"] == "end":
                break
            if lease["state"] == "wait":
                time.sleep(0.02)
                continue
            shards = lease["shards"]
            self.leased += [(shard["start"], asked) for shard in shards]
            ack = self.call("/v1/datasets/train/ack", node=self.node, done=shards)
            assert ack.get("accepted", 0) + ack.get("duplicates", 0) == len(shards), ack
            answered = time.monotonic()
            self.confirmed |= {shard["start"]: answered for shard in shards}
        self.call("/v1/nodes/exit", node=self.node, incarnation="a", version=1, code=0)
        self.http.close()


class KeepingWorker(threading.Thread):
    """Trains shards as the library for training programs does."""

    def __init__(self, url: str, node_id: int) -> None:
        super().__init__(daemon=True)
        self.node = NodeRef(type="worker", id=node_id)
        self.trained: list[int] = []
        self._client = MasterClient(url, TOKEN)

    def run(self) -> None:
        client, params = self._client, DatasetParams(name="train", size=SHARDS, shard_size=1)
        registration = Registration(node=self.node, rank=self.node.id, incarnation="a")
        call_until_answered(lambda: client.register(registration))
        call_until_answered(lambda: client.dataset(params))
        ask = LeaseRequest(node=self.node, max_shards=BATCH)
        reader = ShardReader(client, ask, params, may_lease=lambda: True, between=lambda: None)
        for shard in reader.shards():
            self.trained.append(shard.start)
        reader.close(DEADLINE)
        exited = ExitReport(node=self.node, incarnation="a", version=1, code=0)
        call_until_answered(lambda: client.exit(exited))
        client.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterProcess]:
    process = MasterProcess(tmp_path)
    process.start()
    yield process
    if process.process is not None and process.process.poll() is None:
        process.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_master_comes_back_with_all_that_it_confirmed(master: MasterProcess) -> None:
    """Killed again and again at random moments: every shard is consumed, and none is handed out after it was
    confirmed.
    """
    workers = [FakeWorker(f"http://127.0.0.1:{master.port}", node_id) for node_id in (0, 1)]
    for worker in workers:
        worker.start()
    chance = random.Random(7)
    kills = 0
    while any(worker.is_alive() for worker in workers) and kills < 5:
        before = sum(len(worker.confirmed) for worker in workers)
        _wait_for(_more_than(workers, before + 100))
        time.sleep(chance.uniform(0.0, 0.05))
        if any(worker.is_alive() for worker in workers):
            master.kill()
            master.start()
            kills += 1
    for worker in workers:
        worker.join(DEADLINE)
        assert not worker.is_alive()
    assert kills >= 2
    assert master.wait() == 0
    confirmed = {shard: at for worker in workers for shard, at in worker.confirmed.items()}
    assert sorted(confirmed) == list(range(SHARDS))
    leased = [lease for worker in workers for lease in worker.leased]
    assert [shard for shard, asked in leased if asked > confirmed[shard]] == []
    assert len(leased) - SHARDS <= kills * len(workers) * BATCH, (
        "more was repeated than what was out at the kills"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_bring_the_next_master_what_was_not_stored(master: MasterProcess) -> None:
    """Masters are killed while no acknowledgement is stored before it is answered: the workers report all to
    the next master, so that each shard is trained and the job succeeds."""
    workers = [KeepingWorker(f"http://127.0.0.1:{master.port}", node_id) for node_id in (0, 1)]
    for worker in workers:
        worker.start()
    for kills in range(1, 4):
        _wait_for(lambda goal=kills * SHARDS // 5: sum(len(w.trained) for w in workers) > goal)  # type: ignore[misc]
        master.kill()
        master.start()
    for worker in workers:
        worker.join(DEADLINE)
        assert not worker.is_alive()
    assert master.wait() == 0
    assert {shard for worker in workers for shard in worker.trained} == set(range(SHARDS))


def _more_than(workers: list[FakeWorker], count: int) -> Callable[[], bool]:
    """Whether so much is confirmed, or there is nothing left to wait for."""
    return lambda: sum(len(w.confirmed) for w in workers) > count or not any(w.is_alive() for w in workers)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
