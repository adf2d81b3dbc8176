"""``edl get``: lists jobs, or shows one."""

import datetime as dt
from typing import Annotated, Any

import typer

from edl_workflows.core.jobs.elastic_job.separate_copies import CONDITION, is_warning
from edl_workflows.core.jobs.kind import INVALID_SPEC
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.core.protocol.metrics import describe_metrics
from edl_workflows.pipelines.cli.jobs.completion import complete_job
from edl_workflows.pipelines.cli.jobs.job import OnlyKind
from edl_workflows.pipelines.cli.jobs.listing import (
    ListedJob,
    age_of,
    format_age,
    format_replicas,
    job_kinds,
    list_jobs,
    no_job,
    with_live_figures,
)
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit

app = typer.Typer(no_args_is_help=True)

LISTED_METRICS = 2
"""Most metrics that `edl get` prints; if a job has more, only their number is printed."""


@app.command()
@expand_options
def get(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a job; by default all.", show_default=False, autocompletion=complete_job
        ),
    ] = None,
    kind: OnlyKind = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List the jobs of all namespaces.")
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Ask the masters of ElasticJobs for their progress now, as `edl top` does."
        ),
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
        raise no_job(cluster, kind or "job", name)
    if live:
        jobs = with_live_figures(cluster, jobs)
    items = [job.manifest for job in jobs]
    columns = {
        "namespace": all_namespaces,
        "name": True,
        "kind": kind is None,
        "phase": True,
        "reason": any(_failure(job.view) for job in jobs),
        **dict.fromkeys(("ready", "step", "steps/s", "checkpoint", "age"), True),
        "measured": live,
    }
    columns["metrics"] = any(job.view.progress.metrics for job in jobs)
    columns["warnings"] = any(job.view.warnings for job in jobs)
    shown = [column for column, visible in columns.items() if visible]
    table = Table(shown, [[cells[column] for column in shown] for cells in map(_cells, jobs)])
    data = items[0] if name and len(items) == 1 else {"apiVersion": "v1", "kind": "List", "items": items}
    emit(output, data, table)


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
        "warnings": _summarize_warnings(job),
        "age": age_of(listed.manifest),
        "measured": _measured(listed.manifest),
    }


def _measured(manifest: dict[str, Any]) -> str:
    """How long ago the progress was measured; "" where the job's status does not say."""
    measured = ((manifest.get("status") or {}).get("progress") or {}).get("time")
    return f"{format_age(dt.datetime.fromisoformat(measured))} ago" if measured else ""


def _summarize_warnings(job: JobView) -> str:
    """The condition that is named after a warning, else their number; `edl describe` prints the texts."""
    if any(map(is_warning, job.warnings)):
        return CONDITION
    return str(len(job.warnings) or "")


def _failure(job: JobView) -> str:
    """Why a job failed, in one word; "" for other jobs."""
    return job.reason if job.phase is JobPhase.FAILED else ""
