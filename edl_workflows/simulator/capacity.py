"""Changes of the capacity for jobs over time: node failures, and services that have priority over jobs."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.portable_math import portable_log

FAILURE = "failure"
"""Value of `CapacityChange.by` for a failure."""


@dataclass(frozen=True)
class CapacityChange:
    """From a time on, a failure or a service takes GPUs of a node.

    Attributes:
        time: seconds after the start of the run.
        node: the node's name.
        by: `FAILURE`, or the name of a service. The change replaces an earlier one by the same name on this
            node; changes by different names add up. After a failure, jobs lose what they trained since their
            last checkpoint; for a service, they save a checkpoint before they leave.
        taken: number of GPUs.
    """

    time: float
    node: str
    by: str
    taken: int


def draw_failures(
    nodes: Mapping[str, int], *, mean_time_between: float, repair_time: float, until: float, seed: int
) -> list[CapacityChange]:
    """Draw failures of nodes, which fail independently, with exponential times between failures, and are
    repaired.

    Args:
        nodes: node → its GPUs.
        mean_time_between: mean seconds that a node is up between two failures.
        repair_time: seconds until a failed node is back.
        until: the time of the last possible failure, in seconds.
        seed: the same seed gives the same failures.

    Raises:
        InvalidError: a time is not a number above 0, or the seed is negative.
    """
    for name, value in (("mean time between failures", mean_time_between), ("repair time", repair_time)):
        if not 0 < value < inf:
            raise InvalidError(f"{name}: {value} is not a number of seconds above 0")
    if seed < 0:
        raise InvalidError(f"seed: {seed} is below 0")
    changes = []
    for number, (node, gpus) in enumerate(sorted(nodes.items())):
        # One generator for each node, so that an additional node does not change the failures of the others.
        random = np.random.default_rng([seed, number])
        time = _exponential(random, mean_time_between)
        while time < until:
            changes.append(CapacityChange(time, node, FAILURE, gpus))
            changes.append(CapacityChange(time + repair_time, node, FAILURE, 0))
            time += repair_time + _exponential(random, mean_time_between)
    return sorted(changes, key=lambda change: (change.time, change.node))


def _exponential(random: np.random.Generator, mean: float) -> float:
    """An exponential variate; NumPy's own uses the C library's logarithm, which depends on the machine."""
    return -mean * float(portable_log(1.0 - random.random()))


def service_changes(
    name: str, nodes: Mapping[str, int], demand: Sequence[tuple[float, int]]
) -> list[CapacityChange]:
    """A service with priority over jobs, spread over the nodes with the most GPUs left.

    Args:
        name: name of the service.
        nodes: node → its GPUs.
        demand: (seconds after the start of the run, GPUs from then on). The service gets no more GPUs than
            there are.
    """
    changes = []
    for time, gpus in demand:
        heap = [(-left, node) for node, left in nodes.items()]
        heapq.heapify(heap)
        for _ in range(min(gpus, sum(nodes.values()))):
            left, node = heap[0]
            heapq.heapreplace(heap, (left + 1, node))
        rest = {node: -left for left, node in heap}
        changes += [CapacityChange(time, node, name, nodes[node] - rest[node]) for node in sorted(nodes)]
    return changes
