"""The search for good allocations: a packing of jobs on nodes, and the moves that improve it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from edl_workflows.core.scaling.pollux.values import AllocationValues, JobShape, PricedDemand
from edl_workflows.core.scaling.portable_math import Floats

_SLACK = 1e-9
"""Sums of floats such as 0.1 are off by less than this part of them."""
_LEAST_GAIN = 1e-9
"""A smaller gain is a rounding error."""
_PRICE_STEPS = (1.0, 0.5, 0.25, 0.1, 0.0)
"""Free capacity is offered at falling prices, so that it goes to the jobs that gain most from it."""
_TRIALS = 400
"""How many exchanges one search tries; each takes about a quarter of a millisecond."""


@dataclass(frozen=True)
class JobPlacement:
    """The nodes of a job.

    Attributes:
        fixed: node of each fixed replica.
        counts: (node, elastic replicas), by node.
    """

    fixed: tuple[int, ...]
    counts: tuple[tuple[int, int], ...]

    @property
    def spread(self) -> bool:
        """Whether its elastic replicas are on several nodes."""
        return len(self.counts) > 1

    @property
    def elastic(self) -> int:
        return sum(count for _, count in self.counts)


@dataclass(frozen=True)
class SearchProblem:
    """The problem that a search solves.

    Attributes:
        shapes: the jobs, the most important first.
        values: the worth of their options.
        held: the placement that each job has and may keep.
        free: nodes × resources, what the jobs may share.
        spanned: by node, the number of other jobs there that span nodes.
        exclusive: whether a node may have at most one job that spans nodes.
        price: the price of a share of the cluster.
        bound: an upper bound of the worth of all solutions, if only one resource is scarce.
        near: a search may stop at this distance from the bound.
    """

    shapes: Sequence[JobShape]
    values: AllocationValues
    held: Sequence[JobPlacement | None]
    free: Floats
    spanned: tuple[int, ...]
    exclusive: bool
    price: float
    bound: float
    near: float


class ClusterPacking:
    """An assignment of jobs to nodes, changed by `put` and `take`.

    Attributes:
        places: the placement of each job; None for one that waits.
        worth: the worth of all placements together.
    """

    def __init__(self, question: SearchProblem) -> None:
        self.places: list[JobPlacement | None] = [None] * len(question.shapes)
        self.worth = fsum(question.values.nothing.tolist())
        self._question = question
        self._free = question.free + _SLACK * np.abs(question.free)
        self._spread = list(question.spanned)
        """By node, the number of jobs there that span nodes."""
        values = question.values
        self._local, self._several = values.local.tolist(), values.spread.tolist()
        self._kept, self._nothing = values.kept.tolist(), values.nothing.tolist()

    def worth_of(self, job: int, place: JobPlacement | None) -> float:
        if place is None:
            return float(self._nothing[job])
        if place == self._question.held[job]:
            return float(self._kept[job])
        return float((self._several if place.spread else self._local)[job][place.elastic])

    def put(self, job: int, place: JobPlacement | None) -> None:
        """Place a job that has no placement, whether or not there is room."""
        if place is not None:
            self._move(job, place, 1)
            self.places[job] = place

    def take(self, job: int) -> JobPlacement | None:
        """Remove a job; the placement that it had."""
        place = self.places[job]
        if place is not None:
            self._move(job, place, -1)
            self.places[job] = None
        return place

    def _move(self, job: int, place: JobPlacement, sign: int) -> None:
        shape = self._question.shapes[job]
        for rank, node in enumerate(place.fixed):
            self._free[node] -= sign * shape.fixed[rank]
        for node, count in place.counts:
            self._free[node] -= sign * count * shape.demand
            if place.spread:
                self._spread[node] += sign
        self.worth += sign * (self.worth_of(job, place) - self._nothing[job])

    def fits(self, job: int, place: JobPlacement) -> bool:
        """Whether there is room for this placement of a job without one."""
        shape = self._question.shapes[job]
        if place.spread and self._question.exclusive and any(self._spread[node] for node, _ in place.counts):
            return False
        taken: dict[int, Floats] = {}
        for rank, node in enumerate(place.fixed):
            taken[node] = taken.get(node, 0.0) + shape.fixed[rank]
        for node, count in place.counts:
            taken[node] = taken.get(node, 0.0) + count * shape.demand
        return all(_within(amounts, self._free[node]) for node, amounts in taken.items())

    def proposal(self, job: int, wants: PricedDemand) -> tuple[float, JobPlacement | None]:
        """The best placement of a job without one, in the room that the others leave.

        Args:
            job: the job.
            wants: the demand at some price.

        Returns:
            The placement's worth less its price, and the placement.
        """
        shape, held = self._question.shapes[job], self._question.held[job]
        best: tuple[float, JobPlacement | None] = (wants.nothing[job], None)
        if held is not None and wants.kept[job] >= best[0] and self.fits(job, held):
            best = wants.kept[job], held
        free = self._free
        fixed: tuple[int, ...] = ()
        if shape.fixed:
            fixed_part = self._fixed(shape, held)
            if fixed_part is None:
                return best
            fixed, free = fixed_part
        slots = shape.slots(free).tolist()
        room = max(slots, default=0)
        if wants.local_score[job][room] > best[0]:
            counts = self._on_one(slots, wants.local[job][room])
            best = wants.local_score[job][room], JobPlacement(fixed, counts)
        for_several = [
            0 if self._question.exclusive and self._spread[node] else free_
            for node, free_ in enumerate(slots)
        ]
        all_room = min(sum(for_several), shape.most)
        replicas = wants.spread[job][all_room]
        if replicas > room and wants.spread_score[job][all_room] > best[0]:
            best = wants.spread_score[job][all_room], JobPlacement(fixed, _on_several(for_several, replicas))
        return best

    def _fixed(self, shape: JobShape, held: JobPlacement | None) -> tuple[tuple[int, ...], Floats] | None:
        """Nodes for the fixed replicas (present ones, else first-fit), and what is free after them."""
        free = self._free.copy()
        fixed_nodes: list[int] = []
        for rank, demand in enumerate(shape.fixed):
            held_nodes = [held.fixed[rank]] if held is not None else []
            nodes = (*held_nodes, *np.flatnonzero(shape.open).tolist())
            node = next((node for node in nodes if _within(demand, free[node])), None)
            if node is None:
                return None
            free[node] -= demand
            fixed_nodes.append(node)
        return tuple(fixed_nodes), free

    def _on_one(self, slots: list[int], replicas: int) -> tuple[tuple[int, int], ...]:
        """Best fit: the node with the least free GPUs that are enough. Among equals, prefer one that jobs on
        several nodes can't use."""
        if not replicas:
            return ()
        _, _, node = min(
            (free, not self._spread[node], node) for node, free in enumerate(slots) if free >= replicas
        )
        return ((node, replicas),)


def _on_several(slots: list[int], replicas: int) -> tuple[tuple[int, int], ...]:
    """As few nodes as possible: those with the most room, and best-fit for the rest."""
    counts: list[tuple[int, int]] = []
    order = sorted(range(len(slots)), key=lambda node: (-slots[node], node))
    for index, node in enumerate(order):
        if slots[node] >= replicas:
            fitting = [other for other in order[index:] if slots[other] >= replicas]
            counts.append((min(fitting, key=lambda other: (slots[other], other)), replicas))
            break
        counts.append((node, slots[node]))
        replicas -= slots[node]
    return tuple(sorted(counts))


def _within(amounts: Floats, free: Floats) -> bool:
    return bool(np.all((amounts <= free) | (amounts <= 0)))


class AllocationSearch:
    """A local search from two starts, improved by exchanges of jobs."""

    def __init__(self, question: SearchProblem) -> None:
        self._question = question
        prices = [question.price * step for step in _PRICE_STEPS] if question.price else [0.0]
        self._wants = [question.values.wants(price) for price in prices]
        self._prices = prices
        self._jobs = range(len(question.shapes))

    def best(self) -> ClusterPacking:
        """The better result of two starts: the present placements, and what each job wants at the price."""
        from_held = self._improved(self.held())
        if self._near(from_held):
            return from_held
        from_price = self._improved(self._at_price())
        return from_price if from_price.worth > from_held.worth else from_held

    def _near(self, cluster: ClusterPacking) -> bool:
        return cluster.worth >= self._question.bound - self._question.near

    def held(self) -> ClusterPacking:
        """The present placements as far as they may be kept, the most important job first."""
        cluster = ClusterPacking(self._question)
        for job in self._jobs:
            place = self._question.held[job]
            if place is not None and cluster.fits(job, place):
                cluster.put(job, place)
        return cluster

    def _at_price(self) -> ClusterPacking:
        """A second starting point: each job gets what is worth most to it at the initial price of capacity.

        A job keeps its present placement if no other, less its price, is worth more to it. The other jobs get
        a new placement, those that want the most replicas first.
        """
        cluster, wants = ClusterPacking(self._question), self._wants[0]
        moving: list[tuple[int, int]] = []
        for job in self._jobs:
            held, local, several = (
                self._question.held[job],
                wants.local_score[job][-1],
                wants.spread_score[job][-1],
            )
            if held is not None and wants.kept[job] >= max(local, several) and cluster.fits(job, held):
                cluster.put(job, held)
            else:
                replicas = wants.local[job][-1] if local >= several else wants.spread[job][-1]
                moving.append((-replicas, job))
        for _, job in sorted(moving):
            cluster.put(job, cluster.proposal(job, wants)[1])
        return cluster

    def _improved(self, cluster: ClusterPacking) -> ClusterPacking:
        """Offer free capacity, then try exchanges for jobs that want something else."""
        self._offer(cluster, self._jobs)
        trials = _TRIALS
        for _, job in self._unhappy(cluster):
            for rivals in self._rivals(cluster, job):
                if trials == 0 or self._near(cluster):
                    return cluster
                trials -= 1
                if self._exchanged(cluster, job, rivals):
                    break
        return cluster

    def _offer(self, cluster: ClusterPacking, jobs: Iterable[int]) -> None:
        """Let each job take the best placement that the others leave, at falling prices."""
        jobs = list(jobs)
        for wants, price in zip(self._wants, self._prices, strict=True):
            for job in jobs:
                place = cluster.take(job)
                worth = cluster.worth_of(job, place)
                score, proposal = cluster.proposal(job, wants)
                better = score > worth - price * self._share(job, place) + _LEAST_GAIN
                cluster.put(job, proposal if better else place)

    def _share(self, job: int, place: JobPlacement | None) -> float:
        return 0.0 if place is None else float(self._question.values.share[job, place.elastic])

    def _unhappy(self, cluster: ClusterPacking) -> list[tuple[float, int]]:
        """The jobs that want something else at the price, those with the largest loss first."""
        wants, missing = self._wants[0], []
        for job in self._jobs:
            best_score = max(
                wants.local_score[job][-1], wants.spread_score[job][-1], wants.kept[job], wants.nothing[job]
            )
            place = cluster.places[job]
            has = cluster.worth_of(job, place) - self._question.price * self._share(job, place)
            if best_score > has + _LEAST_GAIN:
                missing.append((has - best_score, job))
        return sorted(missing)

    def _rivals(self, cluster: ClusterPacking, job: int) -> list[tuple[int, ...]]:
        """Groups of jobs that may make room for a job: all jobs of a node, or any single one."""
        on: Mapping[int, list[int]] = {node: [] for node in range(len(self._question.free))}
        rivals = [other for other in self._jobs if other != job and cluster.places[other] is not None]
        for other in rivals:
            place = cluster.places[other]
            for node, _ in place.counts if place is not None else ():
                on[node].append(other)
        return [
            *dict.fromkeys(tuple(jobs) for jobs in on.values() if len(jobs) > 1),
            *((other,) for other in rivals),
        ]

    def _exchanged(self, cluster: ClusterPacking, job: int, rivals: tuple[int, ...]) -> bool:
        """Remove all, place the job first and then the others; undo it unless the result is better."""
        before, group = cluster.worth, (job, *rivals)
        places = [cluster.take(member) for member in group]
        for member in group:
            cluster.put(member, cluster.proposal(member, self._wants[0])[1])
        self._offer_last(cluster, group)
        if cluster.worth > before + _LEAST_GAIN:
            return True
        for member in group:
            cluster.take(member)
        for member, place in zip(group, places, strict=True):
            cluster.put(member, place)
        return False

    def _offer_last(self, cluster: ClusterPacking, jobs: Iterable[int]) -> None:
        """Let each job take the best placement that the others leave, at no price."""
        for job in jobs:
            place = cluster.take(job)
            score, proposal = cluster.proposal(job, self._wants[-1])
            cluster.put(job, proposal if score > cluster.worth_of(job, place) + _LEAST_GAIN else place)
