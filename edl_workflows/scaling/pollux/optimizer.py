"""Pollux (OSDI'21): which job gets how many replicas on which nodes, so that the jobs' speed-ups are best and fair.

The paper searches with a genetic algorithm. Here the problem is taken apart. Its objective is a sum over jobs, so a price for
shares of the cluster tells what each job would take by itself; the jobs are packed onto nodes by that, what is left is offered
at falling prices, and jobs that miss something are exchanged with those in their way. There is no chance in it.

The answer is asked about again until it stands: what is put to `optimize_allocations` with its own answer as what is held has that answer.
That ends, since each turn's answer is worth more than the one before it, also without regard to restarts.

- `edl_workflows.scaling.pollux.model`: jobs and options
- `edl_workflows.scaling.pollux.values`: what an allocation is worth; the price
- `edl_workflows.scaling.pollux.search`: packing and exchanges
- `edl_workflows.scaling.pollux.policy`: this as a policy of the allocator
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, fsum, inf, isfinite

import numpy as np

from edl_workflows.scaling.policy import Allocation, NodeInfo
from edl_workflows.scaling.pollux.model import PolluxJob, PolluxOptions
from edl_workflows.scaling.pollux.search import AllocationSearch, ClusterPacking, JobPlacement, SearchProblem
from edl_workflows.scaling.pollux.values import JobShape, allocation_values, job_shape, resource_vector
from edl_workflows.scaling.portable_math import Floats, ordered_sum

LEAST_GAIN = 5e-4
"""What a job's worth has to grow by, on average, for anything to change; a job with its fair share is worth 1."""


def optimize_allocations(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> dict[str, list[str]]:
    """Where all jobs shall be.

    Args:
        jobs: in any order.
        nodes: in any order; free is what these jobs may share: what they hold now is not taken off.
        previous: what each holds; a job that is not named holds nothing.
        options: how to weigh; the paper's if left out.

    Returns:
        An allocation for each job, a node for each replica. What changes is grouped by node; what does not is as it was. The
        promises of `edl_workflows.scaling.policy.Policy` are kept.
    """
    problem = _Problem(jobs, nodes, options or PolluxOptions())
    held = {job.info.key: list(previous.get(job.info.key, ())) for job in jobs}
    while (found := problem.turn(held)) != held:
        held = found
    return found


def allocation_worth(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    allocations: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> float:
    """What `optimize_allocations` makes as high as it can: the sum of what each job's allocation is worth to it.

    Args:
        jobs: as put to `optimize_allocations`, like the nodes, what is held, and the options.
        nodes: the nodes.
        previous: what is held.
        options: how to weigh.
        allocations: what each job would have. Jobs that may not be touched don't count.

    Returns:
        With the paper's fairness minus the sum of the inverse speed-ups; -inf if a job would have what it may not.
    """
    problem, question = _asked(jobs, nodes, previous, options)
    cluster = ClusterPacking(question)
    for number, shape in enumerate(question.shapes):
        there = allocations.get(shape.job.info.key, ())
        place = problem.place(shape, there)
        if there and place is None:
            return -inf
        cluster.put(number, place)
    return cluster.worth


def search_problem(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> SearchProblem:
    """What is searched for, with the worth of all options, and the bound; the arguments are as put to `optimize_allocations`."""
    return _asked(jobs, nodes, previous, options)[1]


def _asked(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None,
) -> tuple["_Problem", SearchProblem]:
    problem = _Problem(jobs, nodes, options or PolluxOptions())
    return problem, problem.question({job.info.key: list(previous.get(job.info.key, ())) for job in jobs})


class _Problem:
    """What does not change from turn to turn.

    Args:
        jobs, nodes, options: as put to `optimize_allocations`.
    """

    def __init__(self, jobs: Sequence[PolluxJob], nodes: Sequence[NodeInfo], options: PolluxOptions) -> None:
        self._jobs = sorted(jobs, key=importance_order)
        self._nodes = sorted(nodes, key=lambda node: node.key)
        self._options = options
        self._least_gain = LEAST_GAIN * fsum(job.weight for job in jobs)
        self._numbers = {node.key: number for number, node in enumerate(self._nodes)}
        names = sorted(
            {name for job in jobs for one in (job.info.resources, *job.info.fixed) for name in one}
        )
        free = [resource_vector(node.free, names) for node in self._nodes]
        self._free = np.array(free).reshape(len(nodes), len(names))
        there = ordered_sum(np.maximum(self._free, 0.0), 0).tolist()
        self._total: Mapping[str, float] = dict(zip(names, there, strict=True))

    def turn(self, held: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """A better answer than what is held, or that."""
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
        """What to solve, for the jobs that may move."""
        free, spanned = self._free.copy(), [0] * len(self._nodes)
        pinned = [job for job in self._jobs if not job.info.preemptible and held[job.info.key]]
        for job in pinned:
            self._pin(job, held[job.info.key], free, spanned)
        jobs = [job for job in self._jobs if job.info.preemptible or not held[job.info.key]]
        elastic = [Counter(self._known(held[job.info.key][len(job.info.fixed) :])) for job in jobs]
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
        """The part of the cluster that is left of each resource, of the scarcest."""
        there, left = (ordered_sum(np.maximum(amounts, 0.0), 0) for amounts in (self._free, free))
        return float((left[there > 0] / there[there > 0]).min(initial=1.0))

    def _pin(self, job: PolluxJob, held: Sequence[str], free: Floats, spanned: list[int]) -> None:
        """Take off what a job holds that keeps it."""
        for rank, node in enumerate(held):
            if node in self._numbers:
                free[self._numbers[node]] -= resource_vector(job.info.demand(rank), self._total)
        counts = Counter(self._known(held[len(job.info.fixed) :]))
        for number in counts if len(counts) > 1 else ():
            spanned[number] += 1

    def _known(self, nodes: Sequence[str]) -> list[int]:
        return [self._numbers[node] for node in nodes if node in self._numbers]

    def place(self, shape: JobShape, held: Sequence[str]) -> JobPlacement | None:
        """Where a job is; None if that is nowhere, or can't stay."""
        fixed = len(shape.fixed)
        known = self._known(held)
        if not held or len(known) < len(held) or not shape.least <= len(held) - fixed <= shape.most:
            return None
        return JobPlacement(tuple(known[:fixed]), tuple(sorted(Counter(known[fixed:]).items())))

    def _fair(self, shape: JobShape) -> tuple[int, bool]:
        """What a job would get if all got as much: replicas, and whether on several nodes."""
        slots = shape.slots(self._free) if len(self._nodes) else np.zeros(1, dtype=np.int64)
        replicas = ceil(int(slots.sum()) / len(self._jobs)) + len(shape.fixed)
        return replicas, replicas > int(slots.max()) + len(shape.fixed)

    def _listed(self, place: JobPlacement | None) -> list[str]:
        if place is None:
            return []
        elastic = [node for node, count in place.counts for _ in range(count)]
        return [self._nodes[node].key for node in (*place.fixed, *elastic)]


def importance_order(job: PolluxJob) -> tuple[int, float, str]:
    """Who comes first where nothing else decides: priority, age, name."""
    age = job.info.age if isfinite(job.info.age) else 0.0
    return -job.info.priority, -age, job.info.key
