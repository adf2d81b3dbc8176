"""``edl timeline``: what happened to a job over time, as a picture."""

import time
from pathlib import Path
from typing import Annotated

import typer

from edl_workflows.cli.jobs import Name
from edl_workflows.cli.options import Context, Kubeconfig, Namespace, Output, OutputFormat, connect
from edl_workflows.cli.output import Table, emit
from edl_workflows.exceptions import InvalidError

app = typer.Typer(no_args_is_help=True)


@app.command()
def timeline(
    name: Name,
    picture: Annotated[
        Path | None,
        typer.Option(help="Write a picture, .png or .svg, instead of printing.", show_default=False),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show an ElasticJob's life: nodes, speed, data, restarts and the steps of its plans, as its master recorded them."""
    from edl_workflows import timeline as timelines
    from edl_workflows.cli.description import plans_of
    from edl_workflows.jobs.elastic_job.model import ElasticJob
    from edl_workflows.kube import client, resources

    cluster = connect(kubeconfig, context, namespace)
    job, _ = ElasticJob.read_stored(client.get(cluster, resources.ELASTIC_JOBS, name))
    line = timelines.of_job(job, plans_of(cluster, name), time.time())
    if not line.samples:
        raise InvalidError(f"ElasticJob {job.key} has no history yet; its master writes one once nodes run")
    if picture is None:
        began = line.samples[0].time
        rows = [(f"{s.time - began:.0f}", s.step, s.records, _nodes(s.replicas)) for s in line.samples]
        emit(output, line.to_json(), Table(("seconds", "step", "records", "nodes"), rows))
        return
    try:
        timelines.draw(line, picture)
    except (OSError, ValueError) as error:
        raise InvalidError(
            f"can't write {picture}: {error}; give a file that ends in .png or .svg"
        ) from error
    typer.echo(f"wrote {picture}")


def _nodes(replicas: dict[str, int]) -> str:
    return " ".join(f"{role} {count}" for role, count in sorted(replicas.items()))
