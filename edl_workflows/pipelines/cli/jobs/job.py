"""``edl describe|delete``: commands for one job; and functions that run stages for other commands."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import EdlError
from edl_workflows.pipelines.cli.jobs.completion import complete_job, complete_kind
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, print_error, print_line, say

if TYPE_CHECKING:
    from edl_workflows.core.jobs.kind import Kind as JobKind
    from edl_workflows.pipelines.stages.description import R, StageSpec
    from edl_workflows.pipelines.waiting.identity import StageIdentity
    from edl_workflows.pipelines.waiting.outputs import Outputs
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="Name of the job.", show_default=False, autocompletion=complete_job)
]
Kind = Annotated[str, typer.Option("--kind", help="Kind of the job.", autocompletion=complete_kind)]
OnlyKind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="Only jobs of this kind; by default of all kinds.",
        show_default=False,
        autocompletion=complete_kind,
    ),
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Whether to wait until the operation is done.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", help="Longest time to wait, in seconds.", min=0, show_default=False),
]
JOB = "ElasticJob"


def new_identity() -> "StageIdentity":
    """A unique identity for this call, which owns the objects that the call creates."""
    from edl_workflows.pipelines.waiting.identity import StageIdentity

    return StageIdentity.of_person("cli")


def run_with_progress(
    cluster: "Cluster", stage: "StageSpec[R]", request: "R", *, wait: bool, timeout: float | None
) -> "Outputs":
    """Begin a stage and, if `wait` is set, wait for its goal. Progress is printed to stderr.

    Raises:
        EdlError: the goal can't be reached.
    """
    from edl_workflows.pipelines.stages import driver
    from edl_workflows.pipelines.waiting.results import Failed, Skipped

    if wait:
        deadline = None if timeout is None else time.time() + timeout
        return driver.run_stage(cluster, stage, request, new_identity(), deadline, notify=say)
    handle = stage.begin(cluster, request, new_identity())
    now = driver.check_now(cluster, handle)
    if isinstance(now, Failed):
        raise now.error
    if isinstance(now, Skipped):
        say(f"skipped: {now.reason}")
    return now.outputs


def run_all(
    cluster: "Cluster",
    stage: "StageSpec[R]",
    requests: "Sequence[tuple[R, StageIdentity]]",
    done: str,
    *,
    wait: bool,
    timeout: float | None,
) -> "tuple[list[Outputs], list[EdlError]]":
    """Begin a stage for each request, then check or wait for each. One that fails keeps no other from it.

    Args:
        cluster: the API server.
        stage: the stage.
        requests: each with who begins it.
        done: what the stage does to a job, for messages: ``created``.
        wait: whether to wait for the goals.
        timeout: longest time for all together, in seconds.

    Returns:
        The outputs, and the errors.
    """
    from edl_workflows.pipelines.stages import driver
    from edl_workflows.pipelines.waiting.results import Failed
    from edl_workflows.runtime.kube.connect import ClusterSource

    deadline = None if timeout is None else time.time() + timeout
    source = ClusterSource.of(cluster)
    outputs: list[Outputs] = []
    errors: list[EdlError] = []
    begun = []
    for request, who in requests:
        try:
            begun.append(stage.begin(cluster, request, who))
        except EdlError as error:
            errors.append(error)
    for handle in begun:
        try:
            outcome = (
                driver.wait_for_goal(source, handle, deadline, say)
                if wait
                else driver.check_now(cluster, handle)
            )
        except EdlError as error:
            say(f"{handle} was {done}, but its state could not be read")
            errors.append(error)
            continue
        if isinstance(outcome, Failed):
            errors.append(outcome.error)
        else:
            outputs.append(outcome.outputs)
    return outputs, errors


def raise_all(errors: "Sequence[EdlError]") -> None:
    """Raise the first error, if there is one, after the others were printed."""
    for error in errors[1:]:
        print_error(error)
    if errors:
        raise errors[0]


def show_outputs(outputs: "Outputs", output: OutputFormat) -> None:
    """Print the outputs of a stage."""
    data = outputs.to_dict()
    shown = {**data, "replicas": {role: ready for role, ready in outputs.replicas.items() if ready}}
    rows = [(key, _as_text(value)) for key, value in shown.items() if value not in ("", {}, [])]
    emit(output, data, Table(("field", "value"), rows))


def _as_text(value: object) -> object:
    """Format a map as ``worker 2 ps 1`` and a list as ``one; another``; return other values unchanged."""
    if isinstance(value, list):
        return "; ".join(str(_as_text(inner)) for inner in value)
    if not isinstance(value, dict):
        return value
    return " ".join(f"{key} {_as_text(inner)}" for key, inner in value.items())


@app.command()
@expand_options
def describe(
    name: Name,
    kind: Kind = JOB,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show everything about a job: conditions, pods, plans with their steps, and recent events. With `--kind
    ScalePlan`, show a plan."""
    from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
    from edl_workflows.pipelines.cli.jobs.description import (
        collect_description,
        description_lines,
        plan_lines,
        read_plan,
    )

    cluster = target.connect()
    if kind == SCALE_PLAN:
        plan = read_plan(cluster, name)
        data, lines = plan.to_dict(), plan_lines(plan)
    else:
        about = collect_description(cluster, kind, name)
        data, lines = about.to_data(), description_lines(about)
    if output is OutputFormat.TABLE:
        for line in lines:
            print_line(line)
    else:
        emit(output, data, Table((), ()))


@app.command()
@expand_options
def delete(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="Names of jobs.", show_default=False, autocompletion=complete_job
        ),
    ],
    kind: Kind = JOB,
    wait: Wait = True,
    timeout: Timeout = None,
    *,
    target: ClusterFlags,
) -> None:
    """Delete jobs and all their pods. A name that does not exist is an error, and the others are deleted.
    With `--kind ScalePlan`, delete plans, which cancels them: their jobs get back the nodes that they had,
    unless a plan has ended or the new nodes have taken over."""
    from edl_workflows.core.jobs.kinds import kind_of
    from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest

    cluster, job_kind = target.connect(), kind_of(kind)
    requests, missing = [], []
    for name in dict.fromkeys(names):
        try:
            _check_exists(cluster, job_kind, name)
            requests.append((DeleteRequest.of({"name": name, "kind": kind}), new_identity()))
        except EdlError as error:
            missing.append(error)
    outputs, errors = run_all(cluster, DELETE, requests, "deleted", wait=wait, timeout=timeout)
    for deleted in outputs:
        print_line(f"{kind} {deleted.namespace}/{deleted.name} deleted")
    raise_all(missing + errors)


def _check_exists(cluster: "Cluster", kind: "JobKind", name: str) -> None:
    """Raise an error if the name is mistyped."""
    from edl_workflows.pipelines.cli.jobs.listing import read_job
    from edl_workflows.runtime.kube import client

    if kind.view is None:
        client.get(cluster, kind.source.api, name)
    else:
        read_job(cluster, kind, name)
