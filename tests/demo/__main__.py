"""``python -m tests.demo``, which ``make demo`` runs."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from edl_workflows.core.exceptions import EdlError
from tests.demo.run import DemoOptions, run

Framework = Literal["tensorflow", "torch"]


def main(
    output: Annotated[Path, typer.Option(help="Folder for the report and all state.")] = Path("demo-output"),
    dags: Annotated[Path, typer.Option(help="Folder with the example DAGs.")] = Path("dags"),
    framework: Annotated[Framework, typer.Option(help="What trains.")] = "tensorflow",
    python: Annotated[
        Path, typer.Option(help="Interpreter of the training containers; it has the framework.")
    ] = Path(sys.executable),
) -> None:
    """Train a real elastic job through an Airflow pipeline on this machine."""
    # Clean-up is in `finally` blocks, so SIGTERM must raise an exception as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    try:
        # `absolute` rather than `resolve`: a virtual environment's `python` links to an interpreter without
        # its packages.
        options = DemoOptions(output.resolve(), dags.resolve(), framework, python.absolute())
        succeeded = run(options, console)
    except EdlError as error:
        console.print(f"The demo failed: {error}", style="bold red", soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        console.print("Stopped. All processes of the demo have been ended.")
        raise typer.Exit(130) from None
    raise typer.Exit(0 if succeeded else 1)


if __name__ == "__main__":
    typer.run(main)
