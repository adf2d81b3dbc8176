"""The root of `edl`: the table of all commands, and the exit codes of errors.

To add a command, add a row to `COMMANDS` and a module with a typer application named ``app`` (see
`cli.lazy`).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import typer

from edl_workflows.core import exceptions
from edl_workflows.pipelines.cli.lazy import Command, lazy_group
from edl_workflows.pipelines.cli.output import print_error, print_line, say

COMMANDS = (
    Command("local", "services.local", "The embedded cluster on this machine.", group=True, extra="local"),
    Command("run", "jobs.run", "Train with a Python script, without a manifest.", extra="local"),
    Command("submit", "jobs.submit", "Create jobs from their manifests."),
    Command("convert", "jobs.convert", "Convert a job's manifest to another version or kind."),
    Command("get", "jobs.get", "List jobs, or show one."),
    Command("top", "jobs.top", "Show how far jobs are, refreshed until Ctrl-C."),
    Command("cost", "jobs.cost", "Show what jobs have held of the cluster, and what was lost."),
    Command("describe", "jobs.job", "Show everything about a job."),
    Command("wait", "jobs.stage_commands", "Wait for a job's phase, step or condition."),
    Command("logs", "jobs.logs", "Print the logs of a job's nodes."),
    Command("timeline", "jobs.timeline", "Show the history of a job."),
    Command("scale", "jobs.stage_commands", "Change the number of nodes of a running job."),
    Command("migrate-ps", "jobs.stage_commands", "Replace parameter servers of a running job."),
    Command("checkpoint", "jobs.stage_commands", "Request a checkpoint from a running job."),
    Command("autoscale", "jobs.stage_commands", "Allow or forbid the autoscaler to change a job."),
    Command("plan", "jobs.plan", "Show what a job's optimizer would change now."),
    Command("suspend", "jobs.stage_commands", "Delete the pods of a job but keep its data position."),
    Command("resume", "jobs.stage_commands", "Continue a suspended job."),
    Command("delete", "jobs.job", "Delete a job and its pods."),
    Command("export", "jobs.export", "Write a checkpoint in a format that others read.", extra="tensorflow"),
    Command("backup", "backup", "Save jobs as files."),
    Command("restore", "backup", "Create the jobs of a backup."),
    Command("controller", "services.controller", "The controller of all job kinds.", group=True),
    Command("master", "services.master", "The master of one job.", group=True),
    Command("di-server", "services.di_server", "The HTTP API for programs of DIJobs.", group=True),
    Command(
        "brain", "services.brain", "Resource plans for all jobs of a cluster.", group=True, extra="brain"
    ),
    Command("simulate", "simulate", "Simulate how a scheduler would run a workload."),
    Command("install", "services.install", "Print the manifests of an installation."),
    Command("monitoring", "services.monitoring", "Write alert rules and dashboards as files."),
    Command("crds", "services.crds", "The CustomResourceDefinitions of the job kinds.", group=True),
    Command("argo", "argo.group", "The stages as steps of Argo Workflows.", group=True, extra="argo"),
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
        exceptions.JobFinishedError: 9,
        exceptions.EdlError: 1,
    }
)
"""Exit codes of errors. In addition, 0 means success, 1 any other failure, 2 also wrong usage, and 130
Ctrl-C."""


app = typer.Typer(
    name="edl",
    cls=lazy_group(COMMANDS, [("agent", AGENT_HELP)]),
    help="Elastic deep-learning jobs on Kubernetes, as stages of pipelines.",
    epilog="Exit codes: 0 success, 1 failure, 2 invalid input or usage, 3 not found, 4 conflict, 5 "
    "forbidden, 6 API not available, 7 the job failed, 8 timeout, "
    "9 the job had already succeeded.",
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
        arguments: the arguments after ``edl``.

    Returns:
        The exit code.
    """
    try:
        app(args=list(arguments), prog_name="edl")
    except exceptions.EdlError as error:
        print_error(error)
        return exit_code(error)
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("edl_workflows"):
            raise  # a bug, not a missing extra
        say(_missing_extra(arguments, error.name))
        return 1
    except SystemExit as end:  # typer exits with this on success and on wrong usage
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def _missing_extra(arguments: Sequence[str], module: str) -> str:
    extra = next((command.extra for command in COMMANDS if command.name in arguments[:1]), "controller")
    return f"edl: {module} is not installed, which this command needs: pip install 'edl-workflows[{extra}]'"


def exit_code(error: BaseException) -> int:
    """The exit code of an error: that of its nearest base class in `EXIT_CODES`."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)
