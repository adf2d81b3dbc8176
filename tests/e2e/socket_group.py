"""A program that knows nothing of this package: it forms its group from the environment, as PyTorch's
programs do, and exits 0.

It sums numbers with the other members over plain sockets, and ends when there is a file ``end-<rank>`` in its
folder. Each start leaves a line in ``starts-<rank>``.
"""

import os
import socket
import sys
import time
from pathlib import Path

ROUNDS = 5
PATIENCE = 60.0


def main(folder: Path) -> int:
    """Train as one of the members."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    links = _accept(master, size - 1) if rank == 0 else [_connect(master)]
    total = 0
    for number in range(ROUNDS):
        total += _sum(links, rank, number + rank)
    with (folder / f"starts-{rank}").open("a") as starts:
        starts.write(f"{size} {total}\n")
    for link in links:
        link.close()
    while not (folder / f"end-{rank}").exists():
        time.sleep(0.05)
    return 0


def _sum(links: list[socket.socket], rank: int, value: int) -> int:
    """The sum over all members: rank 0 collects and tells the others."""
    if rank:
        links[0].sendall(value.to_bytes(4))
        return int.from_bytes(links[0].recv(4))
    total = value + sum(int.from_bytes(link.recv(4)) for link in links)
    for link in links:
        link.sendall(total.to_bytes(4))
    return total


def _accept(address: tuple[str, int], others: int) -> list[socket.socket]:
    with socket.create_server(address) as server:
        server.settimeout(PATIENCE)
        return [server.accept()[0] for _ in range(others)]


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(address, timeout=PATIENCE)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
