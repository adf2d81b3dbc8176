"""``edl convert``: a job's manifest in another version, or as another kind."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.cli.manifests import read_manifest
from edl_workflows.cli.options import OutputFormat
from edl_workflows.cli.output import Table, emit, say
from edl_workflows.exceptions import InvalidError

if TYPE_CHECKING:
    from edl_workflows.jobs.conversion import ConvertedJob

app = typer.Typer(no_args_is_help=True)


class To(StrEnum):
    """What a manifest can become."""

    ELASTIC_JOB = "ElasticJob"
    TF_JOB_V1 = "kubeflow.org/v1"
    TF_JOB_V1ALPHA2 = "kubeflow.org/v1alpha2"


@app.command()
def convert(
    manifest: Annotated[
        Path, typer.Argument(help="YAML or JSON file of one job; - for standard input.", allow_dash=True)
    ],
    to: Annotated[To, typer.Option("--to", help="What it shall become.")] = To.ELASTIC_JOB,
) -> None:
    """Print a job's manifest in another version or as another kind; what it can't carry over goes to
    stderr."""
    document = read_manifest(manifest)
    converted = _convert(document, to)
    for note in converted.notes:
        say(note)
    emit(OutputFormat.YAML, converted.manifest, Table((), ()))


def _convert(document: dict[str, Any], to: To) -> "ConvertedJob":
    from edl_workflows.jobs.tf_job import conversion as tf_job
    from edl_workflows.jobs.tf_job.model import TFJob
    from edl_workflows.jobs.training_job import conversion as training_job
    from edl_workflows.jobs.training_job.model import TrainingJob

    kind, training = document.get("kind"), TrainingJob.__name__
    if kind == training and to is To.ELASTIC_JOB:
        return training_job.to_elastic_job(TrainingJob.parse(document))
    if kind == training:
        raise InvalidError(f"--to: a {kind} can become an {To.ELASTIC_JOB}, and no {to}")
    if kind != TFJob.__name__:
        raise InvalidError(f"kind: a {kind} can't be converted; a {TFJob.__name__} and a {training} can")
    ways = {
        To.ELASTIC_JOB: tf_job.to_elastic_job,
        To.TF_JOB_V1: tf_job.to_v1,
        To.TF_JOB_V1ALPHA2: tf_job.to_v1alpha2,
    }
    return ways[to](TFJob.parse(document))
