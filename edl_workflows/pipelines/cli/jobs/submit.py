"""``edl submit``: creates jobs from manifests, or shows what would be created."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.pipelines.cli.jobs.job import (
    Timeout,
    Wait,
    new_identity,
    raise_all,
    run_all,
    show_outputs,
)
from edl_workflows.pipelines.cli.jobs.manifests import read_manifests
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, say

if TYPE_CHECKING:
    from edl_workflows.pipelines.stages.submit import SubmitRequest
    from edl_workflows.pipelines.waiting.outputs import Outputs

app = typer.Typer(no_args_is_help=True)


class DryRun(StrEnum):
    """Where a job is checked that is not created."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


@app.command()
@expand_options
def submit(
    manifests: Annotated[
        list[Path] | None,
        typer.Argument(
            help="YAML or JSON files with jobs, folders with such files, or - for standard input.",
            allow_dash=True,
            show_default=False,
        ),
    ] = None,
    filename: Annotated[
        list[Path] | None,
        typer.Option(
            "--filename", "-f", help="The same as an option, as in kubectl. May be repeated.", allow_dash=True
        ),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Also read subfolders.")] = False,
    dry_run: Annotated[
        DryRun,
        typer.Option(
            help="Create nothing. client: check the manifests locally, without a cluster; server: let the "
            "API server check them too. Prints what would be created; use -o yaml or -o json for "
            "complete manifests."
        ),
    ] = DryRun.NONE,
    wait: Wait = False,
    timeout: Timeout = None,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create jobs from manifests. All manifests are checked before the first job is created. With --wait,
    wait until the jobs have succeeded."""
    from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest, complete_manifest
    from edl_workflows.pipelines.waiting.identity import StageIdentity

    paths = [*(manifests or ()), *(filename or ())]
    if not paths:
        raise InvalidError("no manifests: give a file, a folder, or - for standard input")
    if wait and dry_run is not DryRun.NONE:
        raise InvalidError("--wait: a dry run creates no jobs to wait for; leave out --wait or --dry-run")
    documents = read_manifests(paths, recursive=recursive)
    requests = [SubmitRequest(manifest=document, namespace=target.namespace or "") for document in documents]
    if dry_run is not DryRun.NONE:
        _show_manifests(_check_jobs(requests, target, dry_run), output, dry_run)
        return
    cluster = target.connect()
    jobs = [(request, StageIdentity.of_person("cli", say)) for request in requests]
    for request, who in jobs:
        complete_manifest(request, who, cluster.namespace)  # raises before anything is created
    outputs, errors = run_all(cluster, SUBMIT, jobs, "created", wait=wait, timeout=timeout)
    _show_outputs(outputs, output)
    raise_all(errors)


def _check_jobs(
    requests: "Sequence[SubmitRequest]", target: ClusterFlags, dry_run: DryRun
) -> list[dict[str, Any]]:
    """Check jobs without creating them. Return the manifests that would be created."""
    from edl_workflows.pipelines.stages.submit import complete_manifest

    if dry_run is DryRun.CLIENT:
        where = target.namespace or _context_namespace(target)
        return [complete_manifest(request, new_identity(), where) for request in requests]
    from edl_workflows.runtime.kube import client

    cluster = target.connect()
    complete = [complete_manifest(request, new_identity(), cluster.namespace) for request in requests]
    return [client.create(cluster, manifest, dry_run=True) for manifest in complete]


def _context_namespace(target: ClusterFlags) -> str:
    """Namespace of the kubeconfig's context, or ``default``, since a client-side dry run needs no cluster."""
    try:
        return target.connect().namespace
    except EdlError:
        return "default"


def _show_outputs(outputs: "Sequence[Outputs]", output: OutputFormat) -> None:
    if len(outputs) == 1:
        show_outputs(outputs[0], output)
    if len(outputs) < 2:
        return
    rows = [(job.namespace, job.name, job.kind, job.phase) for job in outputs]
    emit(output, [job.to_dict() for job in outputs], Table(("namespace", "name", "kind", "phase"), rows))


def _show_manifests(manifests: Sequence[dict[str, Any]], output: OutputFormat, dry_run: DryRun) -> None:
    """Print the manifests of jobs that would be created."""
    rows = [
        (
            manifest["metadata"]["namespace"],
            manifest["metadata"]["name"],
            manifest["kind"],
            f"valid ({dry_run} dry run)",
        )
        for manifest in manifests
    ]
    data: Any = (
        manifests[0]
        if len(manifests) == 1
        else {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
    )
    emit(output, data, Table(("namespace", "name", "kind", "result"), rows))
