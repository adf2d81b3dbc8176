"""``edl timeline``: shows the history of a job."""

import datetime as dt
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.metrics import describe_metrics
from edl_workflows.pipelines.cli.jobs.job import Name
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, print_line, say

if TYPE_CHECKING:
    from edl_workflows.pipelines.timeline import Timeline

app = typer.Typer(no_args_is_help=True)

COLUMNS = ("seconds", "step", "steps/s", "records", "nodes", "event")


@app.command()
@expand_options
def timeline(
    name: Name,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture to this .png or .svg file instead of printing.", show_default=False
        ),
    ] = None,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the history of an ElasticJob as its master recorded it: nodes, speed, data, restarts and steps of
    plans. A running job has at most 20 points, about a minute old; one that has ended up to 120."""
    from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
    from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
    from edl_workflows.pipelines import timeline as timelines
    from edl_workflows.pipelines.cli.jobs.description import plans_of
    from edl_workflows.pipelines.cli.jobs.listing import read_job

    cluster = target.connect()
    job, _ = ElasticJob.read_stored(read_job(cluster, ELASTIC_JOB, name))
    line = timelines.of_job(job, plans_of(cluster, name), time.time())
    if not line.samples:
        raise InvalidError(f"ElasticJob {job.key} has no history yet; its master writes it when nodes run")
    if picture is None:
        columns = (*COLUMNS[:-1], "metrics", COLUMNS[-1]) if line.metric_names else COLUMNS
        emit(output, line.to_json(), Table(columns, timeline_rows(line)))
        if output is OutputFormat.TABLE and line.goodput is not None:
            say(
                f"goodput {line.goodput:.0%}: the fraction of time that the job spent on steps that were "
                "not lost"
            )
            spent = [f"{cause} {dt.timedelta(seconds=seconds)}" for cause, seconds in line.seconds.items()]
            say(f"time by cause: {', '.join(spent) or 'unknown'}")
        if output is OutputFormat.TABLE and job.status.phase not in (
            ElasticJobPhase.SUCCEEDED,
            ElasticJobPhase.FAILED,
        ):
            newest = dt.datetime.fromtimestamp(line.samples[-1].time, dt.UTC)
            say(f"a sample until {newest:%Y-%m-%d %H:%M:%S} UTC; the job's end has up to 120 points")
        return
    try:
        timelines.draw_timeline(line, picture)
    except (OSError, ValueError) as error:
        raise InvalidError(
            f"can't write {picture}: {error}; give a file that ends in .png or .svg"
        ) from error
    print_line(f"wrote {picture}")


def timeline_rows(line: "Timeline") -> list[Sequence[object]]:
    """Rows in chronological order, one for each point of a job's history, each restart and each step of a
    plan."""
    began = line.samples[0].time
    measured = bool(line.metric_names)
    events: list[tuple[float, Sequence[object]]] = [
        (
            s.time,
            (
                *(s.step, f"{s.speed:.1f}", s.records, _nodes(s.replicas)),
                *([describe_metrics(s.metrics)] if measured else []),
                "",
            ),
        )
        for s in line.samples
    ]
    blank = ("",) * (5 if measured else 4)
    events += [
        (r.time, (*blank, f"{r.subject} {'restarts' if r.replaced else 'fails'}: {r.cause}"))
        for r in line.restarts
    ]
    events += [
        (span.start, (*blank, f"{span.plan}: {span.phase}, {span.end - span.start:.1f} s"))
        for span in line.spans
    ]
    return [(f"{when - began:.0f}", *cells) for when, cells in sorted(events, key=lambda event: event[0])]


def _nodes(replicas: dict[str, int]) -> str:
    return " ".join(f"{role} {count}" for role, count in sorted(replicas.items()))
