"""A training program with parameter servers and without any framework: each server counts its part of the
records."""

import contextlib
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import Job, addresses, connect
from tests.e2e.counting import (
    COUNTS,
    EPOCHS,
    LOOK_SECONDS,
    RECORDS,
    SAVE_SECONDS,
    Counts,
    Program,
    key,
    nothing,
    read_counts,
)

SHARD, BATCH = 40, 10
BEGIN_SECONDS = 0.1


class Server:
    """A parameter server: its part of the counts, the others' being zero, and on rank 0 the global step."""

    def __init__(self, job: Job) -> None:
        self._counts, self._step, self._loaded = nothing(), 0, False
        self._lock = threading.Lock()
        port = names.NODE_PORTS[job.node.type][job.version % 2]
        self._listener = Listener(addresses.listen(port), authkey=job.environment.token.encode())
        threading.Thread(target=self._accept, daemon=True).start()

    def add(self, keys: Sequence[int]) -> int:
        """Train records; the global step after it."""
        np.add.at(self._counts, list(keys), 1)
        self._step += 1
        return self._step

    def read(self) -> tuple[int, Counts]:
        """Step and counts."""
        return self._step, self._counts.copy()

    def load(self, step: int, counts: Counts) -> None:
        """Begin with these."""
        self._counts, self._step, self._loaded = counts.copy(), step, True

    def loaded(self) -> bool:
        """Whether there is a model."""
        return self._loaded

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):  # a client that died while it said hello
                link = self._listener.accept()
                threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: "Connection[Any, Any]") -> None:
        with contextlib.suppress(OSError, EOFError), link:
            while True:
                what, *arguments = link.recv()
                with self._lock:
                    answer = getattr(self, what)(*arguments)
                link.send(answer)


class Servers:
    """The servers of a version, for a worker."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._links = [self._connect(member.address) for member in job.cluster.ps]

    def ask(self, rank: int, what: str, *arguments: Any) -> Any:
        """Call a method of a server."""
        try:
            self._links[rank].send((what, *arguments))
            return self._links[rank].recv()
        except (OSError, EOFError) as error:
            self._job.cluster_lost(f"server {rank}: {error!r}")

    def train(self, keys: Sequence[int]) -> int:
        """One step; rank 0 comes last, so that its step counts what all have."""
        count = len(self._links)
        steps = [self.ask(r, "add", [k for k in keys if k % count == r]) for r in reversed(range(count))]
        return int(steps[-1])

    def read(self) -> tuple[int, Counts]:
        """Global step and the whole model."""
        parts = [self.ask(rank, "read") for rank in range(len(self._links))]
        return parts[0][0], sum((counts for _, counts in parts), nothing())

    def loaded(self) -> bool:
        """Whether there is a model."""
        return bool(self.ask(0, "loaded"))

    def load(self, checkpoint: CheckpointRef | None) -> None:
        """Give them the model: all of it to rank 0, which gets it last."""
        for rank in range(1, len(self._links)):
            self.ask(rank, "load", 0, nothing())
        if checkpoint is None:
            self.ask(0, "load", 0, nothing())
        else:
            self.ask(0, "load", checkpoint.step, read_counts(checkpoint))

    def _connect(self, address: str) -> "Connection[Any, Any]":
        while not self._job.terminated:
            host, _, port = addresses.resolve(address).rpartition(":")
            with contextlib.suppress(OSError, EOFError):
                return Client((host, int(port)), authkey=self._job.environment.token.encode())
            time.sleep(LOOK_SECONDS)
        raise SystemExit(143)


def save(program: Program, job: Job, servers: Servers) -> CheckpointRef:
    """A checkpoint; it may be held when half of it is written."""
    step, counts = servers.read()
    content = counts.tobytes()

    def write(folder: Path) -> None:
        with (folder / COUNTS).open("wb") as file:
            file.write(content[: len(content) // 2])
            program.at("save", job)
            file.write(content[len(content) // 2 :])

    return program.store.publish(step, write, position=job.data_position)


def train(program: Program, job: Job) -> None:
    """What a worker does."""
    servers = Servers(job)
    job.wait_until_active()
    while not servers.loaded():
        if job.is_chief:
            servers.load(job.start_from(program.store))
        else:
            job.between_steps()
            time.sleep(BEGIN_SECONDS)
    job.save_with(lambda: save(program, job, servers), SAVE_SECONDS)
    data = {"size": RECORDS, "shard_size": SHARD, "batch_size": BATCH, "num_epochs": EPOCHS}
    for batch in job.batches("train", **data):
        step = servers.train([key(batch.epoch, record) for record in batch.indices])
        job.report_step(step)
        program.pace.rest()
    program.at("end", job)
    if job.is_chief and job.checkpoint(patience=float("inf"), stored=True) is None:
        job.cluster_lost("the final checkpoint could not be saved")


def main() -> None:
    """Serve, or train."""
    program = Program()
    with connect() as job:
        program.prepares(job)
        if job.node.type == names.PS_TYPE:
            server = Server(job)
            assert not server.loaded()
            job.serve()
        train(program, job)


if __name__ == "__main__":
    main()
