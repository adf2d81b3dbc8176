"""Printing what a command found: a table for people, JSON or YAML for programs."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from edl_workflows.cli.options import OutputFormat


@dataclass(frozen=True)
class Table:
    """Rows of text under column heads."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


def emit(output: OutputFormat, data: Any, table: Table) -> None:
    """Print to stdout.

    Args:
        output: which form.
        data: for JSON and YAML; plain values.
        table: for people.
    """
    match output:
        case OutputFormat.JSON:
            typer.echo(json.dumps(data, indent=2, default=str))
        case OutputFormat.YAML:
            typer.echo(_yaml(json.loads(json.dumps(data, default=str))), nl=False)
        case OutputFormat.TABLE:
            _print_table(table)


def _yaml(data: Any) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Texts as PyYAML writes them: Hera, once imported, writes them otherwise for the whole process."""

    Plain.add_representer(str, yaml.representer.SafeRepresenter.represent_str)
    return yaml.dump(data, Dumper=Plain, sort_keys=False)


def _print_table(table: Table) -> None:
    """Columns as wide as their longest cell, as kubectl prints: greppable, no boxes, nothing cut."""
    lines = [[str(column).upper() for column in table.columns]]
    lines += [["" if cell is None else str(cell) for cell in row] for row in table.rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(table.columns))]
    for line in lines:
        typer.echo("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
