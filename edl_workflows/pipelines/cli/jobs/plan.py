"""``edl plan``: shows what a job's optimizer would change now and why, from the job's status."""

import datetime as dt
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from edl_workflows.core.exceptions import InvalidError, ManifestError, NotFoundError
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, HistoryPoint
from edl_workflows.core.jobs.elastic_job.scaling import count_desired_nodes, scaled_by_master
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.pipelines.cli.jobs.job import JOB, Kind, Name
from edl_workflows.pipelines.cli.jobs.listing import format_age, job_kinds, read_job
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit, print_line
from edl_workflows.pipelines.stages.plan_scale import explain_no_plan
from edl_workflows.pipelines.waiting.advised_change import AdvisedChange

app = typer.Typer(no_args_is_help=True)

STRETCHES = 5
"""Number of recent node counts whose speed is shown."""


@app.command()
@expand_options
def plan(
    name: Name,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Also show the reasons, the data behind the plan, and whether it is applied."
        ),
    ] = False,
    kind: Kind = JOB,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show what a job's optimizer would change now, without changing anything."""
    (job_kind,) = job_kinds(kind)
    manifest = read_job(target.connect(), job_kind, name)
    job = planned_job(kind, manifest)
    assert job.status.autoscaling is not None, "checked by planned_job"
    change = AdvisedChange.of(job.status.autoscaling)
    table = Table(("role", "now", "planned", "size", "reason"), list(_rows(job, change)))
    emit(output, _data(job, change), table)
    if explain and output is OutputFormat.TABLE:
        for line in explain_plan(job, dt.datetime.now(dt.UTC)):
            print_line(line)


def planned_job(kind: str, manifest: dict[str, Any]) -> ElasticJob:
    """Parse a job and check that it has a plan.

    Raises:
        InvalidError: the job has ended, or something else makes its plans.
        NotFoundError: there is no plan yet.
    """
    (job_kind,) = job_kinds(kind)
    view = job_kind.view_stored(manifest)
    job = job_kind.model.parse(manifest)
    subject = f"{kind} {job.key}"
    if view.phase.final:
        raise InvalidError(f"{subject} has ended in phase {view.phase}, so no plans are made for it")
    if not scaled_by_master(job):
        raise InvalidError(f"{subject} {explain_no_plan(sized=job_kind.elastic is not None)}")
    assert isinstance(job, ElasticJob), "only ElasticJobs have a master that makes plans"
    if job.status.autoscaling is None:
        raise NotFoundError(
            f"{subject} is {view.phase} and has no plan yet; its master makes one when it runs"
        )
    return job


def _rows(job: ElasticJob, change: AdvisedChange) -> Iterator[tuple[object, ...]]:
    for role, now in sorted(count_desired_nodes(job).items()):
        replica_spec = change.replicas.get(role)
        planned = now if replica_spec is None or replica_spec.replicas is None else replica_spec.replicas
        size = _size(replica_spec.resource) if replica_spec is not None else ""
        yield role, now, planned, size, change.reasons.get(role, "")
    for pod in change.migrate:
        yield pod.name, "", "replaced", _size(pod.resource), change.reasons.get(pod.name, "")


def _size(resource: NodeResource) -> str:
    return " ".join(f"{name} {amount}" for name, amount in resource.to_dict().items())


def _data(job: ElasticJob, change: AdvisedChange) -> dict[str, Any]:
    """The data of the table and the explanation, for JSON and YAML."""
    return {
        "namespace": job.metadata.namespace,
        "name": job.metadata.name,
        "optimizeMode": job.spec.optimize_mode,
        "autoscale": job.metadata.annotations.get(autoscaling.ANNOTATION),
        "resourceLimits": job.spec.resource_limits.to_dict(),
        "now": count_desired_nodes(job),
        "plan": change.to_dict(),
    }


def explain_plan(job: ElasticJob, now: dt.datetime) -> Iterator[str]:
    """Lines that say on which data a plan is based, and whether it is applied.

    Args:
        job: a job that has a plan.
        now: the time.
    """
    status, progress = job.status.autoscaling, job.status.progress
    assert status is not None, "the job has a plan"
    since = f", for {format_age(status.time, now)}" if status.time else ""
    yield from _fact(
        "Planned", f"by the {status.optimizer} optimizer in stage {status.stage or 'unknown'}{since}"
    )
    yield from _fact("Applied", _applied(job))
    limits = job.spec.resource_limits.to_dict().items()
    yield from _fact("Limits", ", ".join(f"{name} {amount}" for name, amount in limits))
    fixed = [
        role
        for role, spec in job.spec.replica_specs.items()
        if not spec.auto_scale and role in count_desired_nodes(job)
    ]
    yield from _fact("Left alone", f"{', '.join(sorted(fixed))} (autoScale: false)" if fixed else "")
    if progress is not None:
        yield from _fact("Progress", f"step {progress.step}, {progress.speed:.2f} steps/s")
    for nodes, speed in speeds_by_nodes(job.status.history)[-STRETCHES:]:
        yield from _fact("Speed", f"{nodes}: {speed:.2f} steps/s")
    for note in status.notes:
        yield from _fact("Note", note)


def _fact(label: str, value: str) -> Iterator[str]:
    if value:
        yield f"{label + ':':13}{value}"


def _applied(job: ElasticJob) -> str:
    """Whether the job's master may apply its plans."""
    try:
        wish = autoscaling.read_annotation(job)
    except ManifestError as error:
        return f"no: {error.problems[0].message}"
    if wish is None or wish is False:
        annotation_state = 'is "false"' if wish is False else "is missing"
        return (
            f"no: the annotation {autoscaling.ANNOTATION} {annotation_state}; "
            f"`edl autoscale {job.metadata.name}` allows the master to apply its plans; "
            "the stage apply-plan applies one plan"
        )
    return "yes, by the job's master" + ("" if wish is True else f", with {wish[0]} to {wish[1]} workers")


def speeds_by_nodes(history: list[HistoryPoint]) -> list[tuple[str, float]]:
    """(Nodes, steps per second) for each period in which the number of nodes did not change, oldest first.

    Args:
        history: oldest first.
    """
    speeds: list[tuple[str, float]] = []
    start = 0
    for index, point in enumerate(history):
        last = index + 1 == len(history) or history[index + 1].nodes != point.nodes
        if last:
            first = history[start]
            seconds = (point.time - first.time).total_seconds()
            if seconds > 0:
                nodes = " ".join(f"{role} {count}" for role, count in sorted(point.nodes.items()))
                speeds.append((nodes, max(0, point.step - first.step) / seconds))
            start = index + 1
    return speeds
