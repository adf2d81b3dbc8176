"""``python -m tests.unit.pipelines.argo.agent.killed POINT ARGUMENTS``: ``edl argo agent ARGUMENTS`` that
kills itself at a point.

SIGKILL, amid its work: nothing is flushed, released or said. Points: before-begin, after-begin,
before-report, after-report.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from edl_workflows.pipelines import cli
from edl_workflows.pipelines.argo.agent import reporting
from edl_workflows.pipelines.waiting import ownership

POINTS = ("before-begin", "after-begin", "before-report", "after-report")


def _die(*_args: Any, **_kwargs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _and_die(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        function(*args, **kwargs)
        _die()

    return wrapped


def _arm(point: str) -> None:
    match point:
        case "before-begin":
            ownership.create_or_adopt = _die
        case "after-begin":
            ownership.create_or_adopt = _and_die(ownership.create_or_adopt)
        case "before-report":
            reporting.report_results = _die
        case "after-report":
            reporting.report_results = _and_die(reporting.report_results)


if __name__ == "__main__":
    _arm(sys.argv[1])
    sys.exit(cli.main(["argo", "agent", *sys.argv[2:]]))
