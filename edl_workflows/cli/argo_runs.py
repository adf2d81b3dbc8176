"""``edl argo submit|watch``: start a workflow from a template and follow it. Needs no Argo server."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.cli.argo_build import Parameters, values
from edl_workflows.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.cli.output import Table, emit, print_line, say
from edl_workflows.exceptions import JobFailedError, NotFoundError, StageTimeoutError

if TYPE_CHECKING:
    from edl_workflows.kube.connect import Cluster
    from edl_workflows.kube.resources import Object

app = typer.Typer(no_args_is_help=True)

Timeout = Annotated[
    float | None, typer.Option("--timeout", help="Seconds to watch at most.", min=0, show_default=False)
]


@app.command()
@expand_options
def submit(
    template: Annotated[str, typer.Argument(help="Name of the WorkflowTemplate.", show_default=False)],
    parameter: Parameters = None,
    name: Annotated[
        str,
        typer.Option(help="The workflow's name; default one that the server makes up.", show_default=False),
    ] = "",
    cluster_scope: Annotated[
        bool, typer.Option("--cluster-scope", help="The template is a ClusterWorkflowTemplate.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it until it has ended.")] = False,
    *,
    target: ClusterFlags,
) -> None:
    """Start a workflow from a template; prints its name."""
    from edl_workflows.argo import runs

    cluster = target.connect()
    made = runs.submit_workflow(
        cluster, runs.WorkflowSubmission(template, values(parameter), name, cluster_scope)
    )
    print_line(made["metadata"]["name"])
    if watch:
        _conclude(_follow(cluster, made["metadata"]["name"], None))


@app.command()
@expand_options
def watch(
    name: Annotated[str, typer.Argument(help="The workflow's name.", show_default=False)],
    timeout: Timeout = None,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print a line for each change of a step until the workflow has ended, then its outputs.

    Exit code 0 if it succeeded, 7 if it failed, 8 at the time-out.
    """
    from edl_workflows.argo import runs

    cluster = target.connect()
    ended = _follow(cluster, name, timeout)
    found = runs.outputs_of(ended)
    emit(output, found, Table(("output", "value"), [(key, value) for key, value in found.items() if value]))
    _conclude(ended)


def _follow(cluster: "Cluster", name: str, timeout: float | None) -> "Object":
    """The workflow when it has ended; meanwhile its steps' changes go to stderr.

    Raises:
        NotFoundError: there is no such workflow, or it was deleted.
        StageTimeoutError: it has not ended in time.
    """
    from edl_workflows.argo import runs
    from edl_workflows.argo.api import WORKFLOWS
    from edl_workflows.kube import client
    from edl_workflows.kube.connect import ClusterSource
    from edl_workflows.kube.resources import Scope
    from edl_workflows.kube.shared import SHARED

    client.get(cluster, WORKFLOWS, name)  # report a mistyped name
    deadline = None if timeout is None else time.monotonic() + timeout
    scope = Scope(WORKFLOWS, cluster.namespace, field_selector=f"metadata.name={name}")
    told: dict[str, runs.StepState] = {}
    with SHARED.blocking_states(ClusterSource.of(cluster), scope, name) as states:
        while True:
            try:
                workflow = states.next(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError as error:
                message = f"workflow {cluster.namespace}/{name} has not ended in {timeout:g} s; it goes on"
                raise StageTimeoutError(message) from error
            if workflow is None:
                raise NotFoundError(f"workflow {cluster.namespace}/{name} was deleted")
            for line in runs.changed_steps(workflow, told):
                say(line)
            if runs.phase_of(workflow) in runs.ENDED:
                return workflow


def _conclude(workflow: "Object") -> None:
    from edl_workflows.argo import runs

    phase, metadata = runs.phase_of(workflow), workflow["metadata"]
    where = f"workflow {metadata['namespace']}/{metadata['name']}"
    if phase != "Succeeded":
        message = workflow["status"].get("message") or "no reason given"
        raise JobFailedError(f"{where} ended in phase {phase}: {message}")
    say(f"{where} succeeded")
