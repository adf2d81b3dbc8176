"""`edl`, the command line: wiring only, one file a command group. Nothing is imported before it is asked
for."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `edl`.

    Args:
        argv: what follows ``edl``; default this process's.

    Returns:
        The exit code, see `edl_workflows.cli.root.EXIT_CODES`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["agent"]:
        # A training image carries the base install only: no typer, no rich.
        from edl_workflows.agent.__main__ import main as agent

        return agent(arguments[1:])
    try:
        from edl_workflows.cli.root import run
    except ModuleNotFoundError as error:
        print(  # noqa: T201 - a command line speaks
            f"edl: {error.name} is not installed; all commands but `edl agent` need it: "
            "pip install 'edl-workflows[controller]'",
            file=sys.stderr,
        )
        return 1
    return run(arguments)
