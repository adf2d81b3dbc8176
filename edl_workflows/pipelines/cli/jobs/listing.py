"""Jobs of one or all kinds, and their properties as commands print them."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl_workflows.core.exceptions import EdlError, ForbiddenError, InvalidError, NotFoundError
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.view import JobView

if TYPE_CHECKING:
    from edl_workflows.runtime.kube.connect import Cluster


@dataclass(frozen=True)
class ListedJob:
    """A job: its manifest and its view."""

    manifest: dict[str, Any]
    view: JobView


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
        raise no_job(cluster, "job", name)
    other = namesakes[0].view.kind
    raise NotFoundError(f"{cluster.namespace}/{name} is a {other}: give --kind {other}")


def no_job(cluster: "Cluster", kind: str, name: str) -> NotFoundError:
    """The error about a job that does not exist."""
    return NotFoundError(f"there is no {kind} {cluster.namespace}/{name}; `edl get -A` lists all")


def with_live_figures(cluster: "Cluster", jobs: Sequence[ListedJob]) -> list[ListedJob]:
    """The jobs with the progress that their masters report now. Those of other kinds, those
    that have ended, and those whose master can't be reached stay as they are.

    Raises:
        ForbiddenError: the user may not use the service proxy.
    """
    from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
    from edl_workflows.core.jobs.elastic_job.model import ElasticJob
    from edl_workflows.pipelines.live import measure_jobs

    asked = [job for job in jobs if job.view.kind == ELASTIC_JOB.name and not job.view.phase.final]
    measured = measure_jobs(cluster, [ElasticJob.read_stored(job.manifest)[0] for job in asked])
    newer = {
        job.view.uid: measurement.show_in(job.manifest)
        for job, measurement in zip(asked, measured, strict=True)
        if measurement.live
    }
    return [
        ListedJob(newer[job.view.uid], ELASTIC_JOB.view_stored(newer[job.view.uid]))
        if job.view.uid in newer
        else job
        for job in jobs
    ]


def format_replicas(job: JobView) -> str:
    """Ready and wanted nodes of each role, as ``ps 2/2 worker 3/3``; "" for a job that has ended and needs
    none."""
    if job.phase.final:
        return ""
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
    return format_seconds(((end or dt.datetime.now(dt.UTC)) - start).total_seconds())


def format_seconds(duration: float) -> str:
    """A duration, formatted as kubectl formats ages."""
    seconds = int(duration)
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"
