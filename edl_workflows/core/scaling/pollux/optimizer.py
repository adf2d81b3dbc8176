"""Pollux (OSDI'21): allocates replicas to jobs so that their speed-ups are high and fair.

The paper uses a genetic algorithm. This module is deterministic and decomposes the problem: the objective is
a sum over jobs, so with a price for shares of the cluster each job can be considered alone. Jobs are packed
onto nodes with the allocations that they want at this price (`values`). The remaining capacity is offered at
falling prices, and jobs that did not get what they want are exchanged with jobs in their way (`search`).

The search is repeated with its own result until the result does not change, so an answer is a fixed point.
This terminates, since each result is worth more than the one before it, even if restarts are ignored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, fsum, isfinite

import numpy as np

from edl_workflows.core.scaling.policy import Allocation, NodeInfo
from edl_workflows.core.scaling.pollux.model import PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.search import (
    AllocationSearch,
    JobPlacement,
    SearchProblem,
)
from edl_workflows.core.scaling.pollux.values import JobShape, allocation_values, job_shape, resource_vector
from edl_workflows.core.scaling.portable_math import Floats, ordered_sum

LEAST_GAIN = 5e-4
"""The least average gain of a job's worth for a change; a job with its fair share is worth 1."""


def optimize_allocations(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> dict[str, list[str]]:
    """Allocate nodes to all jobs.

    Args:
        jobs: in any order.
        nodes: in any order; `free` is what these jobs may share, and includes what they hold now.
        previous: the present allocation of each job; a job that is missing here has none.
        options: weights; the paper's by default.

    Returns:
        An allocation for each job, which keeps the promises of `edl_workflows.core.scaling.policy.Policy`.
        Changed allocations are grouped by node; the others are as they were.
    """
    problem = AllocationProblem(jobs, nodes, options or PolluxOptions())
    held = {job.info.key: list(previous.get(job.info.key, ())) for job in jobs}
    while (allocations := problem.turn(held)) != held:
        held = allocations
    return allocations


class AllocationProblem:
    """The parts of the problem that don't change between rounds of the search."""

    def __init__(self, jobs: Sequence[PolluxJob], nodes: Sequence[NodeInfo], options: PolluxOptions) -> None:
        self._jobs = sorted(jobs, key=importance_order)
        self._nodes = sorted(nodes, key=lambda node: node.key)
        self._options = options
        self._least_gain = LEAST_GAIN * fsum(job.weight for job in jobs)
        self._numbers = {node.key: number for number, node in enumerate(self._nodes)}
        names = sorted(
            {name for job in jobs for requests in (job.info.resources, *job.info.fixed) for name in requests}
        )
        free = [resource_vector(node.free, names) for node in self._nodes]
        self._free = np.array(free).reshape(len(nodes), len(names))
        totals = ordered_sum(np.maximum(self._free, 0.0), 0).tolist()
        self._total: Mapping[str, float] = dict(zip(names, totals, strict=True))

    def turn(self, held: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """An allocation better than `held`, or `held` itself."""
        question = self.question(held)
        search = AllocationSearch(question)
        now, best = search.held(), search.best()
        keys = [shape.job.info.key for shape in question.shapes]
        possible = all(
            place is not None or not held[key] for place, key in zip(now.places, keys, strict=True)
        )
        chosen = now if possible and best.worth <= now.worth + self._least_gain else best
        places = zip(keys, chosen.places, question.held, strict=True)
        moved = {
            key: self._listed(place) for key, place, before in places if place is None or place != before
        }
        return dict(held) | moved

    def question(self, held: Mapping[str, list[str]]) -> SearchProblem:
        """The search problem of the jobs that may move."""
        free, spanned = self._free.copy(), [0] * len(self._nodes)
        pinned = [job for job in self._jobs if not job.info.preemptible and held[job.info.key]]
        for job in pinned:
            self._pin(job, held[job.info.key], free, spanned)
        jobs = [job for job in self._jobs if job.info.preemptible or not held[job.info.key]]
        elastic = [Counter(self._numbers_of(held[job.info.key][len(job.info.fixed) :])) for job in jobs]
        shapes = [
            job_shape(job, self._nodes, self._total, counts)
            for job, counts in zip(jobs, elastic, strict=True)
        ]
        places = [self.place(shape, held[shape.job.info.key]) for shape in shapes]
        kept = [{} if place is None else dict(place.counts) for place in places]
        values = allocation_values(shapes, kept, [self._fair(shape) for shape in shapes], self._options)
        capacity = self._capacity(free)
        price = values.price(capacity)
        return SearchProblem(
            shapes=shapes,
            values=values,
            held=places,
            free=free,
            spanned=tuple(spanned),
            exclusive=self._options.avoid_interference,
            price=price,
            bound=values.bound(price, capacity),
            near=self._least_gain,
        )

    def _capacity(self, free: Floats) -> float:
        """The fraction of the scarcest resource that is left."""
        totals, left = (ordered_sum(np.maximum(amounts, 0.0), 0) for amounts in (self._free, free))
        return float((left[totals > 0] / totals[totals > 0]).min(initial=1.0))

    def _pin(self, job: PolluxJob, held: Sequence[str], free: Floats, spanned: list[int]) -> None:
        """Subtract the resources that a job holds which must not move."""
        for rank, node in enumerate(held):
            if node in self._numbers:
                free[self._numbers[node]] -= resource_vector(job.info.demand(rank), self._total)
        counts = Counter(self._numbers_of(held[len(job.info.fixed) :]))
        for number in counts if len(counts) > 1 else ():
            spanned[number] += 1

    def _numbers_of(self, nodes: Sequence[str]) -> list[int]:
        return [self._numbers[node] for node in nodes if node in self._numbers]

    def place(self, shape: JobShape, held: Sequence[str]) -> JobPlacement | None:
        """The placement of what a job holds; None if that is nothing or may not be kept."""
        fixed = len(shape.fixed)
        numbers = self._numbers_of(held)
        if not held or len(numbers) < len(held) or not shape.least <= len(held) - fixed <= shape.most:
            return None
        return JobPlacement(tuple(numbers[:fixed]), tuple(sorted(Counter(numbers[fixed:]).items())))

    def _fair(self, shape: JobShape) -> tuple[int, bool]:
        """The fair share of a job: its number of replicas, and whether they are on several nodes."""
        slots = shape.slots(self._free) if len(self._nodes) else np.zeros(1, dtype=np.int64)
        replicas = ceil(int(slots.sum()) / len(self._jobs)) + len(shape.fixed)
        return replicas, replicas > int(slots.max()) + len(shape.fixed)

    def _listed(self, place: JobPlacement | None) -> list[str]:
        if place is None:
            return []
        elastic = [node for node, count in place.counts for _ in range(count)]
        return [self._nodes[node].key for node in (*place.fixed, *elastic)]


def importance_order(job: PolluxJob) -> tuple[int, float, str]:
    """A sort key for ties: priority, age, name."""
    age = job.info.age if isfinite(job.info.age) else 0.0
    return -job.info.priority, -age, job.info.key
