"""The resources that a pod requests of its node, as the scheduler counts them. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from edl_workflows.core.kubernetes.objects import parse_quantity

Container = Mapping[str, Any]
Amounts = Mapping[str, float]


def container_requests(container: Container) -> dict[str, float]:
    """What a container requests; of a resource without a request, its limit."""
    resources = container.get("resources") or {}
    return parse_amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def pod_requests(
    spec: Mapping[str, Any], of: Callable[[Container], dict[str, float]] = container_requests
) -> dict[str, float]:
    """What a pod requests: the sum of its containers or, if larger, an init container with the sidecars
    started before it; plus the pod's overhead.

    Args:
        spec: the PodSpec.
        of: returns what one container requests.
    """
    sidecars: dict[str, float] = {}
    largest: dict[str, float] = {}
    for container in spec.get("initContainers") or ():
        asked = of(container)
        if container.get("restartPolicy") == "Always":  # a sidecar: it keeps running
            add_amounts(sidecars, asked)
            asked = {}
        add_amounts(asked, sidecars)
        largest = larger_amounts(largest, asked)
    total = dict(sidecars)
    for container in spec.get("containers") or ():
        add_amounts(total, of(container))
    requests = larger_amounts(total, largest)
    add_amounts(requests, parse_amounts(spec.get("overhead") or {}))
    return requests


def parse_amounts(quantities: Mapping[str, Any]) -> dict[str, float]:
    """Quantities as numbers, in base units."""
    return {name: parse_quantity(str(text)) for name, text in quantities.items()}


def add_amounts(total: dict[str, float], more: Amounts) -> None:
    """Add `more` to `total`, in place."""
    for name, amount in more.items():
        total[name] = total.get(name, 0.0) + amount


def larger_amounts(first: Amounts, second: Amounts) -> dict[str, float]:
    """Of each resource the larger amount."""
    return {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in {*first, *second}}
