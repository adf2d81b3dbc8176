"""``edl cost``: shows what jobs have held of the cluster, and what of it was lost."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl_workflows.core.jobs.usage.model import HeldResource, UsagePart, pipeline_of
from edl_workflows.pipelines.cli.jobs.completion import complete_job
from edl_workflows.pipelines.cli.jobs.job import OnlyKind
from edl_workflows.pipelines.cli.jobs.listing import ListedJob, job_kinds, list_jobs, no_job
from edl_workflows.pipelines.cli.options import ClusterFlags, Output, OutputFormat, expand_options
from edl_workflows.pipelines.cli.output import Table, emit

if TYPE_CHECKING:
    from edl_workflows.core.jobs.kind import Kind
    from edl_workflows.core.jobs.usage.model import UsageStatus
    from edl_workflows.core.jobs.usage.spans import PodSpan
    from edl_workflows.runtime.kube.connect import Cluster

app = typer.Typer(no_args_is_help=True)

TOTAL = "total"
"""What the last row of the table is called."""


class CostGroup(StrEnum):
    """By what costs are summed."""

    JOB = "job"
    NAMESPACE = "namespace"
    PIPELINE = "pipeline"


@dataclass(frozen=True)
class Cost:
    """Hours times the amount of each resource, by what it was held for.

    Attributes:
        names: of whoever held it, by column.
        hours: by resource and part, without parts that are zero.
    """

    names: tuple[tuple[str, str], ...]
    hours: Mapping[tuple[HeldResource, UsagePart], float]

    def sum(self, resource: HeldResource, *parts: UsagePart) -> float:
        """Hours of these parts; of all if none are given."""
        return sum(self.hours.get((resource, part), 0.0) for part in parts or UsagePart)


@app.command()
@expand_options
def cost(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a job; by default all.", show_default=False, autocompletion=complete_job
        ),
    ] = None,
    by: Annotated[CostGroup, typer.Option("--by", help="Sum the hours of jobs by this.")] = CostGroup.JOB,
    kind: OnlyKind = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Count the jobs of all namespaces.")
    ] = False,
    *,
    target: ClusterFlags,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the GPU-, core- and GiB-hours that the pods of jobs have held by their requests, until now, and
    how much of that was useful and how much was lost. Jobs that have been deleted are not counted.
    """
    from edl_workflows.runtime.kube.resources import ALL_NAMESPACES

    cluster = target.connect()
    where = ALL_NAMESPACES if all_namespaces else cluster.namespace
    kinds = job_kinds(kind)
    jobs = list_jobs(cluster, kinds, where, name or "")
    if name and not jobs:
        raise no_job(cluster, kind or "job", name)
    costs = sum_costs(read_costs(cluster, kinds, jobs, where), by)
    emit(output, [_as_data(cost) for cost in costs], _table(costs, by))


def read_costs(
    cluster: "Cluster", kinds: "Sequence[Kind]", jobs: Iterable[ListedJob], namespace: str
) -> list[Cost]:
    """What each job has held until now: as its status has it, and as the pods that exist show it.

    Raises:
        EdlError: the pods can't be listed.
    """
    from edl_workflows.core.jobs.usage.account import count_usage
    from edl_workflows.core.jobs.usage.model import read_usage

    spans = {kind.name: _read_spans(cluster, kind, namespace) for kind in kinds}
    by_name = {kind.name: kind for kind in kinds}
    now = dt.datetime.now(dt.UTC)
    costs = []
    for job in jobs:
        usage = read_usage(job.manifest)
        if held := spans[job.view.kind].get(job.view.uid):
            spent = by_name[job.view.kind].spent(job.manifest)
            usage = count_usage(usage, held, now, spent, over=job.view.phase.final)
        names = (
            ("namespace", job.view.namespace),
            ("job", job.view.name),
            ("kind", job.view.kind),
            ("pipeline", pipeline_of(job.view.annotations)),
        )
        costs.append(Cost(names, _hours_of(usage) if usage else {}))
    return costs


def _hours_of(usage: "UsageStatus") -> dict[tuple[HeldResource, UsagePart], float]:
    return {
        (resource, part): usage.hours(resource, part)
        for resource in HeldResource
        for part in usage.held(resource)
    }


def _read_spans(cluster: "Cluster", kind: "Kind", namespace: str) -> "dict[str, list[PodSpan]]":
    """The spans of the pods of a kind's jobs, by the uid of the job; {} for a user who may not list pods, who
    sees what the jobs' statuses have."""
    from edl_workflows.core.exceptions import ForbiddenError
    from edl_workflows.core.jobs import manifests
    from edl_workflows.core.jobs.usage.spans import read_span
    from edl_workflows.runtime.kube import client
    from edl_workflows.runtime.kube.resources import PODS, Scope

    spans: dict[str, list[PodSpan]] = {}
    try:
        pods = client.list_objects(cluster, Scope(PODS, namespace, label_selector=kind.labels[0])).items
    except ForbiddenError:
        return {}
    for pod in pods:
        if kind.pods.selects(pod) and (span := read_span(pod)) is not None:
            spans.setdefault(str(manifests.owner_of(pod).get("uid")), []).append(span)
    return spans


def sum_costs(costs: Iterable[Cost], by: CostGroup) -> list[Cost]:
    """The costs of jobs, or their sums by namespace or pipeline, in alphabetical order."""
    columns = {CostGroup.JOB: ("namespace", "job", "kind", "pipeline")}.get(by, (by.value,))
    sums: dict[tuple[tuple[str, str], ...], dict[tuple[HeldResource, UsagePart], float]] = {}
    for cost in costs:
        names = tuple((column, text) for column, text in cost.names if column in columns)
        hours = sums.setdefault(names, {})
        for key, amount in cost.hours.items():
            hours[key] = hours.get(key, 0.0) + amount
    return [Cost(names, hours) for names, hours in sorted(sums.items(), key=lambda entry: entry[0])]


def _table(costs: Sequence[Cost], by: CostGroup) -> Table:
    names = [column for column, _ in costs[0].names] if costs else [by.value]
    columns = [*names]
    for resource in (HeldResource.GPU, HeldResource.CPU, HeldResource.MEMORY):
        columns += [resource.unit, "useful", "lost"]
    hours: dict[tuple[HeldResource, UsagePart], float] = {}
    for cost in costs:
        for key, amount in cost.hours.items():
            hours[key] = hours.get(key, 0.0) + amount
    total = Cost(tuple((column, TOTAL if not index else "") for index, column in enumerate(names)), hours)
    return Table(columns, [_cells(cost) for cost in (*costs, total)])


def _cells(cost: Cost) -> list[object]:
    cells: list[object] = [text for _, text in cost.names]
    for resource in (HeldResource.GPU, HeldResource.CPU, HeldResource.MEMORY):
        for parts in ((), (UsagePart.USEFUL,), (UsagePart.LOST,)):
            amount = cost.sum(resource, *parts)
            cells.append(f"{amount:.2f}" if amount else "")
    return cells


def _as_data(cost: Cost) -> dict[str, Any]:
    """For programs: all parts of all resources, in hours."""
    hours = {
        str(resource): {str(part): cost.hours.get((resource, part), 0.0) for part in UsagePart}
        for resource in HeldResource
    }
    return {**dict(cost.names), "hours": hours}
