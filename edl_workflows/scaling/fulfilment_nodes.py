"""The nodes as the fulfilment planner keeps account of them: what is free on each, and the use of the cluster.

Amounts are whole units, so that sums are exact: thousandths of a core, else single bytes, devices and pods. What an
instance asks for is rounded up, what a node has is rounded down. This module knows nodes and requests; which job gets or
gives an instance is `edl_workflows.scaling.fulfilment`'s question.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edl_workflows.scaling.policy import Resources

PODS = "pods"
PODS_PER_NODE = 110
"""What a node that does not say takes: the kubelet's default ``maxPods``."""
NOWHERE = -1
"""The index of no node."""

_GRAIN = {"cpu": 1000}
"""Units of one; Kubernetes knows fractions of cores only."""
_LARGEST = 1e18
"""More units than that count as so many."""

Amounts = NDArray[np.float64]


@dataclass(frozen=True)
class Node:
    """A node of the cluster.

    Attributes:
        total: what it can hold (allocatable), by resource name in base units: cores, bytes, devices, pods.
        used: requests of the pods on it that are no job's instance: services, daemons, masters, parameter servers.
        schedulable: whether it takes new pods. One that doesn't (cordoned, not ready) counts neither as capacity nor as use.
    """

    total: Resources
    used: Resources = field(default_factory=dict)
    schedulable: bool = True


def unusable(resources: Resources) -> str:
    """The first amount that is no finite number of at least 0, in words; empty where there is none."""
    for name in sorted(resources):
        if not 0 <= resources[name] < math.inf:
            return f"{name} is {resources[name]}; it must be a finite number, at least 0"
    return ""


@dataclass(eq=False, slots=True)
class Shape:
    """What one instance asks for; jobs that ask for the same share it.

    Attributes:
        amounts: resource index → units, those above 0 alone.
        open: which nodes may host it.
        cursor: no node before this one has room, as long as `releases` is the room's.
    """

    amounts: tuple[tuple[int, int], ...]
    open: NDArray[np.bool_]
    cursor: int = 0
    releases: int = 0
    resources: frozenset[int] = field(init=False)
    """The indices in `amounts`."""

    def __post_init__(self) -> None:
        self.resources = frozenset(number for number, _ in self.amounts)


class Room:
    """What is free. Every method but `take` and `release` leaves it as it is.

    Args:
        names: the resources to keep account of.
        nodes: those that count, by name.
        max_load: resource → the part of the cluster's total that may be used.

    Attributes:
        keys: the nodes' names, sorted; everything else calls a node by its index here.
        used: resource index → units in use on all nodes.
        limit: resource index → units that may be used, max_load × total.
    """

    def __init__(
        self, names: Sequence[str], nodes: Mapping[str, Node], max_load: Mapping[str, float]
    ) -> None:
        self.names = list(names)
        self.keys = sorted(nodes)
        self.index = {key: number for number, key in enumerate(self.keys)}
        ordered = [nodes[key] for key in self.keys]
        totals = [[_units(name, _total(node, name)) for node in ordered] for name in names]
        others = [[_units(name, node.used.get(name, 0), up=True) for node in ordered] for name in names]
        self.used = [sum(row) for row in others]
        self.limit = [
            math.floor(round(sum(row) * max_load[name], 3)) for name, row in zip(names, totals, strict=True)
        ]
        self._free: list[Amounts] = [
            np.array(total, dtype=np.float64) - np.array(other, dtype=np.float64)
            for total, other in zip(totals, others, strict=True)
        ]
        self._attainable = [row.copy() for row in self._free]
        """What would be free if every job gave up all that it has beyond its minimum."""
        self._shapes: dict[tuple[tuple[tuple[int, int], ...], frozenset[str]], Shape] = {}
        self._releases = 0

    def shape(self, requests: Resources, excluded: frozenset[str] = frozenset()) -> Shape:
        """The shape of an instance; it takes one of the node's pods.

        Args:
            requests: in base units.
            excluded: nodes that can't host it.
        """
        asked = {PODS: 1.0, **requests}
        units = (
            (number, _units(name, asked.get(name, 0), up=True)) for number, name in enumerate(self.names)
        )
        amounts = tuple((number, amount) for number, amount in units if amount)
        if (known := self._shapes.get((amounts, excluded))) is not None:
            return known
        open_ = np.ones(len(self.keys), dtype=np.bool_)
        open_[[self.index[key] for key in excluded if key in self.index]] = False
        return self._shapes.setdefault((amounts, excluded), Shape(amounts, open_))

    def load(
        self, shapes: Sequence[Shape], minimum: Sequence[Sequence[int]], beyond: Sequence[Sequence[int]]
    ) -> None:
        """Counts in what runs at first, all jobs at once.

        Args:
            shapes: job → the shape of its instances.
            minimum, beyond: job → the nodes of its instances within and beyond its minimum.
        """
        held = [dict(shape.amounts) for shape in shapes]
        for places, account in ((minimum, (self._free, self._attainable)), (beyond, (self._free,))):
            counts = [len(of_job) for of_job in places]
            where = np.fromiter((node for of_job in places for node in of_job), np.intp, sum(counts))
            for number in range(len(self.names)):
                each = [amounts.get(number, 0) for amounts in held]
                self.used[number] += sum(amount * count for amount, count in zip(each, counts, strict=True))
                taken = np.bincount(where, np.repeat(np.array(each, np.float64), counts), len(self.keys))
                for row in account:
                    row[number] -= taken

    def take(self, node: int, shape: Shape, *, minimum: bool = False) -> None:
        """One instance more on a node, within its job's minimum or beyond it."""
        for number, amount in shape.amounts:
            self._free[number][node] -= amount
            self.used[number] += amount
            if minimum:
                self._attainable[number][node] -= amount

    def release(self, node: int, shape: Shape) -> None:
        """One instance beyond its job's minimum less."""
        for number, amount in shape.amounts:
            self._free[number][node] += amount
            self.used[number] -= amount
        self._releases += 1

    def lacking(self, node: int, *shapes: Shape) -> set[int]:
        """The resources of which the node has too little for one of each shape."""
        wanted: dict[int, int] = {}
        for shape in shapes:
            for number, amount in shape.amounts:
                wanted[number] = wanted.get(number, 0) + amount
        return {number for number, amount in wanted.items() if self._free[number][node] < amount}

    def first_fit(self, shape: Shape) -> int:
        """The first node by name that has room for one more; NOWHERE if none has."""
        if shape.releases != self._releases:
            shape.cursor, shape.releases = 0, self._releases
        start = shape.cursor
        if start < len(self.keys) and not self._holds(start, shape):
            found = shape.open[start:].copy()
            for number, amount in shape.amounts:
                found &= self._free[number][start:] >= amount
            first = int(found.argmax())
            shape.cursor = start + first if found[first] else len(self.keys)
        return shape.cursor if shape.cursor < len(self.keys) else NOWHERE

    def attainable(self, shape: Shape) -> int:
        """How many more instances there would be room for if every job gave up what is beyond its minimum."""
        each = [self._attainable[number] // amount for number, amount in shape.amounts]
        return int(np.where(shape.open, np.minimum.reduce(each).clip(0), 0).sum())

    def nearest(self, shape: Shape) -> int:
        """Of the nodes where room for one more can be made, the one that lacks the least of it."""
        possible = shape.open.copy()
        lack = np.zeros(len(self.keys))
        for number, amount in shape.amounts:
            possible &= self._attainable[number] >= amount
            np.maximum(lack, (amount - self._free[number]) / amount, out=lack)
        return int(np.where(possible, lack, np.inf).argmin())

    def overloaded(self) -> set[int]:
        """The resources whose use is beyond the limit."""
        return {number for number, limit in enumerate(self.limit) if self.used[number] > limit}

    def exceeded(self, shape: Shape) -> str:
        """The first resource whose limit one more instance would break; empty if none."""
        for number, amount in shape.amounts:
            if self.used[number] + amount > self.limit[number]:
                return self.names[number]
        return ""

    def _holds(self, node: int, shape: Shape) -> bool:
        return bool(shape.open[node]) and all(
            self._free[number][node] >= amount for number, amount in shape.amounts
        )


def _total(node: Node, name: str) -> float:
    return node.total.get(name, PODS_PER_NODE if name == PODS else 0)


def _units(name: str, amount: float, *, up: bool = False) -> int:
    """Base units → whole units. A product such as 0.57 × 1000 is a little off a whole number; that is no fraction."""
    scaled = round(min(amount * _GRAIN.get(name, 1), _LARGEST), 3)
    if not up:
        return math.floor(scaled)
    return max(math.ceil(scaled), 1) if amount > 0 else 0
