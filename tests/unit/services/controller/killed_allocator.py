"""``python -m tests.unit.services.controller.killed_allocator POINT ARGUMENTS``: ``edl controller run
ARGUMENTS`` that kills itself.

SIGKILL, amid an allocation: nothing is flushed, released or said. Points: before-write, after-write (a write
that conflicts with another one is no write; the allocator repeats it).
"""

import os
import signal
import sys
from typing import Any

from edl_workflows.pipelines import cli
from edl_workflows.services.controller.allocator import Allocator

POINTS = ("before-write", "after-write")


def _arm(point: str) -> None:
    write = Allocator._write

    def dying(self: Allocator, *arguments: Any) -> bool:
        if point == "after-write" and not write(self, *arguments):
            return False
        os.kill(os.getpid(), signal.SIGKILL)
        return False

    Allocator._write = dying  # type: ignore[method-assign, assignment]  # this process is there to die of it


if __name__ == "__main__":
    _arm(sys.argv[1])
    sys.exit(cli.main(["controller", "run", *sys.argv[2:]]))
