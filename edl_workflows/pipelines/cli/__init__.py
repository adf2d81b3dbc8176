"""`edl`, the command line. Each command group has a module, which is imported only when one of its commands
is used."""

import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `edl`.

    Args:
        argv: arguments after ``edl``; by default those of this process.

    Returns:
        The exit code, see `edl_workflows.pipelines.cli.root.EXIT_CODES`.
    """
    _end_on_sigterm()
    arguments = list(sys.argv[1:] if argv is None else argv)
    # A training image contains only the base installation, without typer and rich.
    if arguments[:2] == ["agent", "program"]:
        from edl_workflows.training.program import main as program

        program(arguments[2:])
    if arguments[:1] == ["agent"]:
        from edl_workflows.services.agent.command import main as agent

        return agent(arguments[1:])
    try:
        from edl_workflows.pipelines.cli.root import run
    except ModuleNotFoundError as error:
        print(  # noqa: T201 - output for the user
            f"edl: {error.name} is not installed; all commands but `edl agent` need it: "
            "pip install 'edl-workflows[controller]'",
            file=sys.stderr,
        )
        return 1
    return run(arguments)


def _end_on_sigterm() -> None:
    """Let SIGTERM end this process also in a container, until a command handles the signal itself.

    The first process of a container ignores signals that it does not handle. Kubernetes sends SIGTERM once,
    and a pod that misses it while it starts stays for its whole grace period.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
