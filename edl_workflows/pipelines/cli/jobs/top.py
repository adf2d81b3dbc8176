"""``edl top``: shows how far ElasticJobs are, as their masters know it now."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic.alias_generators import to_camel

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.pipelines.cli.jobs.completion import complete_job
from edl_workflows.pipelines.cli.jobs.listing import ListedJob, format_seconds, list_jobs, read_job
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, is_terminal, open_screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_workflows.pipelines.live import FigureReader, Measurement
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(no_args_is_help=True)

LIST_SECONDS = 15.0
"""Seconds between two lists of the jobs, which are long. Their masters are asked more often."""
FRAME_LINES = 3
"""Lines of the screen that are no jobs: the header, the number of further jobs, the cursor."""


@dataclass(frozen=True)
class _Watched:
    """Which jobs to show.

    Attributes:
        name: of the only one; None for all that have not ended.
        namespace: one, or all.
    """

    cluster: "Cluster"
    name: str | None
    namespace: str

    def list(self) -> list[ListedJob]:
        """The jobs, those of a namespace together.

        Raises:
            EdlError: they can't be read; NotFoundError if the only one does not exist.
        """
        from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB

        if self.name is not None:
            manifest = read_job(self.cluster, ELASTIC_JOB, self.name)
            return [ListedJob(manifest, ELASTIC_JOB.view_stored(manifest))]
        jobs = list_jobs(self.cluster, [ELASTIC_JOB], self.namespace)
        idle = (JobPhase.SUSPENDED, JobPhase.SUCCEEDED, JobPhase.FAILED)
        return [job for job in jobs if job.view.phase not in idle]


@app.command()
@expand_options
def top(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of an ElasticJob; by default all that run.",
            show_default=False,
            autocompletion=complete_job,
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of all namespaces.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the figures once. So do JSON, YAML, and output that is no terminal."
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", help="Seconds between two refreshes.", min=0.5, max=3600)
    ] = 2.0,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show phase, step, speed, loss, remaining time, goodput and memory of ElasticJobs, as their masters know
    them now. The masters are asked through the API server's service proxy, which needs the right `get` on
    `services/proxy`. If a master can't be reached, the figures of the job's status are shown, with their age.
    """
    from edl_workflows.pipelines.live import FigureReader
    from edl_workflows.runtime.kube.resources import ALL_NAMESPACES

    cluster = target.connect()
    watched = _Watched(cluster, name, ALL_NAMESPACES if all_namespaces else cluster.namespace)
    if not once and output is OutputFormat.TABLE and is_terminal():
        _refresh(watched, interval)
        return
    jobs = watched.list()
    measured = _measure(cluster, jobs, FigureReader())
    data = [_as_data(job, m) for job, m in zip(jobs, measured, strict=True)]
    emit(output, data[0] if name else data, _table(jobs, measured, all_namespaces=all_namespaces))


def _measure(cluster: "Cluster", jobs: Sequence[ListedJob], reader: "FigureReader") -> "list[Measurement]":
    """The figures of each job: of one that has ended, those of its status."""
    from edl_workflows.core.jobs.elastic_job.model import ElasticJob
    from edl_workflows.pipelines.live import Measurement, status_figures

    stored = [ElasticJob.read_stored(job.manifest)[0] for job in jobs]
    running = [not job.view.phase.final for job in jobs]
    answers = iter(reader.measure(cluster, [job for job, runs in zip(stored, running, strict=True) if runs]))
    return [
        next(answers) if runs else Measurement(status_figures(job), "the job has ended")
        for job, runs in zip(stored, running, strict=True)
    ]


def _refresh(watched: _Watched, interval: float) -> None:
    """Show the jobs until Ctrl-C, or until the only one has ended. Only the masters of jobs that the screen
    has room for are asked, and those that don't answer less often."""
    from edl_workflows.pipelines.live import FigureReader

    reader = FigureReader()
    listed, jobs = float("-inf"), list[ListedJob]()
    with open_screen() as screen:
        while True:
            if time.monotonic() - listed >= LIST_SECONDS:
                jobs, listed = watched.list(), time.monotonic()
            shown = jobs[: max(1, screen.console.height - FRAME_LINES)]
            measured = _measure(watched.cluster, shown, reader)
            if watched.name is not None and measured[0].obstacle and listed < time.monotonic() - interval:
                listed = float("-inf")  # its master may be gone because it has ended
            table = _table(shown, measured, all_namespaces=not watched.namespace)
            screen.update(render_table(table, len(jobs) - len(shown)), refresh=True)
            if watched.name is not None and jobs[0].view.phase.final:
                return
            time.sleep(interval)


def render_table(table: Table, further: int = 0) -> "RenderableType":
    """A table for a terminal, in which long texts are cut.

    Args:
        table: the jobs.
        further: number of jobs that the screen has no room for.
    """
    import rich.table
    from rich.console import Group
    from rich.text import Text

    right = ("step", "steps/s", "loss", "eta", "goodput", "memory")
    styles = {"Running": "green", "Failed": "red", "live": "green"}
    grid = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        grid.add_column(
            column.upper(), justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis"
        )
    for row in table.rows:
        cells = [escape_controls(str(cell), keep="") for cell in row]
        grid.add_row(*(Text(cell, styles.get(cell, "")) for cell in cells))
    if further:
        return Group(grid, Text(f"and {further} more; `edl top --once` prints all", "dim"))
    return grid


def _table(jobs: Sequence[ListedJob], measured: "Sequence[Measurement]", *, all_namespaces: bool) -> Table:
    columns = ("job", "phase", "step", "steps/s", "loss", "eta", "goodput", "memory", "figures")
    rows = []
    for job, measurement in zip(jobs, measured, strict=True):
        figures = measurement.figures
        cells: list[object] = [job.view.namespace] if all_namespaces else []
        cells += [job.view.name, job.view.phase]
        if figures is None:
            rows.append([*cells, *[""] * 6, "none yet"])
            continue
        left = figures.seconds_left
        cells += [
            figures.step,
            f"{figures.speed:.1f}",
            "" if figures.loss is None else f"{figures.loss:.4g}",
            "" if left is None or job.view.phase.final else format_seconds(left),
            f"{figures.goodput:.0%}",
            "" if figures.memory is None else _format_memory(figures.memory),
            f"{format_seconds(measurement.age)} old" if measurement.obstacle else "live",
        ]
        rows.append(cells)
    return Table((*(["namespace"] if all_namespaces else []), *columns), rows)


def _format_memory(mebibytes: float) -> str:
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"


def _as_data(job: ListedJob, measurement: "Measurement") -> dict[str, Any]:
    """A job for programs. Its figures are null if neither its master nor its status has any."""
    figures, measured = measurement.figures, None
    if figures is not None:
        numbers = figures.model_dump() | {"seconds_left": figures.seconds_left}
        measured = {to_camel(name): number for name, number in numbers.items()}
    return {
        "namespace": job.view.namespace,
        "name": job.view.name,
        "phase": str(job.view.phase),
        "live": not measurement.obstacle,
        "obstacle": measurement.obstacle,
        "figures": measured,
    }
