"""The commands of stages, such as ``edl scale``.

`stage_command` creates most commands from the description of their stage. `scale` and `migrate_ps` are
written by hand, because their arguments are shorter than their requests.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer
from annotated_types import Ge

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.jobs.completion import complete_job, complete_kind, complete_role
from edl_workflows.pipelines.cli.jobs.job import (
    JOB,
    Kind,
    Name,
    Timeout,
    Wait,
    run_with_progress,
    show_outputs,
)
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.pipelines.stages.description import IF_FINISHED, RequestField, StageSpec
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS
from edl_workflows.pipelines.stages.scale import SCALE
from edl_workflows.pipelines.waiting.goals import IfFinished

app = typer.Typer(no_args_is_help=True)

_COMPLETIONS = {"name": complete_job, "kind": complete_kind}


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@dataclass(frozen=True)
class StageFlags(ClusterFlags):
    """Options of all commands that run a stage."""

    wait: Wait = True
    timeout: Timeout = None
    output: Output = OutputFormat.TABLE


_SHARED = {
    field.name: _parameter(
        field.name, get_type_hints(StageFlags, include_extras=True)[field.name], field.default
    )
    for field in fields(StageFlags)
}
_LEFT_OUT = {"optional": (), "always": ("wait",), "never": ("wait", "timeout")}


def stage_command(stage: StageSpec[Any]) -> Callable[..., None]:
    """Create the function of a stage's command. Typer derives arguments and options from its signature."""
    offered = [field for field in stage.fields() if field.argument.cli is not None]
    shared = [name for name in _SHARED if name not in _LEFT_OUT[stage.waits]]

    def command(**given: Any) -> None:
        values = {field.name: given[_identifier(field)] for field in offered}
        execute_stage(stage, values, StageFlags(**{name: given[name] for name in shared}))

    parameters = [_parameter(_identifier(field), _annotation(field), _default(field)) for field in offered]
    parameters += [_SHARED[name] for name in shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = stage.summary
    return command


def execute_stage(stage: StageSpec[Any], values: dict[str, Any], flags: StageFlags) -> None:
    """Run a stage and print its outputs.

    Args:
        stage: the stage.
        values: fields of its request; None means the default of a field.
        flags: the options of the command.

    Raises:
        EdlError: the stage failed.
    """
    request = stage.request.of({name: value for name, value in values.items() if value is not None})
    show_outputs(
        run_with_progress(flags.connect(), stage, request, wait=flags.wait, timeout=flags.timeout),
        flags.output,
    )


def _identifier(field: RequestField) -> str:
    return (field.argument.cli_name or field.name) if field.argument.cli == "argument" else field.name


def _annotation(field: RequestField) -> Any:
    """The type and the help of a field, as typer reads them."""
    settings: dict[str, Any] = {"help": field.argument.help}
    if (completion := _COMPLETIONS.get(_identifier(field))) is not None:
        settings["autocompletion"] = completion
    if least := [bound.ge for bound in field.info.metadata if isinstance(bound, Ge)]:
        settings["min"] = least[0]
    if _default(field) in (None, inspect.Parameter.empty):
        settings["show_default"] = False
    kind: Any = field.info.annotation
    if field.shape == "list":
        kind = list[kind.__args__[0]] | None
    if field.argument.cli == "argument":
        return Annotated[kind, typer.Argument(**settings)]
    names = (field.argument.cli_name,) if field.argument.cli_name else ()
    return Annotated[kind, typer.Option(*names, **settings)]


def _default(field: RequestField) -> Any:
    if field.required:
        return inspect.Parameter.empty
    if field.argument.cli_default is not None:
        return field.argument.cli_default
    return None if field.shape == "list" else field.default


for _stage in STAGES:
    if _stage not in (SCALE, MIGRATE_PS):  # written by hand below
        app.command(_stage.name)(stage_command(_stage))

Cpu = Annotated[str | None, typer.Option(help="CPU of new nodes, such as 500m or 2.", show_default=False)]
Memory = Annotated[str | None, typer.Option(help="Memory of new nodes, such as 4Gi.", show_default=False)]


IfFinishedOption = Annotated[IfFinished, typer.Option(help=IF_FINISHED.help)]


def _size(cpu: str | None, memory: str | None) -> dict[str, str]:
    return {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}


@app.command(SCALE.name, help=SCALE.summary)
@expand_options
def scale(
    name: Name,
    replicas: Annotated[
        list[str],
        typer.Argument(
            help="Wanted number of nodes by role, such as worker=3 ps=2.",
            show_default=False,
            autocompletion=complete_role,
        ),
    ],
    cpu: Cpu = None,
    memory: Memory = None,
    kind: Kind = JOB,
    if_finished: IfFinishedOption = IfFinished.FAIL,
    *,
    flags: StageFlags,
) -> None:
    """Counts such as ``worker=3`` make up the map of the request. All new nodes get the same size."""
    size = _size(cpu, memory)
    replica_specs = {
        role: {"replicas": count, "resource": size} for role, count in map(_parse_count, replicas)
    }
    values = {"job": name, "kind": kind, "replicas": replica_specs, "if_finished": if_finished}
    execute_stage(SCALE, values, flags)


def _parse_count(text: str) -> tuple[str, int]:
    role, _, count = text.partition("=")
    if not count.isdecimal():
        raise InvalidError(f"{text!r}: give a role and a number, such as worker=3")
    return role, int(count)


@app.command(MIGRATE_PS.name, help=MIGRATE_PS.summary)
@expand_options
def migrate_ps(
    name: Name,
    rank: Annotated[
        list[int] | None,
        typer.Option(
            help="Rank of a parameter server to replace by one with --cpu and --memory. May be repeated."
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Wanted number of parameter servers.", min=1, show_default=False)
    ] = None,
    cpu: Cpu = None,
    memory: Memory = None,
    kind: Kind = JOB,
    if_finished: IfFinishedOption = IfFinished.FAIL,
    *,
    flags: StageFlags,
) -> None:
    """Replaced and added parameter servers get the same size."""
    size = _size(cpu, memory)
    migrate = dict.fromkeys(rank or (), size)
    values = {"job": name, "kind": kind, "replicas": replicas, "resource": size, "migrate": migrate}
    execute_stage(MIGRATE_PS, {**values, "if_finished": if_finished}, flags)
