"""``edl backup|restore``: the jobs of a cluster as files, and back."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.pipelines.cli.jobs.job import OnlyKind, raise_all
from edl_workflows.pipelines.cli.jobs.listing import job_kinds
from edl_workflows.pipelines.cli.jobs.manifests import read_manifests
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, format_yaml

if TYPE_CHECKING:
    from edl_workflows.pipelines.backup import SavedJob

app = typer.Typer(no_args_is_help=True)


@app.command()
@expand_options
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder to make, with a file for each job.")],
    kind: OnlyKind = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Save the jobs of all namespaces.")
    ] = False,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Save the jobs that have not ended as files, from which `edl restore` creates them again, in this
    cluster or in another one. Checkpoints are not copied: a restored job continues from the newest one of its
    folder."""
    from edl_workflows.pipelines.backup import save_jobs
    from edl_workflows.runtime.kube.resources import ALL_NAMESPACES

    if folder.exists():
        raise InvalidError(f"{folder}: exists already; a backup makes a new folder")
    cluster = target.connect()
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    saved = save_jobs(cluster, job_kinds(kind), where)
    _write(folder, saved)
    rows = [(*_place(job), job.checkpoint or "no checkpoint reported") for job in saved]
    data = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
    emit(output, data, Table(_COLUMNS, rows))


@app.command()
@expand_options
def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that `edl backup` has made.")],
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create the jobs of a backup. Those that exist already, as the backup has them, are left alone, so that
    the command may be repeated."""
    from edl_workflows.pipelines.backup import read_backup, restore_job

    jobs = read_backup(read_manifests([folder], recursive=True))
    cluster = target.connect()
    errors: list[EdlError] = []
    rows = []
    for job in jobs:
        try:
            result = "created" if restore_job(cluster, job) else "exists"
        except EdlError as error:
            errors.append(error)
            continue
        rows.append((*_place(job), result))
    columns = (*_COLUMNS[:3], "result")
    emit(output, [dict(zip(columns, row, strict=True)) for row in rows], Table(columns, rows))
    raise_all(errors)


_COLUMNS = ("namespace", "name", "kind", "continues from")


def _place(job: "SavedJob") -> tuple[str, str, str]:
    metadata = job.manifest["metadata"]
    return metadata["namespace"], metadata["name"], job.manifest["kind"]


def _write(folder: Path, jobs: "list[SavedJob]") -> None:
    """Write all files or none: a folder that looks whole must be whole."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for job in jobs:
                namespace, name, kind = _place(job)
                file = partial / namespace / f"{kind.lower()}-{name}.yaml"
                file.parent.mkdir(exist_ok=True)
                file.write_text(format_yaml(job.to_list()))
            os.rename(partial, folder)  # noqa: PTH104 - fails if somebody else has made the folder
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise InvalidError(f"{folder}: the backup can't be written: {error}") from error
