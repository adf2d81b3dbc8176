"""Which pods the job needs created or removed: each request is an auto ScalePlan. Pure.

A request is stored before its ScalePlan is created in the cluster, under a name derived from its number. If
the master dies in between, the next master creates the same one.
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

_GIVEN_UP = (
    ExitReason.LOST,
    ExitReason.NO_HEARTBEAT,
    ExitReason.PENDING_TIMEOUT,
    ExitReason.EVALUATION_TIMEOUT,
)
RETRY_SECONDS = 10.0
"""Delay before pods are requested again, after a request could not be carried out."""


@dataclass(frozen=True)
class PodRequest:
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
class PodRequests:
    """Requests that are not known to be carried out. No other is made before `not_before` (Unix seconds)."""

    last_number: int = 0
    open: tuple[PodRequest, ...] = ()
    not_before: float = 0.0


def next_request(
    requests: PodRequests,
    registry: NodeRegistry,
    release_grace: float,
    now: float,
    *,
    more_losses: bool = False,
) -> PodRequest | None:
    """The request that creates all pods that are newly needed and removes all that are no longer needed; None
    if there are none, or if a request was refused a moment ago. Replacements of a rank that is replaced again
    and again wait until their time.

    Args:
        requests: those made before.
        registry: the nodes.
        release_grace: seconds that a released node has to end.
        now: Unix seconds.
        more_losses: whether further losses are awaited, so that all replacements wait (`LossBatch`).
    """
    if now < requests.not_before:
        return None
    wanted = [n for n in registry if n.live and n.status is NodeStatus.INITIAL and not n.asked]
    create = [node for node in wanted if node.not_before <= now and not (more_losses and node.replacements)]
    remove = [n for n in registry if not n.removal_asked and _to_remove(n, release_grace, now)]
    if not create and not remove:
        return None
    return PodRequest(requests.last_number + 1, _refs(create), _refs(remove))


def count_unreplaced(registry: NodeRegistry) -> int:
    """The number of replacements for which no pod was requested."""
    return sum(
        node.replacements > 0 and node.status is NodeStatus.INITIAL and not node.asked for node in registry
    )


def open_request(requests: PodRequests, request: PodRequest) -> PodRequests:
    return replace(requests, last_number=request.number, open=(*requests.open, request))


def mark_seen(requests: PodRequests, number: int) -> PodRequests:
    open_ = (replace(each, seen=True) if each.number == number else each for each in requests.open)
    return replace(requests, open=tuple(open_))


def close_request(requests: PodRequests, number: int) -> PodRequests:
    """Record that a request was carried out."""
    return replace(requests, open=tuple(each for each in requests.open if each.number != number))


def refuse_request(requests: PodRequests, number: int, now: float) -> PodRequests:
    """Record that a request failed or was deleted."""
    return replace(close_request(requests, number), not_before=now + RETRY_SECONDS)


def _to_remove(node: JobNode, release_grace: float, now: float) -> bool:
    if node.pod is PodState.OUTLIVED:
        return True
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
