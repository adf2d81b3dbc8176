"""The master of the TrainingJob example: hands out the data in chunks, at least once
each, whoever is lost.

A chunk is leased to a trainer and comes back to the queue if it is not acknowledged in
time. Acknowledgements are written down before they are answered, so that the master
that takes this one's place goes on where it was.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trainingjob_http import serve

Chunk = tuple[int, int]
"""(pass, number within the pass)."""


class Queue:
    """The chunks of all passes.

    Args:
        journal: the file of acknowledged chunks: pass, chunk and trainer a line.
        chunks: the chunks of all passes, in order.
        lease_seconds: how long a trainer has for a chunk.
    """

    def __init__(self, journal: Path, chunks: list[Chunk], lease_seconds: float) -> None:
        self._journal = journal
        self._lease_seconds = lease_seconds
        self._leases: dict[Chunk, float] = {}
        self._lock = threading.Lock()
        lines = journal.read_text().splitlines() if journal.exists() else []
        done = {(int(one), int(other)) for one, other, _ in (line.split() for line in lines)}
        self._left = [chunk for chunk in chunks if chunk not in done]

    def lease(self) -> dict[str, Any]:
        """The next chunk, or whether there is none for now or none any more."""
        with self._lock:
            now = time.monotonic()
            free = next(
                (chunk for chunk in self._left if self._leases.get(chunk, 0.0) <= now), None
            )
            if free is None:
                return {"done": not self._left}
            self._leases[free] = now + self._lease_seconds
            return {"done": False, "chunk": free}

    def acknowledge(self, trainer: str, chunk: Chunk) -> dict[str, Any]:
        """Record that a chunk is trained. A second acknowledgement is no error: the
        first trainer's lease had expired."""
        with self._lock:
            if chunk in self._left:
                with self._journal.open("a") as file:
                    file.write(f"{chunk[0]} {chunk[1]} {trainer}\n")
                    file.flush()
                    os.fsync(file.fileno())
                self._left.remove(chunk)
            return {"left": len(self._left)}


def main() -> None:
    """Serve until the job ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, required=True, help="of the journal; every master of the job sees it"
    )
    parser.add_argument("--chunks", type=int, default=24, help="a pass (default %(default)s)")
    parser.add_argument(
        "--lease-seconds",
        type=float,
        default=16.0,
        help="for one chunk (default %(default)s, as Paddle's master)",
    )
    options = parser.parse_args()
    # Without a handler, the first process of a container ignores SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    options.folder.mkdir(parents=True, exist_ok=True)
    passes = int(os.environ["PADDLE_INIT_NUM_PASSES"])
    chunks = [(one, chunk) for one in range(passes) for chunk in range(options.chunks)]
    queue = Queue(options.folder / "chunks", chunks, options.lease_seconds)

    def lease(_body: bytes) -> bytes:
        answer = queue.lease() | {"chunks": options.chunks}
        return json.dumps(answer).encode()

    def acknowledge(body: bytes) -> bytes:
        asked = json.loads(body)
        return json.dumps(queue.acknowledge(asked["trainer"], tuple(asked["chunk"]))).encode()

    serve({"/lease": lease, "/acknowledge": acknowledge}).serve_forever()


if __name__ == "__main__":
    main()
