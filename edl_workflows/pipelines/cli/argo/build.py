"""``edl argo build``: writes the WorkflowTemplates as YAML."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.options import Namespace
from edl_workflows.pipelines.cli.output import print_document, print_line

app = typer.Typer(no_args_is_help=True)


class WaitingChoice(StrEnum):
    """How steps wait."""

    RESOURCE = "resource"
    PLUGIN = "plugin"


Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--parameter",
        "-p",
        help="Value of a parameter: name=value or name=@FILE. May be repeated.",
        show_default=False,
    ),
]


def parse_parameters(given: list[str] | None) -> dict[str, str]:
    """Parse the parameters of a command line.

    Raises:
        InvalidError: a parameter has no value, or its file can't be read.
    """
    parameters = {}
    for parameter in given or ():
        name, sign, value = parameter.partition("=")
        if not (name and sign):
            raise InvalidError(f"{parameter!r}: write a parameter as name=value or name=@FILE")
        parameters[name] = _file(value[1:]) if value.startswith("@") else value
    return parameters


def _file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"can't read the parameter file {path}: {error}") from error


@app.command()
def build(
    template: Annotated[
        list[str] | None,
        typer.Argument(help="Templates to write; by default all that need no values.", show_default=False),
    ] = None,
    waiting: Annotated[
        WaitingChoice,
        typer.Option(
            help="How steps wait. resource: pods that poll, with any Argo; plugin: tasks of `edl argo "
            "agent`, without pods."
        ),
    ] = WaitingChoice.RESOURCE,
    cluster_scope: Annotated[
        bool,
        typer.Option("--cluster-scope", help="Write ClusterWorkflowTemplates instead of WorkflowTemplates."),
    ] = False,
    parameter: Parameters = None,
    from_event: Annotated[
        list[str] | None,
        typer.Option(
            "--from-event",
            help="Parameter that an event's body may set in `elastic-retrain-events`. May be repeated. "
            "Whoever may set `spec`, `image`, `evaluate`, `promote` or `pod-spec-patch` can run any pod.",
            show_default=False,
        ),
    ] = None,
    namespace: Namespace = None,
    list_names: Annotated[bool, typer.Option("--list", help="Print the names of all templates.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; by default standard output.", show_default=False),
    ] = None,
) -> None:
    """Write WorkflowTemplates as YAML: `edl argo build | kubectl apply --server-side -f -`."""
    from edl_workflows.pipelines.argo.templates import catalog
    from edl_workflows.pipelines.argo.templates.serializer import to_yaml
    from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions

    if list_names:
        for product in catalog.PRODUCTS:
            print_line(product.name)
        return
    options = TemplateOptions(
        waiting.value, cluster_scope, parse_parameters(parameter), tuple(from_event or ())
    )
    text = to_yaml(catalog.build_manifests(template or (), options, namespace or "default"))
    if output is None:
        print_document(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"can't write {output}: {error}") from error
