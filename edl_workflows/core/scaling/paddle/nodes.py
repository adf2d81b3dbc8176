"""The fulfilment algorithm's account of nodes: the free capacity of each, and the use of the whole cluster.

Amounts are whole units, so that sums are exact: thousandths of a core, bytes, devices, pods. Requests are
rounded up, the capacity of nodes is rounded down. This module knows only nodes and requests;
`edl_workflows.core.scaling.paddle.fulfilment` decides which job gets or gives up an instance.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edl_workflows.core.scaling.policy import Resources

PODS = "pods"
PODS_PER_NODE = 110
"""The pods of a node that declares no number: the kubelet's default ``maxPods``."""
NOWHERE = -1
"""Used instead of a node's index for "no node"."""

_GRAIN = {"cpu": 1000}
"""Units per base unit; only cores can be divided."""
_LARGEST = 1e18
"""Larger amounts count as this many units."""
_STRIDE = 7919
"""A prime: search origins at this distance are spread evenly over rings of most lengths."""
_ONE_BY_ONE = 10
"""How many nodes a search first checks one by one. Most searches succeed there, and an array operation costs
as much as twenty such checks."""
_FIRST_WIDTH = 256
"""How many nodes a search then checks at once; four times as many after each failure."""

AmountVector = NDArray[np.float64]


@dataclass(frozen=True)
class FulfilmentNode:
    """A node of the cluster.

    Attributes:
        total: allocatable resources, by name in base units: cores, bytes, devices, pods.
        used: requests of pods that are no instance of a job: services, daemons, masters, parameter servers.
        schedulable: whether the node accepts new pods. A node that does not (cordoned, not ready) counts
            neither as capacity nor as use.
    """

    total: Resources
    used: Resources = field(default_factory=dict)
    schedulable: bool = True


def invalid_amount(resources: Resources) -> str:
    """Describe the first amount that is not a finite number of at least 0; empty if all are valid."""
    wrong = [name for name, amount in resources.items() if not 0 <= amount < math.inf]
    if not wrong:
        return ""
    return f"{min(wrong)} is {resources[min(wrong)]}; it must be a finite number, at least 0"


@dataclass(eq=False, slots=True)
class InstanceShape:
    """The requests of one instance; jobs with the same requests share a shape.

    Attributes:
        amounts: (resource index, units) of the amounts above 0.
        open: which nodes may host the instance.
        everywhere: whether all nodes may.
        origin: the node where the search for room begins; the search goes around all nodes once.
        passed: how many nodes from there on have no room; valid while `releases` equals the counter of
            `FreeCapacity`.
    """

    amounts: tuple[tuple[int, int], ...]
    open: NDArray[np.bool_]
    everywhere: bool
    origin: int
    passed: int = 0
    releases: int = 0

    @property
    def resources(self) -> frozenset[int]:
        """The indices in `amounts`."""
        return frozenset(number for number, _ in self.amounts)


class FreeCapacity:
    """The free capacity of the nodes. Only `load`, `take`, `release` and `add` change it.

    Args:
        names: the resources to keep account of.
        nodes: the nodes that count, by name.
        max_load: resource → the fraction of the cluster's total that may be used.

    Attributes:
        keys: the nodes' names, sorted; elsewhere a node is its index in this list.
        left: resource index → units that may still be used: max_load × total - use. Negative: the limit is
            exceeded.
    """

    def __init__(
        self, names: Sequence[str], nodes: Mapping[str, FulfilmentNode], max_load: Mapping[str, float]
    ) -> None:
        self.names = list(names)
        self.keys = sorted(nodes)
        self.index = {key: number for number, key in enumerate(self.keys)}
        self.left: list[int] = []
        self._cells: list[array[float]] = []
        for name in self.names:
            totals = _units(name, [_total(nodes[key], name) for key in self.keys])
            used_units = _units(name, [nodes[key].used.get(name, 0) for key in self.keys], up=True)
            self.left.append(math.floor(round(sum(totals) * max_load[name], 3)) - sum(used_units))
            self._cells.append(
                array("d", [total - used for total, used in zip(totals, used_units, strict=True)])
            )
        self._free: list[AmountVector] = [np.frombuffer(node_amounts) for node_amounts in self._cells]
        """The memory of `_cells`: `array` is several times faster for single amounts, numpy for many."""
        self._attainable = [node_amounts.copy() for node_amounts in self._free]
        """What would be free if every job gave up its instances beyond the minimum."""
        self._open: dict[frozenset[str], NDArray[np.bool_]] = {}
        self._shapes: dict[tuple[tuple[int, ...], frozenset[str]], InstanceShape] = {}
        self._releases = 0

    def shapes(self, asked: Sequence[tuple[Resources, frozenset[str]]]) -> list[InstanceShape]:
        """The shapes of instances.

        Args:
            asked: requests of one instance in base units, and the nodes that can't host it.
        """
        columns = []
        for name in self.names:
            # Each instance takes a pod of its node, whatever its requests say.
            amounts = [requests.get(name, 0) for requests, _ in asked]
            columns.append(
                _units(name, [max(amount, 1) for amount in amounts] if name == PODS else amounts, up=True)
            )
        instance_units = zip(*columns, strict=True)
        return [
            self._shape(units, excluded) for units, (_, excluded) in zip(instance_units, asked, strict=True)
        ]

    def load(
        self,
        shapes: Sequence[InstanceShape],
        minimum: Sequence[Sequence[int]],
        beyond: Sequence[Sequence[int]],
    ) -> None:
        """Subtract the instances that run before the algorithm begins from the free room of their nodes.

        Args:
            shapes: for each job, the shape of its instances.
            minimum: for each job, the nodes of the instances up to its minimum.
            beyond: for each job, the nodes of the instances above its minimum.
        """
        held = [dict(shape.amounts) for shape in shapes]
        for places, account in ((minimum, (self._free, self._attainable)), (beyond, (self._free,))):
            counts = [len(of_job) for of_job in places]
            where = np.fromiter((node for of_job in places for node in of_job), np.intp, sum(counts))
            for number in range(len(self.names)):
                each = [amounts.get(number, 0) for amounts in held]
                self.left[number] -= sum(amount * count for amount, count in zip(each, counts, strict=True))
                taken = np.bincount(where, np.repeat(np.array(each, np.float64), counts), len(self.keys))
                for node_amounts in account:
                    node_amounts[number] -= taken

    def take(self, node: int, shape: InstanceShape, *, minimum: bool = False) -> None:
        """Add an instance to a node, within its job's minimum or beyond it."""
        for number, amount in shape.amounts:
            self._cells[number][node] -= amount
            self.left[number] -= amount
            if minimum:
                self._attainable[number][node] -= amount

    def release(self, node: int, shape: InstanceShape, *, minimum: bool = False) -> None:
        """Remove an instance from a node, one within its job's minimum or beyond it."""
        for number, amount in shape.amounts:
            self._cells[number][node] += amount
            self.left[number] += amount
            if minimum:
                self._attainable[number][node] += amount
        self._releases += 1

    def lacking(self, node: int, *shapes: InstanceShape) -> set[int]:
        """The resources that the node lacks for one instance of each shape."""
        demand: dict[int, int] = {}
        for shape in shapes:
            for number, amount in shape.amounts:
                demand[number] = demand.get(number, 0) + amount
        return {number for number, amount in demand.items() if self._cells[number][node] < amount}

    def add(self, shape: InstanceShape) -> int:
        """Place one more instance beyond its job's minimum, within the limits.

        Returns:
            Its node; NOWHERE if no node has room or a limit would be exceeded.
        """
        # `exceeded` and `take` are written out here: a large cluster calls this a hundred thousand times.
        left, cells = self.left, self._cells
        for number, amount in shape.amounts:
            if left[number] < amount:
                return NOWHERE
        node = self.next_fit(shape)
        if node != NOWHERE:
            for number, amount in shape.amounts:
                cells[number][node] -= amount
                left[number] -= amount
        return node

    def next_fit(self, shape: InstanceShape) -> int:
        """The first node from `shape.origin` on that has room for one more instance; NOWHERE if none has."""
        if shape.releases != self._releases:
            shape.passed, shape.releases = 0, self._releases
        count, width = len(self.keys), _FIRST_WIDTH
        cells = self._cells
        for passed in range(shape.passed, min(shape.passed + _ONE_BY_ONE, count)):
            shape.passed, node = passed, (shape.origin + passed) % count
            for number, amount in shape.amounts:
                if cells[number][node] < amount:
                    break
            else:
                if shape.everywhere or shape.open[node]:
                    return node
            shape.passed += 1
        while shape.passed < count:
            start = (shape.origin + shape.passed) % count
            end = min(start + width, count, start + count - shape.passed)
            fits = self._fits(shape, self._free, start, end)
            first = int(fits.argmax())
            if fits[first]:
                shape.passed += first
                return start + first
            shape.passed += end - start
            width *= 4
        return NOWHERE

    def can_host(self, shape: InstanceShape, count: int) -> bool:
        """Whether this number of instances would fit if every job gave up its instances beyond the
        minimum."""
        nodes = np.flatnonzero(self._fits(shape, self._attainable))
        if len(nodes) >= count:
            return True
        each = [self._attainable[number][nodes] // amount for number, amount in shape.amounts]
        return int(np.minimum.reduce(each).sum()) >= count

    def nearest(self, shape: InstanceShape) -> int:
        """Of the nodes where room for one more instance can be made, the one that lacks the least."""
        lack = np.zeros(len(self.keys))
        for number, amount in shape.amounts:
            np.maximum(lack, (amount - self._free[number]) / amount, out=lack)
        return int(np.where(self._fits(shape, self._attainable), lack, np.inf).argmin())

    def overloaded(self) -> set[int]:
        """The resources that are used beyond their limit."""
        return {number for number, left in enumerate(self.left) if left < 0}

    def exceeded(self, shape: InstanceShape) -> str:
        """The first resource whose limit one more instance would exceed; empty if there is none."""
        for number, amount in shape.amounts:
            if self.left[number] < amount:
                return self.names[number]
        return ""

    def _shape(self, units: tuple[int, ...], excluded: frozenset[str]) -> InstanceShape:
        if (shape := self._shapes.get((units, excluded))) is not None:
            return shape
        if excluded not in self._open:
            self._open[excluded] = np.array([key not in excluded for key in self.keys])
        # With different origins, jobs don't search through the nodes that others have just filled.
        origin = len(self._shapes) * _STRIDE % len(self.keys)
        amounts = tuple((number, amount) for number, amount in enumerate(units) if amount)
        return self._shapes.setdefault(
            (units, excluded), InstanceShape(amounts, self._open[excluded], not excluded, origin)
        )

    @staticmethod
    def _fits(
        shape: InstanceShape, room: Sequence[AmountVector], start: int = 0, end: int | None = None
    ) -> NDArray[np.bool_]:
        """Which nodes from `start` to `end` have room for an instance."""
        fits = shape.open[start:end].copy()
        for number, amount in shape.amounts:
            fits &= room[number][start:end] >= amount
        return fits


def _total(node: FulfilmentNode, name: str) -> float:
    return node.total.get(name, PODS_PER_NODE if name == PODS else 0)


def _units(name: str, amounts: Sequence[float], *, up: bool = False) -> list[int]:
    """Base units → whole units. The rounding error of a product such as 0.57 × 1000 does not count as a
    fraction of a unit."""
    given = np.array([min(amount, _LARGEST) for amount in amounts], np.float64)
    scaled = np.minimum(given * _GRAIN.get(name, 1), _LARGEST).round(3)
    whole = np.maximum(np.ceil(scaled), given > 0) if up else np.floor(scaled)
    return [int(amount) for amount in whole.tolist()]
