"""A process of a replica group whose version has not begun: ``python -m tests.torch.replica_process SECONDS
RANK ADDRESS …``. SECONDS is the time until a thread that was started runs, as on a busy machine."""

import sys
import threading
import time

from edl_workflows.training.frameworks.torch_replica import join_replica_group
from tests.torch.replica_ranks import job_of


def main() -> None:
    """Join the group, and wait."""
    late, rank, *addresses = sys.argv[1:]
    _start_threads_late(float(late))
    job = job_of(int(rank), addresses, max_workers=len(addresses), active=False)
    replica = join_replica_group(job)
    print(f"joined as {replica.index}", flush=True)
    sys.stdin.read()
    del replica  # it has kept the group's store


def _start_threads_late(seconds: float) -> None:
    run = threading.Thread.run

    def run_late(thread: threading.Thread) -> None:
        time.sleep(seconds)
        run(thread)

    threading.Thread.run = run_late  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
