r"""Prints the output of commands: a table for people, JSON or YAML for programs. All commands print with this
module.

Objects and logs contain text from pods and other users. Control characters in it could manipulate a terminal,
so they are escaped as ``\x1b``. JSON and YAML have escapes of their own.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.pipelines.cli.options import OutputFormat

if TYPE_CHECKING:
    from rich.live import Live


@dataclass(frozen=True)
class Table:
    """Rows of text with column headers."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


def print_line(text: str = "") -> None:
    """Print one line to stdout, with control characters escaped."""
    typer.echo(escape_controls(text, keep="\t"))


def say(message: str) -> None:
    """Print one line to stderr, for people rather than programs."""
    typer.echo(escape_controls(message, keep="\t"), err=True)


def print_error(error: object) -> None:
    """Print an error to stderr. Its further lines, such as the last ones of a pod, are indented, so that none
    can pass for a line of this program."""
    first, *more = str(error).split("\n")
    say(f"edl: {first}")
    for line in more:
        say(f"  {line}")


def print_document(text: str) -> None:
    """Print JSON or YAML to stdout unchanged. Its serializer has escaped control characters."""
    typer.echo(text, nl=False)


def print_log(text: str, render: Callable[[str], str] = str) -> None:
    """Print the log of a container: unchanged to a file or pipe, with control characters escaped to a
    terminal.

    Args:
        text: whole lines.
        render: converts a line to the text that a terminal shows.
    """
    shown = text
    if sys.stdout.isatty():
        shown = escape_controls("\n".join(map(render, text.split("\n"))), keep="\n\t\r")
    typer.echo(shown, nl=False, color=True)  # otherwise typer would remove colours from piped output


def print_styled(line: Iterable[tuple[str, str]]) -> None:
    """Print one line to stdout.

    Args:
        line: pieces of text, each with a style of rich. Without colours only the text is printed.
    """
    from rich.console import Console
    from rich.text import Text

    pieces = ((escape_controls(text, keep="\t"), style) for text, style in line)
    Console(soft_wrap=True, highlight=False).print(Text.assemble(*pieces))


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def open_screen() -> "Live":
    """A part of the terminal that the caller draws again and again. The caller escapes control characters."""
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(highlight=False), auto_refresh=False)


def emit(output: OutputFormat, data: Any, table: Table) -> None:
    """Print to stdout.

    Args:
        output: the format.
        data: plain values for JSON and YAML.
        table: the table for people.
    """
    match output:
        case OutputFormat.JSON:
            print_document(json.dumps(data, indent=2, default=str) + "\n")
        case OutputFormat.YAML:
            print_document(format_yaml(data))
        case OutputFormat.TABLE:
            _print_table(table)


def format_yaml(data: Any) -> str:
    """Plain values as YAML; others as their texts."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes strings in PyYAML's default style, which Hera changes for the whole process on import."""

    Plain.add_representer(str, yaml.representer.SafeRepresenter.represent_str)
    return yaml.dump(json.loads(json.dumps(data, default=str)), Dumper=Plain, sort_keys=False)


def _print_table(table: Table) -> None:
    """Print columns as wide as their longest cell, as kubectl does: without boxes and without truncation."""
    lines = [[str(column).upper() for column in table.columns]]
    lines += [
        ["" if cell is None else escape_controls(str(cell), keep="") for cell in row] for row in table.rows
    ]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    for line in lines:
        print_line("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
