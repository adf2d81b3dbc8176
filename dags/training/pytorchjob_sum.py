"""Sum the ranks of a PyTorchJob's replicas, step by step: the program of the master and
of every worker.

It reads the environment as ``torch.distributed`` does and needs nothing but Python:
rank 0 listens at ``MASTER_ADDR:MASTER_PORT``, and the others connect to it. Steps that
are done are counted in a file, from which a job that was restarted goes on. A replica
that loses another exits with 138, so that ``restartPolicy: ExitCode`` starts it again.
"""

import argparse
import os
import socket
import sys
import time
from pathlib import Path

LOST = 138
"""Exit code of a replica whose peers are gone: 128 + SIGUSR1, a code that restarts it."""
PATIENCE = 120
"""Seconds in which a worker tries to reach the master."""


def lead(address: tuple[str, int], world: int, options: argparse.Namespace) -> None:
    """The master's part: add up what the workers send."""
    options.folder.mkdir(parents=True, exist_ok=True)
    done = options.folder / "steps"
    step = int(done.read_text()) if done.exists() else 0
    host = (
        address[0] if address[0].startswith("127.") else ""
    )  # the pod's own name may not resolve yet
    with socket.create_server((host, address[1])) as server:
        workers = [server.accept()[0].makefile("rw") for _ in range(world - 1)]
    while step < options.steps:
        total = sum(int(worker.readline()) for worker in workers)
        step += 1
        done.write_text(str(step))
        print(f"step {step} world {world} sum {total}", flush=True)
        for worker in workers:
            print("end" if step == options.steps else total, file=worker, flush=True)
        time.sleep(options.step_delay)


def follow(address: tuple[str, int], rank: int) -> None:
    """A worker's part: send the rank, and wait for the sum."""
    with connect(address) as connection, connection.makefile("rw") as master:
        answer = ""
        while answer != "end":
            print(rank, file=master, flush=True)
            answer = master.readline().strip()
            if not answer:
                raise ConnectionError("the master is gone")


def connect(address: tuple[str, int]) -> socket.socket:
    """Connect to the master as soon as it listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(address, timeout=PATIENCE)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> None:
    """Run this replica's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for the count of steps")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-delay", type=float, default=0.1, help="seconds")
    options = parser.parse_args()
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if rank == 0:
            lead(address, world, options)
        else:
            follow(address, rank)
    # The connection of a peer that is gone yields an empty line.
    except (OSError, ValueError) as error:
        print(f"lost a peer: {error}", flush=True)
        sys.exit(LOST)


if __name__ == "__main__":
    main()
