"""The input of the fulfilment algorithm, built from jobs, nodes and pods. Pure.

A pending pod that is not an instance of a candidate, for example a job's parameter server or master, is
passed to the algorithm as a job of its own, for which it makes room. The algorithm considers only some
placement rules: node selectors, required node affinity and taints. The scheduler, which finally places the
pods, applies all rules.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edl_workflows.core.jobs.autoscaling import ElasticRole
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.kubernetes import demand
from edl_workflows.core.scaling.paddle import fulfilment
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode
from edl_workflows.services.controller.policy_input import accepts_pods, is_node_gone, node_admits

Object = Mapping[str, Any]


@dataclass(frozen=True)
class ScalingCandidate:
    """A job that may be changed.

    Attributes:
        kind: the registered kind of the job.
        manifest: the job as observed.
        job: the same, parsed.
        elastic: the role that may be resized.
        growing: whether it may also grow.
    """

    kind: Kind
    manifest: Object
    job: Any
    elastic: ElasticRole
    growing: bool = True

    @property
    def key(self) -> str:
        """The identity of the job among jobs of all kinds."""
        return f"{self.kind.name} {self.job.key}"


@dataclass(frozen=True)
class FulfilmentRequest:
    """The input of `decide_fulfilment`.

    Attributes:
        jobs: candidates by key, and pending pods.
        nodes: by name.
    """

    jobs: dict[str, fulfilment.FulfilmentJob]
    nodes: dict[str, FulfilmentNode]


def build_request(
    candidates: Iterable[ScalingCandidate], nodes: Iterable[Object], pods: Iterable[Object], now: datetime
) -> FulfilmentRequest:
    """Make the request.

    Args:
        candidates: the jobs that may be changed.
        nodes: as returned by `policy_input.kept_node`.
        pods: all pods, as returned by `policy_input.kept_pod`.
        now: the time.
    """
    live_nodes = {node["metadata"]["name"]: node for node in nodes if not is_node_gone(node, now)}
    mine = {
        (candidate.kind.name, candidate.job.metadata.namespace or "", candidate.job.metadata.name): candidate
        for candidate in candidates
    }
    kinds = {kind.name: kind for kind in (candidate.kind for candidate in mine.values())}.values()
    places: dict[str, list[tuple[int, str]]] = {candidate.key: [] for candidate in mine.values()}
    used: dict[str, dict[str, float]] = {name: {} for name in live_nodes}
    jobs: dict[str, fulfilment.FulfilmentJob] = {}
    for pod in pods:
        if pod["over"]:
            continue
        node, owner = pod["node"], _owner(pod, mine, kinds)
        if owner is not None and node in live_nodes:
            places[owner.key].append((_index(pod, owner.kind), node))
        elif owner is None and node in live_nodes:
            demand.add_amounts(used[node], pod["requests"])
        elif owner is None and not node:
            jobs[f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"] = _waiting(pod)
    for candidate in mine.values():
        held = tuple(node for _, node in sorted(places[candidate.key]))
        jobs[candidate.key] = _asked(candidate, held, live_nodes)
    return FulfilmentRequest(
        jobs,
        {
            name: FulfilmentNode(_finite(node["allocatable"]), used[name], accepts_pods(node))
            for name, node in live_nodes.items()
        },
    )


def _asked(
    candidate: ScalingCandidate, places: tuple[str, ...], nodes: Mapping[str, Object]
) -> fulfilment.FulfilmentJob:
    elastic = candidate.elastic
    most = (
        elastic.maximum if candidate.growing else max(elastic.minimum, min(elastic.replicas, elastic.maximum))
    )
    excluded = frozenset(name for name, node in nodes.items() if not node_admits(node, elastic.placement))
    return fulfilment.FulfilmentJob(
        elastic.requests, elastic.minimum, most, elastic.replicas, places, excluded
    )


def _waiting(pod: Object) -> fulfilment.FulfilmentJob:
    return fulfilment.FulfilmentJob(pod["requests"], 1, 1, 1)


def _owner(
    pod: Object, candidates: Mapping[tuple[str, str, str], ScalingCandidate], kinds: Iterable[Kind]
) -> ScalingCandidate | None:
    """The candidate that the pod belongs to."""
    labels = pod["metadata"].get("labels") or {}
    for kind in kinds:
        job_label, role_label, _ = kind.labels
        where = (kind.name, pod["metadata"].get("namespace") or "", labels.get(job_label, ""))
        candidate = candidates.get(where)
        if (
            candidate is not None
            and labels.get(role_label) == candidate.elastic.role
            and kind.pods.selects(pod)
        ):
            return candidate
    return None


def _index(pod: Object, kind: Kind) -> int:
    text = (pod["metadata"].get("labels") or {}).get(kind.labels[2], "")
    return int(text) if text.isdigit() else 0


def _finite(amounts: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if math.isfinite(amount)}
