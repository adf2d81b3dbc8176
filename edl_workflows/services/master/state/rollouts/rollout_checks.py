"""Checks of a manual ScalePlan: whether the job can carry it out at all, and what the plan still waits for.
Pure. Messages about the spec name the field.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from edl_workflows.core.jobs.scale_plan.model import NodeResource, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.protocol.nodes import ServerChanges, ServerReport
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.registry import JobNode
from edl_workflows.services.master.state.rollouts.rollout import changes_members, role_request
from edl_workflows.services.master.state.settings import JobSettings, merge_resources
from edl_workflows.services.master.state.versions.cluster_versions import ChangeCause, VersionChange
from edl_workflows.services.master.state.versions.rendezvous import round_to_units


@dataclass(frozen=True)
class RolloutContext:
    """The job when a plan is about to begin.

    Attributes:
        counts: desired counts by role.
        sizes: size of a node by role, where it differs from the template's.
        nodes: live nodes by pod name.
        max_workers: the most workers that a collective job may have.
        servers: which changes of its parameter servers the program allows; None if it did not say.
    """

    settings: JobSettings
    counts: Mapping[str, int]
    sizes: Mapping[str, NodeResource]
    nodes: Mapping[str, JobNode]
    max_workers: int = 0
    servers: ServerReport | None = None


def find_problem(spec: ScalePlanSpec, present: RolloutContext) -> str:
    """The first problem of a plan; "" if there is none."""
    return next((message for message in _find_problems(spec, present) if message), "")


def _find_problems(spec: ScalePlanSpec, present: RolloutContext) -> Iterator[str]:
    for name, pods in (("createPods", spec.create_pods), ("removePods", spec.remove_pods)):
        if pods:
            yield (
                f"spec.{name}: reserved for plans of a job's master; use replicaResourceSpecs and migratePods"
            )
    yield _server_problem(spec, present)
    for role in spec.replica_resource_specs:
        yield _role_problem(spec, role, present)
    for rank in spec.migrate_ranks:  # ranks without a pod
        yield (
            f"spec.migrateRanks.{rank}: no parameter server of this rank runs; "
            f"the ranks are {_list_ranks(present)}"
        )
    for index, pod in enumerate(spec.migrate_pods):
        yield _migration_problem(index, pod.name, present)
    for resource in ("cpu", "memory", "gpu"):
        yield _limit_problem(spec, resource, present)


def _server_problem(spec: ScalePlanSpec, present: RolloutContext) -> str:
    report = present.servers
    if report is None or report.changes is ServerChanges.ANY:
        return ""
    count = present.counts.get(names.PS_TYPE, 0)
    if _count_after(spec, names.PS_TYPE, count) != count:
        return (
            "spec.replicaResourceSpecs.ps.replicas: the number of parameter servers can't change: "
            f"{report.reason}"
        )
    servers = frozenset(pod for pod, node in present.nodes.items() if node.type == names.PS_TYPE)
    if report.changes is ServerChanges.NEVER and changes_members(spec, names.PS_TYPE, count, servers):
        return f"spec.migratePods: parameter servers can't be replaced: {report.reason}"
    return ""


def _role_problem(spec: ScalePlanSpec, role: str, present: RolloutContext) -> str:
    path = f"spec.replicaResourceSpecs.{role}"
    if role not in present.settings.roles:
        return f"{path}: the job has no such role; it has {', '.join(sorted(present.settings.roles))}"
    replicas = _requested_replicas(spec, role)
    if replicas is None:
        return ""
    if role == names.PS_TYPE and replicas < 1:
        return f"{path}.replicas: {replicas} parameter servers can't hold the model; at least 1 is needed"
    if role == names.WORKER_TYPE and present.settings.collective:
        return _group_problem(path, replicas, present)
    if role == names.CHIEF_TYPE and replicas != 1:
        return f"{path}.replicas: a job has exactly one chief"
    if role == present.settings.chief_type and replicas < 1:
        return f"{path}.replicas: at least 1 is needed; {role} 0 is the job's chief"
    return ""


def _group_problem(path: str, workers: int, present: RolloutContext) -> str:
    least = present.settings.rendezvous.min_nodes
    if workers < least:
        return (
            f"{path}.replicas: at least {least} workers train together (spec.rendezvous.minNodes); "
            f"{workers} are requested"
        )
    if round_to_units(workers, present.settings.rendezvous) != workers:
        unit = present.settings.rendezvous.node_unit
        return f"{path}.replicas: {workers} is not a multiple of {unit} (spec.rendezvous.nodeUnit)"
    if workers > present.max_workers:
        return (
            f"{path}.replicas: the global batch has {present.max_workers} mini-batches "
            f"(spec.rendezvous.maxNodes), and each worker needs at least one of them; "
            f"{workers} workers are requested"
        )
    return ""


def _migration_problem(index: int, pod: str, present: RolloutContext) -> str:
    path = f"spec.migratePods.{index}.name"
    node = present.nodes.get(pod)
    if node is None:
        return f"{path}: the job has no running pod {pod!r}; it has {', '.join(sorted(present.nodes))}"
    if present.settings.collective:
        return ""
    if (node.type, node.rank) == (present.settings.chief_type, 0):
        return f"{path}: {pod!r} is the chief, which can't be migrated"
    return ""


def _list_ranks(present: RolloutContext) -> str:
    ranks = sorted(node.rank for node in present.nodes.values() if node.type == names.PS_TYPE)
    return ", ".join(map(str, ranks)) or "none"


def _limit_problem(spec: ScalePlanSpec, resource: str, present: RolloutContext) -> str:
    limit = present.settings.limits.get(resource, float("inf"))
    before = sum(_total_use(present, role, resource, count, None) for role, count in present.counts.items())
    after = sum(
        _total_use(present, role, resource, _count_after(spec, role, count), spec)
        for role, count in present.counts.items()
    )
    # A job that exceeded its limits from the start may still shrink.
    if after <= limit or after <= before:
        return ""
    return (
        f"{_asking_field(spec, resource)}: the job would use {after:g} of {resource}, "
        f"its resourceLimits allow {limit:g}"
    )


def _asking_field(spec: ScalePlanSpec, resource: str) -> str:
    for role, asked in spec.replica_resource_specs.items():
        if getattr(asked.resource, resource) is not None:
            return f"spec.replicaResourceSpecs.{role}.resource.{resource}"
    for index, pod in enumerate(spec.migrate_pods):
        if getattr(pod.resource, resource) is not None:
            return f"spec.migratePods.{index}.resource.{resource}"
    return f"spec.replicaResourceSpecs.{next(iter(spec.replica_resource_specs))}.replicas"


def _total_use(
    present: RolloutContext, role: str, resource: str, count: int, spec: ScalePlanSpec | None
) -> float:
    """Total amount of a resource that a role with `count` nodes uses. It counts the present nodes, without
    the newest if there are too many, and new nodes if there are too few.
    """
    migrated = {pod.name: pod.resource for pod in spec.migrate_pods} if spec else {}
    live = sorted((n.id, pod) for pod, n in present.nodes.items() if n.type == role)[:count]
    default = merge_resources(present.sizes.get(role, NodeResource()), present.settings.roles[role].resource)
    fresh = default
    asked = role_request(spec, role) if spec else None
    if asked:
        fresh = merge_resources(asked.resource, default)
    sizes = [
        merge_resources(
            migrated.get(pod, NodeResource()), merge_resources(present.nodes[pod].resource, default)
        )
        for _, pod in live
    ]
    sizes += [fresh] * (count - len(sizes))
    return sum(parse_quantity(getattr(size, resource) or "0") for size in sizes)


def _count_after(spec: ScalePlanSpec, role: str, count: int) -> int:
    requested = _requested_replicas(spec, role)
    return count if requested is None else requested


def _requested_replicas(spec: ScalePlanSpec, role: str) -> int | None:
    request = role_request(spec, role)
    return request.replicas if request else None


MAX_NAMED = 10
"""Nodes listed by name."""

_CAUSES = {
    ChangeCause.RECOVERY: "a lost node is being replaced",
    ChangeCause.ROLLBACK: "the previous plan is being rolled back",
    ChangeCause.MEMBERSHIP: "workers that joined are being admitted",
}


def describe_wait(state: JobState) -> str:
    """Why the job can't be changed now; "" if it can. While the reason is the same, so is the text."""
    active, change = state.versions.active, state.versions.change
    if change is not None and change.cause in _CAUSES:
        return f"{_CAUSES[change.cause]}{_describe_awaited(state, change)}"
    if active is None:
        return f"training has not begun{_describe_awaited(state, change)}"
    if state.versions.trained < active.number:
        return (
            f"no step of cluster version {active.number} was reported: programs report that they train with "
            "`connect()` of edl_workflows.training, or with an adapter that calls it"
        )
    return ""


def _describe_awaited(state: JobState, change: VersionChange | None) -> str:
    """The nodes that a change waits for."""
    if not state.checked:
        return ": the nodes are being checked (nodeCheck)"
    awaited = [node for node in state.nodes if node.live and node.type != names.EVALUATOR_TYPE]
    absent = [node for node in awaited if not node.registered]
    if absent:
        return (
            f": {_list_names(absent)} did not register with the master of the job; their containers must run "
            "and start the program with `edl agent run -- PROGRAM`"
        )
    members = [
        node
        for node in awaited
        if change and node.id in change.target and node.type == state.settings.member_type
    ]
    unready = [node for node in members if change and str(node) not in change.ready]
    return f": the programs of {_list_names(unready)} are not ready" if unready else ""


def _list_names(nodes: Iterable[JobNode]) -> str:
    node_names = [str(node) for node in sorted(nodes, key=lambda node: (node.type, node.id))]
    more = len(node_names) - MAX_NAMED
    return ", ".join(node_names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
