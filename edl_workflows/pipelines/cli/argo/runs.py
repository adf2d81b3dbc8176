"""``edl argo submit|watch``: starts a workflow from a template and follows it, without an Argo server."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import JobFailedError, NotFoundError, StageTimeoutError
from edl_workflows.pipelines.cli.argo.build import Parameters, parse_parameters
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, print_line, say

if TYPE_CHECKING:
    from edl_workflows.runtime.kube.connect import Cluster
    from edl_workflows.runtime.kube.resources import Object

app = typer.Typer(no_args_is_help=True)

Timeout = Annotated[
    float | None,
    typer.Option("--timeout", help="Longest time to watch, in seconds.", min=0, show_default=False),
]


@app.command()
@expand_options
def submit(
    template: Annotated[str, typer.Argument(help="Name of the WorkflowTemplate.", show_default=False)],
    parameter: Parameters = None,
    name: Annotated[
        str,
        typer.Option(help="Name of the workflow; by default the server generates one.", show_default=False),
    ] = "",
    cluster_scope: Annotated[
        bool, typer.Option("--cluster-scope", help="Use a ClusterWorkflowTemplate.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the workflow until it ends.")] = False,
    *,
    target: ClusterFlags,
) -> None:
    """Start a workflow from a template and print its name."""
    from edl_workflows.pipelines.argo import runs

    cluster = target.connect()
    made = runs.submit_workflow(
        cluster, runs.WorkflowSubmission(template, parse_parameters(parameter), name, cluster_scope)
    )
    print_line(made["metadata"]["name"])
    if watch:
        _conclude(_follow(cluster, made["metadata"]["name"], None))


@app.command()
@expand_options
def watch(
    name: Annotated[str, typer.Argument(help="Name of the workflow.", show_default=False)],
    timeout: Timeout = None,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Print a line for each change of a step until the workflow ends, then its outputs.

    Exits with code 0 if the workflow succeeded, 7 if it failed, and 8 on timeout.
    """
    from edl_workflows.pipelines.argo import runs

    cluster = target.connect()
    ended = _follow(cluster, name, timeout)
    outputs = runs.outputs_of(ended)
    emit(
        output, outputs, Table(("output", "value"), [(key, value) for key, value in outputs.items() if value])
    )
    _conclude(ended)


def _follow(cluster: "Cluster", name: str, timeout: float | None) -> "Object":
    """Wait until a workflow ends, and print changes of its steps to stderr. Return the workflow.

    Raises:
        NotFoundError: the workflow does not exist, or was deleted.
        StageTimeoutError: the workflow did not end in time.
    """
    from edl_workflows.pipelines.argo import runs
    from edl_workflows.pipelines.argo.api import WORKFLOWS
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.connect import ClusterSource
    from edl_workflows.runtime.kube.resources import Scope
    from edl_workflows.runtime.kube.shared import SHARED, ThreadWaiting, run_blocking

    client.get(cluster, WORKFLOWS, name)  # fails if the name is mistyped
    deadline = None if timeout is None else time.monotonic() + timeout
    scope = Scope(WORKFLOWS, cluster.namespace, field_selector=f"metadata.name={name}")
    reported_states: dict[str, runs.StepState] = {}
    with SHARED.states(ClusterSource.of(cluster), scope, name, ThreadWaiting()) as states:
        while True:
            try:
                seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
                workflow = run_blocking(states.next(seconds))
            except TimeoutError as error:
                where = f"workflow {cluster.namespace}/{name}"
                message = f"{where} has not ended within {timeout:g} s; it continues to run"
                raise StageTimeoutError(message) from error
            if workflow is None:
                raise NotFoundError(f"workflow {cluster.namespace}/{name} was deleted")
            for line in runs.changed_steps(workflow, reported_states):
                say(line)
            if runs.phase_of(workflow) in runs.ENDED:
                return workflow


def _conclude(workflow: "Object") -> None:
    from edl_workflows.pipelines.argo import runs

    phase, metadata = runs.phase_of(workflow), workflow["metadata"]
    where = f"workflow {metadata['namespace']}/{metadata['name']}"
    if phase != "Succeeded":
        message = workflow["status"].get("message") or "no reason given"
        raise JobFailedError(f"{where} ended in phase {phase}: {message}")
    say(f"{where} succeeded")
