"""What others take of the nodes, over time: failures, and services that come before jobs.

Everything is a list of changes; in a run without any, jobs may have all nodes all the time.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.portable_math import portable_log

FAILURE = "failure"
"""What takes all of a node that is down."""


@dataclass(frozen=True)
class CapacityChange:
    """From a time on, something takes so many GPUs of a node.

    Attributes:
        time: seconds after the begin of the run.
        node: which.
        by: what takes them: `FAILURE`, or a service by name. It replaces what the same one took of this node before; what
            several take adds up. Where it is a failure, jobs lose what they trained since their last checkpoint;
            otherwise they make one before they go.
        taken: how many GPUs.
    """

    time: float
    node: str
    by: str
    taken: int


def draw_failures(
    nodes: Mapping[str, int], *, mean_time_between: float, repair_time: float, until: float, seed: int
) -> list[CapacityChange]:
    """Nodes that fail independently, with exponential times between failures, and come back.

    Args:
        nodes: node → its GPUs.
        mean_time_between: of one node, in seconds of its being up.
        repair_time: seconds until it is back.
        until: no failure begins later, in seconds.
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
        # A generator a node: one node more changes nothing for the others.
        random = np.random.default_rng([seed, number])
        time = _exponential(random, mean_time_between)
        while time < until:
            changes.append(CapacityChange(time, node, FAILURE, gpus))
            changes.append(CapacityChange(time + repair_time, node, FAILURE, 0))
            time += repair_time + _exponential(random, mean_time_between)
    return sorted(changes, key=lambda change: (change.time, change.node))


def _exponential(random: np.random.Generator, mean: float) -> float:
    """NumPy's own takes the C library's logarithm, whose last digit depends on the machine."""
    return -mean * float(portable_log(1.0 - random.random()))


def service_changes(
    name: str, nodes: Mapping[str, int], demand: Sequence[tuple[float, int]]
) -> list[CapacityChange]:
    """A service that comes before jobs, spread over the nodes that have most left of it.

    Args:
        name: of the service.
        nodes: node → its GPUs.
        demand: (seconds after the begin of the run, GPUs in all from then on). What there isn't it doesn't get.
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
