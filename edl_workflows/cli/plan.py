"""``edl plan``: what a job's optimizer would change now, and why, as the job's status says it."""

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from edl_workflows.cli.jobs import JOB, Kind, Name
from edl_workflows.cli.listing import duration, job_kinds
from edl_workflows.cli.options import Context, Kubeconfig, Namespace, Output, OutputFormat, connect
from edl_workflows.cli.output import Table, emit, print_line
from edl_workflows.exceptions import InvalidError, ManifestError, NotFoundError
from edl_workflows.jobs import autoscaling
from edl_workflows.jobs.elastic_job.model import ElasticJob, HistoryPoint
from edl_workflows.jobs.elastic_job.scaling import count_wanted_nodes, scaled_by_master
from edl_workflows.jobs.kinds import kind_of
from edl_workflows.jobs.scale_plan.model import NodeResource
from edl_workflows.kube import client
from edl_workflows.stages.plan_scale import explain_no_plan
from edl_workflows.stages.planned_change import PlannedChange

app = typer.Typer(no_args_is_help=True)

STRETCHES = 5
"""The newest constellations of nodes that are told with their speed."""


@app.command()
def plan(
    name: Name,
    explain: Annotated[
        bool, typer.Option("--explain", help="Tell why, what the plan rests on, and whether it is applied.")
    ] = False,
    kind: Kind = JOB,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """What a job's optimizer would change now. Nothing is changed."""
    cluster = connect(kubeconfig, context, namespace)
    manifest = client.get(cluster, kind_of(kind).source.api, name)
    job = planned_job(kind, manifest)
    assert job.status.autoscaling is not None, "else it is an error"
    change = PlannedChange.of(job.status.autoscaling)
    table = Table(("role", "now", "planned", "size", "reason"), list(_rows(job, change)))
    emit(output, _data(job, change), table)
    if explain and output is OutputFormat.TABLE:
        for line in explanation(job, dt.datetime.now(dt.UTC)):
            print_line(line)


def planned_job(kind: str, manifest: dict[str, Any]) -> ElasticJob:
    """A job that has a plan.

    Raises:
        InvalidError: it has ended, or its plans are made elsewhere.
        NotFoundError: there is none yet.
    """
    (row,) = job_kinds(kind)
    view = row.view_stored(manifest)
    job = row.model.parse(manifest)
    subject = f"{kind} {job.key}"
    if view.phase.final:
        raise InvalidError(f"{subject} has ended in phase {view.phase}; nothing is planned for it any more")
    if not scaled_by_master(job):
        raise InvalidError(f"{subject} {explain_no_plan(sized=row.elastic is not None)}")
    assert isinstance(job, ElasticJob), "others have no master that plans"
    if job.status.autoscaling is None:
        raise NotFoundError(
            f"{subject} is {view.phase} and has no plan yet; its master makes one when it runs"
        )
    return job


def _rows(job: ElasticJob, change: PlannedChange) -> Iterator[tuple[object, ...]]:
    for role, now in sorted(count_wanted_nodes(job).items()):
        wanted = change.replicas.get(role)
        planned = now if wanted is None or wanted.replicas is None else wanted.replicas
        size = _size(wanted.resource) if wanted is not None else ""
        yield role, now, planned, size, change.reasons.get(role, "")
    for pod in change.migrate:
        yield pod.name, "", "replaced", _size(pod.resource), change.reasons.get(pod.name, "")


def _size(resource: NodeResource) -> str:
    return " ".join(f"{name} {amount}" for name, amount in resource.to_dict().items())


def _data(job: ElasticJob, change: PlannedChange) -> dict[str, Any]:
    """For JSON and YAML: all that the table and the explanation are made of."""
    return {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "optimizeMode": job.spec.optimize_mode,
        "autoscale": job.metadata.annotations.get(autoscaling.ANNOTATION),
        "resourceLimits": job.spec.resource_limits.to_dict(),
        "now": count_wanted_nodes(job),
        "plan": change.to_dict(),
    }


def explanation(job: ElasticJob, now: dt.datetime) -> Iterator[str]:
    """What a plan rests on, and whether it is applied: a line a fact.

    Args:
        job: one that has a plan.
        now: the time.
    """
    told, progress = job.status.autoscaling, job.status.progress
    assert told is not None, "asked for jobs with a plan"
    since = f", for {duration(told.time, now)}" if told.time else ""
    yield from _fact(
        "Planned", f"by the {told.optimizer} optimizer in stage {told.stage or 'unknown'}{since}"
    )
    yield from _fact("Applied", _applied(job))
    limits = job.spec.resource_limits.to_dict().items()
    yield from _fact("Limits", ", ".join(f"{name} {amount}" for name, amount in limits))
    fixed = [
        role
        for role, spec in job.spec.replica_specs.items()
        if not spec.auto_scale and role in count_wanted_nodes(job)
    ]
    yield from _fact("Left alone", f"{', '.join(sorted(fixed))} (autoScale: false)" if fixed else "")
    if progress is not None:
        yield from _fact("Progress", f"step {progress.step}, {progress.speed:.2f} steps/s")
    for nodes, speed in speeds(job.status.history)[-STRETCHES:]:
        yield from _fact("Speed", f"{nodes}: {speed:.2f} steps/s")
    for note in told.notes:
        yield from _fact("Note", note)


def _fact(label: str, value: str) -> Iterator[str]:
    if value:
        yield f"{label + ':':13}{value}"


def _applied(job: ElasticJob) -> str:
    """Whether the job's master may carry its plans out."""
    try:
        wish = autoscaling.read_annotation(job)
    except ManifestError as error:
        return f"no: {error.problems[0].message}"
    if wish is None or wish is False:
        said = 'says "false"' if wish is False else "is not there"
        return (
            f"no: the annotation {autoscaling.ANNOTATION} {said}; `edl autoscale {job.metadata.name}` lets "
            "the master apply its plans, the stage apply-plan applies one"
        )
    return "yes, by the job's master" + ("" if wish is True else f", with {wish[0]} to {wish[1]} workers")


def speeds(history: list[HistoryPoint]) -> list[tuple[str, float]]:
    """Nodes → steps per second, for each stretch of time in which the job had the same nodes; oldest first.

    Args:
        history: oldest first.
    """
    found: list[tuple[str, float]] = []
    start = 0
    for index, point in enumerate(history):
        last = index + 1 == len(history) or history[index + 1].nodes != point.nodes
        if last:
            first = history[start]
            seconds = (point.time - first.time).total_seconds()
            if seconds > 0:
                nodes = " ".join(f"{role} {count}" for role, count in sorted(point.nodes.items()))
                found.append((nodes, max(0, point.step - first.step) / seconds))
            start = index + 1
    return found
