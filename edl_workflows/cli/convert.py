"""``edl convert``: a job's manifest in another version, or as another kind."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.cli.jobs import read_manifest, say
from edl_workflows.cli.options import OutputFormat
from edl_workflows.cli.output import Table, emit
from edl_workflows.exceptions import InvalidError

if TYPE_CHECKING:
    from edl_workflows.jobs.conversion import Converted
    from edl_workflows.jobs.tf_job.model import TFJob

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
    """Print a job's manifest in another version or as another kind; what it can't carry over goes to stderr."""
    from edl_workflows.jobs.tf_job.model import KIND, TFJob

    document = read_manifest(manifest)
    if document.get("kind") != KIND:
        raise InvalidError(f"kind: a {document.get('kind')} can't be converted; a {KIND} can")
    converted = _convert(TFJob.parse(document), to)
    for note in converted.notes:
        say(note)
    emit(OutputFormat.YAML, converted.manifest, Table((), ()))


def _convert(job: "TFJob", to: To) -> "Converted":
    from edl_workflows.jobs.tf_job import conversion

    ways = {
        To.ELASTIC_JOB: conversion.to_elastic_job,
        To.TF_JOB_V1: conversion.to_v1,
        To.TF_JOB_V1ALPHA2: conversion.to_v1alpha2,
    }
    return ways[to](job)
