"""Resource arithmetic in integers (millicores, bytes, items)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.local.pods import Container, Pod

_PODS = "pods"
_MOST = 2.0**63
"""The largest amount that Kubernetes allows."""


def to_units(resource: str, amount: float) -> int:
    """An amount in the resource's unit, rounded up: CPU in millicores, all other resources unchanged."""
    scaled = min(amount * 1000 if resource == "cpu" else amount, _MOST)
    whole = round(scaled)
    # Rounding errors of floats such as 0.1 are far smaller than a unit and are not rounded up.
    return whole if abs(scaled - whole) < 1e-6 else int(scaled) + 1


@dataclass(frozen=True)
class ResourceUnits:
    """Amounts by resource name, in the units of `to_units`."""

    values: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, quantities: Mapping[str, str]) -> "ResourceUnits":
        """Parse quantities such as ``{"cpu": "500m", "memory": "1Gi"}``.

        Raises:
            ValueError: a value is not a quantity.
        """
        return cls({name: to_units(name, parse_quantity(text)) for name, text in quantities.items()})

    @classmethod
    def one_pod(cls) -> "ResourceUnits":
        """The amounts of a pod without requests."""
        return cls({_PODS: 1})

    def plus(self, other: "ResourceUnits") -> "ResourceUnits":
        names = {*self.values, *other.values}
        return ResourceUnits({name: self.values.get(name, 0) + other.values.get(name, 0) for name in names})

    def lacking(self, requested: "ResourceUnits") -> list[str]:
        """The resources of which `requested` contains more than these amounts, sorted. A resource that is not
        requested is never among them."""
        return sorted(
            name for name, amount in requested.values.items() if 0 < amount > self.values.get(name, 0)
        )

    def minus(self, other: "ResourceUnits") -> "ResourceUnits":
        """The difference; amounts may be negative."""
        names = {*self.values, *other.values}
        return ResourceUnits({name: self.values.get(name, 0) - other.values.get(name, 0) for name in names})


def pod_units(pod: Pod) -> ResourceUnits:
    """What a pod occupies: for each resource, the sum over its containers or the largest request of an init
    container, whichever is more; and one of the resource ``pods``."""
    together = _sum(pod.spec.containers)
    largest: dict[str, int] = dict(together.values)
    for container in pod.spec.init_containers:
        for name, amount in _requests(container).items():
            largest[name] = max(largest.get(name, 0), amount)
    return ResourceUnits({**largest, _PODS: 1})


def _sum(containers: Iterable[Container]) -> ResourceUnits:
    total = ResourceUnits()
    for container in containers:
        total = total.plus(ResourceUnits(_requests(container)))
    return total


def _requests(container: Container) -> dict[str, int]:
    names = {*container.resources.requests, *container.resources.limits}
    return {name: to_units(name, container.resources.request(name)) for name in names}
