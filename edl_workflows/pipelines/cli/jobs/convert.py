"""``edl convert``: converts a job's manifest to another version or kind."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.cli.jobs.manifests import read_manifest
from edl_workflows.pipelines.cli.options import OutputFormat
from edl_workflows.pipelines.cli.output import Table, emit, say

app = typer.Typer(no_args_is_help=True)

_TARGETS = tuple(dict.fromkeys(target for kind in KINDS for target, _ in kind.conversions))
_DEFAULT_TARGET = "ElasticJob"

if TYPE_CHECKING:
    Target = str
else:  # typer shows the members of an Enum as choices
    Target = StrEnum("Target", {target: target for target in _TARGETS})


@app.command()
def convert(
    manifest: Annotated[
        Path, typer.Argument(help="YAML or JSON file of one job; - for standard input.", allow_dash=True)
    ],
    to: Annotated[Target, typer.Option("--to", help="Kind or version to convert to.")] = _DEFAULT_TARGET,
) -> None:
    """Print a job's manifest, converted to another version or kind. Fields that can't be converted are listed
    on stderr."""
    document = read_manifest(manifest)
    ways = {kind.name: (kind, dict(kind.conversions)) for kind in KINDS if kind.conversions}
    name = str(document.get("kind"))
    if name not in ways:
        raise InvalidError(f"kind: {name} can't be converted; {', '.join(ways)} can")
    kind, targets = ways[name]
    if to not in targets:
        raise InvalidError(f"--to: {name} can be converted to {' or '.join(targets)}, not to {to}")
    converted = targets[to](kind.model.parse(document))
    for note in converted.notes:
        say(note)
    emit(OutputFormat.YAML, converted.manifest, Table((), ()))
