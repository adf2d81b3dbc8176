"""One of two members as a process of its own: ``python -m tests.torch.member_process RANK PORT``. Prints each
step, and at the end why the group broke."""

import sys

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training.collective.framework import Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.frameworks.torch_collective import TorchTraining
from tests.torch.members import network, records


def main() -> None:
    """Train until the other member is gone."""
    rank, port = int(sys.argv[1]), sys.argv[2]
    member = TorchTraining(lambda: network(0))
    member.join(Place(1, rank, (f"127.0.0.1:{port}",) * 2))
    x, y = records(4)
    try:
        while True:
            member.step([{"x": x, "y": y}], Wishes())
            print("step", flush=True)
    except UnavailableError as error:
        print(f"broken: {error}", flush=True)


if __name__ == "__main__":
    main()
