"""A worker that notes each batch before it trains it: ``python -m tests.e2e.window_worker FOLDER``, run by an
agent. It rests after each batch, until the folder has a file ``hurry``.

A batch is noted by a single write, so a process that is killed has noted all that it trained.
"""

import os
import sys
import time
from pathlib import Path

from edl_workflows.training import connect
from tests.e2e.window_kills import BATCH, DATA, REST_SECONDS, SHARD


def main() -> None:
    """Train."""
    folder = Path(sys.argv[1])
    hurry, size = folder / "hurry", int((folder / "size").read_text())
    with connect() as job:
        job.wait_until_active()
        notes = os.open(folder / f"notes-{job.node}-{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for batch in job.batches(DATA, size=size, shard_size=SHARD, batch_size=BATCH):
            records = " ".join(map(str, batch.indices))
            os.write(notes, f"{time.time()} {records}\n".encode())
            if not hurry.exists():
                time.sleep(REST_SECONDS)


if __name__ == "__main__":
    main()
