"""Auto ScalePlans: which pods the job needs created or removed.

A plan is stored before it is created in the cluster, under a name derived from its number. If the master dies
in between, the next master creates the same plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from edl_workflows.services.master.state.nodes.registry import (
    ExitReason,
    JobNode,
    NodeRegistry,
    NodeStatus,
    PodState,
)

_GIVEN_UP = (ExitReason.NO_HEARTBEAT, ExitReason.PENDING_TIMEOUT, ExitReason.EVALUATION_TIMEOUT)
RETRY_SECONDS = 10.0
"""Delay before pods are requested again, after a plan could not be carried out."""


@dataclass(frozen=True)
class PodPlan:
    """One auto ScalePlan: nodes to create and to remove, by (type, id). `seen`: whether it was observed in
    the cluster.
    """

    number: int
    create: tuple[tuple[str, int], ...]
    remove: tuple[tuple[str, int], ...]
    seen: bool = False

    def name(self, job: str) -> str:
        """Name of its ScalePlan; the pattern is that of DLRover's ElasticJobScaler."""
        return f"{job}-scaleplan-{self.number}"


@dataclass(frozen=True)
class PodPlans:
    """Plans that are not known to be carried out. No other is made before `not_before` (Unix seconds)."""

    last_number: int = 0
    open: tuple[PodPlan, ...] = ()
    not_before: float = 0.0


def plan_pods(plans: PodPlans, registry: NodeRegistry, release_grace: float, now: float) -> PodPlans:
    """Add one plan that creates all pods that are newly needed and removes all that are no longer needed."""
    if now < plans.not_before:
        return plans
    create = [n for n in registry if n.live and n.status is NodeStatus.INITIAL and not n.asked]
    remove = [n for n in registry if not n.removal_asked and _to_remove(n, release_grace, now)]
    if not create and not remove:
        return plans
    for node in create:
        registry.change(node, asked=True)
    for node in remove:
        registry.change(node, removal_asked=True)
    plan = PodPlan(plans.last_number + 1, _refs(create), _refs(remove))
    return replace(plans, last_number=plan.number, open=(*plans.open, plan))


def mark_carried_out(plans: PodPlans, registry: NodeRegistry, number: int, now: float) -> PodPlans:
    """Record that a plan's pods were created and removed."""
    for plan in plans.open:
        if plan.number == number:
            for node in _known(registry, plan.create):
                registry.change(node, status=NodeStatus.PENDING, since=now)
    return replace(plans, open=tuple(plan for plan in plans.open if plan.number != number))


def mark_seen(plans: PodPlans, number: int) -> PodPlans:
    return replace(plans, open=tuple(replace(p, seen=True) if p.number == number else p for p in plans.open))


def mark_refused(plans: PodPlans, registry: NodeRegistry, number: int, now: float) -> PodPlans:
    """Record that a plan failed or was deleted; its pods are requested again later."""
    for plan in plans.open:
        if plan.number == number:
            for node in _known(registry, plan.create):
                registry.change(node, asked=node.status is not NodeStatus.INITIAL)
            for node in _known(registry, plan.remove):
                registry.change(node, removal_asked=False)
    rest = tuple(plan for plan in plans.open if plan.number != number)
    return replace(plans, open=rest, not_before=now + RETRY_SECONDS)


def _to_remove(node: JobNode, release_grace: float, now: float) -> bool:
    if node.pod not in (PodState.THERE, PodState.ENDED):
        return False
    if node.released:
        ended = node.pod is PodState.ENDED or node.status.final or not node.registered
        return ended or now - node.released_at > release_grace
    # The master gave up the node while its pod may still run. A node that reported its end exits by itself,
    # which keeps the pod's log.

    given_up = node.lost and node.exit_reason in _GIVEN_UP
    return given_up and node.pod is PodState.THERE and now - node.since > release_grace


def _refs(nodes: Iterable[JobNode]) -> tuple[tuple[str, int], ...]:
    return tuple((node.type, node.id) for node in nodes)


def _known(registry: NodeRegistry, refs: Iterable[tuple[str, int]]) -> list[JobNode]:
    return [node for ref in refs if (node := registry.find(*ref)) is not None]
