"""The duration of a training step on a placement, from measurements.

Small placements were measured individually, each at several local batch sizes. Larger ones were measured at
some numbers of nodes and replicas; between these, durations are interpolated linearly in the local batch
size, in the replicas per node, and in the number of nodes.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from edl_workflows.core.exceptions import InvalidError

Placement = tuple[int, ...]
"""Replicas on each node, in the order of ranks: ``(4, 2)`` is six replicas on two nodes."""


@dataclass(frozen=True)
class StepTime:
    """The duration in seconds of a step with one mini-batch per replica.

    Attributes:
        total: from its start to the start of the next step.
        sync: the part in which gradients are exchanged and nothing is computed; 0 for a step that only
            accumulates gradients.
    """

    total: float
    sync: float

    def accumulated(self, accumulation: int) -> float:
        """The duration of a step with `accumulation` more mini-batches and one exchange of gradients."""
        return self.total + (self.total - self.sync) * accumulation


def smallest_rotation(placement: Placement) -> Placement:
    """The smallest rotation of a placement; rotations are the same ring, started on another node."""
    return min(placement[start:] + placement[:start] for start in range(len(placement)))


@dataclass(frozen=True)
class StepTimeCurve:
    """Step times by local batch size, ascending, with linear interpolation.

    A batch smaller than the first point takes as long as the first point, since a step has a fixed cost.
    Beyond the last point, the time is proportional to the batch. So no batch that was not measured looks
    better than those that were.
    """

    sizes: tuple[int, ...]
    steps: tuple[StepTime, ...]

    @classmethod
    def of(cls, points: Mapping[int, StepTime]) -> "StepTimeCurve":
        sizes = tuple(sorted(points))
        return cls(sizes, tuple(points[size] for size in sizes))

    def at(self, size: float) -> StepTime:
        if size <= self.sizes[0]:
            return self.steps[0]
        if size > self.sizes[-1]:
            return StepTime(self.steps[-1].total * size / self.sizes[-1], self.steps[-1].sync)
        upper = bisect_left(self.sizes, size)
        low, high = self.sizes[upper - 1], self.sizes[upper]
        return _between(self.steps[upper - 1], self.steps[upper], (size - low) / (high - low))


@dataclass(frozen=True)
class ThroughputTable:
    """Step times of one application; see the module.

    Attributes:
        placements: measured placements, by their `smallest_rotation`.
        scalability: nodes → replicas → step times, averaged over placements.
    """

    placements: Mapping[Placement, StepTimeCurve]
    scalability: Mapping[int, Mapping[int, StepTimeCurve]] = field(repr=False)

    @classmethod
    def of(
        cls,
        placements: Mapping[Placement, Mapping[int, StepTime]],
        scalability: Mapping[tuple[int, int], Mapping[int, StepTime]],
    ) -> "ThroughputTable":
        """Make a table from measurements.

        Args:
            placements: placement → local batch size → step time.
            scalability: (nodes, replicas) → local batch size → step time.

        Raises:
            InvalidError: nothing was measured.
        """
        if not placements:
            raise InvalidError("no placement was measured; give at least the one of one replica")
        by_nodes: dict[int, dict[int, StepTimeCurve]] = defaultdict(dict)
        for (nodes, replicas), points in (_averaged(placements) | dict(scalability)).items():
            by_nodes[nodes][replicas] = StepTimeCurve.of(points)
        curves = {
            smallest_rotation(placement): StepTimeCurve.of(points) for placement, points in placements.items()
        }
        return cls(curves, {nodes: dict(sorted(by_nodes[nodes].items())) for nodes in sorted(by_nodes)})

    def step_time(self, placement: Placement, local_bsz: int) -> StepTime:
        """The duration of a step.

        Args:
            placement: replicas on each node.
            local_bsz: examples in one replica's mini-batch.
        """
        measured = self.placements.get(smallest_rotation(placement))
        if measured is not None:
            return measured.at(local_bsz)
        replicas = sum(placement)
        low, high, part = _neighbours(tuple(self.scalability), len(placement))
        # Interpolation keeps the replicas per node, not the replicas: that number lies between 1 and the GPUs
        # of a node, and so within the measured range.
        per_node = replicas / min(len(placement), max(self.scalability))
        return _between(
            self._on(low, per_node * low, local_bsz), self._on(high, per_node * high, local_bsz), part
        )

    def _on(self, nodes: int, replicas: float, local_bsz: int) -> StepTime:
        curves = self.scalability[nodes]
        low, high, part = _neighbours(tuple(curves), replicas)
        return _between(curves[low].at(local_bsz), curves[high].at(local_bsz), part)


def _neighbours(measured: tuple[int, ...], value: float) -> tuple[int, int, float]:
    """The neighbours of a value among ascending ones, and its position between them, 0 to 1; clamped."""
    upper = bisect_left(measured, value)
    if upper == 0 or upper == len(measured):
        nearest = measured[min(upper, len(measured) - 1)]
        return nearest, nearest, 0.0
    low, high = measured[upper - 1], measured[upper]
    return low, high, (value - low) / (high - low)


def _between(low: StepTime, high: StepTime, part: float) -> StepTime:
    return StepTime(low.total + (high.total - low.total) * part, low.sync + (high.sync - low.sync) * part)


def _averaged(
    placements: Mapping[Placement, Mapping[int, StepTime]],
) -> dict[tuple[int, int], dict[int, StepTime]]:
    """(nodes, replicas) → local batch size → the mean over the placements of that shape."""
    by_shape: dict[tuple[int, int], dict[int, list[StepTime]]] = defaultdict(lambda: defaultdict(list))
    for placement, points in placements.items():
        for size, step in points.items():
            by_shape[len(placement), sum(placement)][size].append(step)
    return {
        shape: {size: _mean(steps) for size, steps in points.items()} for shape, points in by_shape.items()
    }


def _mean(steps: Iterable[StepTime]) -> StepTime:
    steps = list(steps)
    return StepTime(fmean(step.total for step in steps), fmean(step.sync for step in steps))
