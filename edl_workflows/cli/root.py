"""The root of `edl`: which commands there are, where each lies, and what an error means to a shell.

A new command is a row of `COMMANDS` and a module with a typer application called ``app`` (see `cli.lazy`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import typer

from edl_workflows import exceptions
from edl_workflows.cli.lazy import Command, lazy_group
from edl_workflows.cli.output import print_line, say

COMMANDS = (
    Command(
        "local", "edl_workflows.cli.local", "The embedded cluster of this machine.", group=True, extra="local"
    ),
    Command("submit", "edl_workflows.cli.submit", "Create jobs from their manifests."),
    Command(
        "convert", "edl_workflows.cli.convert", "A job's manifest in another version, or as another kind."
    ),
    Command("get", "edl_workflows.cli.listing", "List jobs, or show one."),
    Command("describe", "edl_workflows.cli.jobs", "All about one job."),
    Command("wait", "edl_workflows.cli.stage_commands", "Wait for a job's phase, step or condition."),
    Command("logs", "edl_workflows.cli.jobs", "What a node of a job has printed."),
    Command("timeline", "edl_workflows.cli.timeline", "What happened to a job over time."),
    Command("scale", "edl_workflows.cli.stage_commands", "Change how many nodes a running job has."),
    Command(
        "migrate-ps", "edl_workflows.cli.stage_commands", "Move a running job to other parameter servers."
    ),
    Command("checkpoint", "edl_workflows.cli.stage_commands", "Ask a running job for a checkpoint."),
    Command(
        "autoscale", "edl_workflows.cli.stage_commands", "Let the autoscaler change a job, or no longer."
    ),
    Command("plan", "edl_workflows.cli.plan", "What a job's optimizer would change now."),
    Command("suspend", "edl_workflows.cli.stage_commands", "Free a job's pods; its data position stays."),
    Command("resume", "edl_workflows.cli.stage_commands", "Let a suspended job go on."),
    Command("delete", "edl_workflows.cli.jobs", "Delete a job and its pods."),
    Command("controller", "edl_workflows.cli.controller", "The controller of all job kinds.", group=True),
    Command("master", "edl_workflows.cli.master", "The master of one job.", group=True),
    Command("di-server", "edl_workflows.cli.di_server", "The HTTP API for programs of DIJobs.", group=True),
    Command(
        "brain",
        "edl_workflows.cli.brain",
        "Plans for the jobs of a whole cluster.",
        group=True,
        extra="brain",
    ),
    Command("simulate", "edl_workflows.cli.simulate", "What a scheduler would have done with a workload."),
    Command("install", "edl_workflows.cli.install", "The manifests of an installation."),
    Command("crds", "edl_workflows.cli.crds", "The CustomResourceDefinitions of the job kinds.", group=True),
    Command(
        "argo", "edl_workflows.cli.argo", "The stages as steps of Argo Workflows.", group=True, extra="argo"
    ),
)

AGENT_HELP = "The agent in a training pod; see `edl agent run --help`."

EXIT_CODES: Mapping[type[BaseException], int] = MappingProxyType(
    {
        exceptions.InvalidError: 2,
        exceptions.NotFoundError: 3,
        exceptions.ConflictError: 4,
        exceptions.ForbiddenError: 5,
        exceptions.UnavailableError: 6,
        exceptions.JobFailedError: 7,
        exceptions.JobDisappearedError: 7,
        exceptions.StageTimeoutError: 8,
        exceptions.EdlError: 1,
    }
)
"""What a shell sees. 0 is success, 1 any other failure, 2 also wrong usage, 130 Ctrl-C."""


app = typer.Typer(
    name="edl",
    cls=lazy_group(COMMANDS, [("agent", AGENT_HELP)]),
    help="Elastic deep-learning jobs on Kubernetes, as stages of pipelines.",
    epilog="Exit codes: 0 done, 1 failure, 2 invalid input or usage, 3 not found, 4 conflict, 5 forbidden, "
    "6 API not available, 7 the job failed, 8 time-out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from edl_workflows import __version__

        print_line(f"edl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of `edl` itself."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line.

    Args:
        arguments: what follows ``edl``.

    Returns:
        The exit code.
    """
    try:
        app(args=list(arguments), prog_name="edl")
    except exceptions.EdlError as error:
        say(f"edl: {error}")
        return exit_code(error)
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("edl_workflows"):
            raise  # a defect, not a missing extra
        say(_missing_extra(arguments, error.name))
        return 1
    except SystemExit as end:  # how typer ends, well or with wrong usage
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _missing_extra(arguments: Sequence[str], module: str) -> str:
    extra = next((row.extra for row in COMMANDS if row.name in arguments[:1]), "controller")
    return f"edl: {module} is not installed, which this command needs: pip install 'edl-workflows[{extra}]'"


def exit_code(error: BaseException) -> int:
    """The exit code of an error: that of its nearest listed ancestor."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)
