"""A process of a replica group whose version has not begun: ``python -m tests.torch.replica_process RANK
ADDRESS …``."""

import sys

from edl_workflows.agent.torch_replica import join_replica_group
from tests.torch.replica_ranks import job_of


def main() -> None:
    """Join the group, and wait."""
    rank, *addresses = sys.argv[1:]
    job = job_of(int(rank), addresses, max_workers=len(addresses), active=False)
    replica = join_replica_group(job)
    print(f"joined as {replica.index}", flush=True)
    sys.stdin.read()
    del replica  # it has kept the group's store


if __name__ == "__main__":
    main()
