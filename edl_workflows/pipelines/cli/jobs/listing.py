"""``edl get``: lists jobs of one or all kinds; and formats properties of jobs for other commands."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.exceptions import EdlError, ForbiddenError, InvalidError, NotFoundError
from edl_workflows.core.jobs.kind import INVALID_SPEC, Kind
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.core.protocol.metrics import describe_metrics
from edl_workflows.pipelines.cli.jobs.completion import complete_job, complete_kind
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit

if TYPE_CHECKING:
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(no_args_is_help=True)

LISTED_METRICS = 2
"""Most metrics that `edl get` prints; if a job has more, only their number is printed."""


@dataclass(frozen=True)
class ListedJob:
    """A job: its manifest and its view."""

    manifest: dict[str, Any]
    view: JobView


@app.command()
@expand_options
def get(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a job; by default all.", show_default=False, autocompletion=complete_job
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Only jobs of this kind; by default of all kinds.",
            show_default=False,
            autocompletion=complete_kind,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List the jobs of all namespaces.")
    ] = False,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List jobs, or show one: phase, replicas, progress, age."""
    from edl_workflows.runtime.kube.resources import ALL_NAMESPACES

    kinds = job_kinds(kind)
    cluster = target.connect()
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    jobs = list_jobs(cluster, kinds, where, name or "")
    if name and not jobs:
        raise _no_job(cluster, kind or "job", name)
    items = [job.manifest for job in jobs]
    columns = {
        "namespace": all_namespaces,
        "name": True,
        "kind": kind is None,
        "phase": True,
        "reason": any(_failure(job.view) for job in jobs),
        **dict.fromkeys(("ready", "step", "steps/s", "checkpoint", "age"), True),
    }
    columns["metrics"] = any(job.view.progress.metrics for job in jobs)
    shown = [column for column, visible in columns.items() if visible]
    table = Table(shown, [[cells[column] for column in shown] for cells in map(_cells, jobs)])
    data = items[0] if name and len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
    emit(output, data, table)


def job_kinds(name: str | None) -> Sequence[Kind]:
    """The kind with a name or, without one, all kinds of jobs.

    Raises:
        InvalidError: there is no such kind, or its objects are not jobs.
    """
    from edl_workflows.core.jobs.kinds import KINDS, kind_of

    if name is None:
        return [kind for kind in KINDS if kind.view is not None]
    if kind_of(name).view is None:
        raise InvalidError(f"a {name} is not a job; `edl describe JOB` shows the plans of a job")
    return [kind_of(name)]


def list_jobs(cluster: "Cluster", kinds: Sequence[Kind], namespace: str, name: str = "") -> list[ListedJob]:
    """List jobs of some kinds, ordered by namespace and name. Kinds that are not installed, or that the user
    may not list, are skipped.

    Args:
        cluster: the cluster.
        kinds: the kinds.
        namespace: one namespace, or all of them.
        name: only jobs with this name; "" for all.

    Raises:
        EdlError: none of the kinds could be listed.
    """
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import Scope

    jobs: list[ListedJob] = []
    refused: list[EdlError] = []
    field_selector = f"metadata.name={name}" if name else ""
    for kind in kinds:
        try:
            listed = client.list_objects(
                cluster, Scope(kind.source.api, namespace, field_selector=field_selector)
            )
        except (NotFoundError, ForbiddenError) as error:
            refused.append(error)
            continue
        jobs += [ListedJob(item, kind.view_stored(item)) for item in listed.items]
    if len(refused) == len(kinds):
        raise refused[0]
    return sorted(jobs, key=lambda job: (job.view.namespace, job.view.name, job.view.kind))


def read_job(cluster: "Cluster", kind: Kind, name: str) -> dict[str, Any]:
    """The manifest of a job.

    Raises:
        NotFoundError: there is no such job; the message has the kind of another job with this name.
    """
    from edl_workflows.runtime.kube import client

    manifest = client.find(cluster, kind.source.api, name)
    if manifest is not None:
        return manifest
    namesakes = list_jobs(cluster, job_kinds(None), cluster.namespace, name)
    if not namesakes:
        raise _no_job(cluster, "job", name)
    other = namesakes[0].view.kind
    raise NotFoundError(f"{cluster.namespace}/{name} is a {other}: give --kind {other}")


def _no_job(cluster: "Cluster", kind: str, name: str) -> NotFoundError:
    return NotFoundError(f"there is no {kind} {cluster.namespace}/{name}; `edl get -A` lists all")


def _cells(listed: ListedJob) -> dict[str, object]:
    job = listed.view
    return {
        "namespace": job.namespace,
        "name": job.name,
        "kind": job.kind,
        "phase": job.phase if job.phase.final or job.reason != INVALID_SPEC else INVALID_SPEC,
        "reason": _failure(job),
        "ready": format_replicas(job),
        "step": job.progress.step,
        "steps/s": f"{job.progress.speed:.1f}",
        "checkpoint": job.checkpoint.step if job.checkpoint else "",
        "metrics": describe_metrics(job.progress.metrics, LISTED_METRICS),
        "age": age_of(listed.manifest),
    }


def _failure(job: JobView) -> str:
    """Why a job failed, in one word; "" for other jobs."""
    return job.reason if job.phase is JobPhase.FAILED else ""


def format_replicas(job: JobView) -> str:
    """Ready and wanted nodes of each role, as ``ps 2/2 worker 3/3``."""
    return " ".join(
        f"{role} {n.ready}/{n.desired}" for role, n in sorted(job.replicas.items()) if n.desired or n.ready
    )


def age_of(manifest: dict[str, Any]) -> str:
    """The age of an object."""
    created = manifest["metadata"].get("creationTimestamp")
    return format_age(dt.datetime.fromisoformat(created)) if created else ""


def format_age(start: dt.datetime, end: dt.datetime | None = None) -> str:
    """The duration between two times, formatted as kubectl formats ages.

    Args:
        start: the earlier time.
        end: the later time; by default now.
    """
    seconds = int(((end or dt.datetime.now(dt.UTC)) - start).total_seconds())
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"
