"""First-fit: each replica goes to the first node, by name, with room for its requests.

`FirstFitPolicy.optimize` changes as little as possible. Replicas stay where they are. Jobs below their
minimum are raised to it, the most important job first: with free room, else with replicas that other jobs
hold beyond their minimum, else with the replicas of jobs of lower priority. The remaining room is dealt out
to jobs below their maximum, one replica at a time in turn.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.core.scaling.policy import Allocation, JobInfo, NodeInfo, Resources

_SLACK = 1e-6
"""Sums of floats such as 0.1 are off by less than this part of them."""

RankNodes = dict[int, str]
"""Rank → node, for the replicas that have a node."""


class FirstFitPolicy:
    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        room = Room.of(nodes)
        places = room.place(job, range(job.min_replicas))
        if places is None:
            return []
        allocation = _listed(places)
        _grow(room, {job.key: allocation}, [job])
        return allocation

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        held = {key: list(previous.get(key, ())) for key in jobs}
        # A job that first gets replicas in one of the rounds may still be moved in the next.
        pinned = frozenset(job.key for job in jobs.values() if not job.preemptible and held[job.key])
        order = sorted(jobs.values(), key=lambda job: (job.key not in pinned, *_importance(job)))
        # Replicas that a job gives up are room for more important jobs, so rounds are repeated until nothing
        # moves. Each round but the last serves a more important job than the previous one could: len(jobs) +
        # 2 are enough.
        for _ in range(len(order) + 2):
            allocations = _Round(order, nodes, held, pinned).run()
            if allocations == held:
                break
            held = allocations
        return held


def _listed(places: RankNodes) -> list[str]:
    return [places[rank] for rank in sorted(places)]


@dataclass(frozen=True)
class Room:
    """The free resources: node → resource → amount. The methods that take resources change them."""

    nodes: Mapping[str, NodeInfo]
    free: dict[str, dict[str, float]] = field(repr=False)

    @classmethod
    def of(cls, nodes: Mapping[str, NodeInfo]) -> "Room":
        return cls(nodes, {key: dict(nodes[key].free) for key in sorted(nodes)})

    def copy(self) -> "Room":
        return Room(self.nodes, {key: dict(free) for key, free in self.free.items()})

    def fits(self, node: str, demand: Resources) -> bool:
        free = self.free.get(node)
        return free is not None and all(
            amount <= free.get(name, 0.0) + _SLACK * amount for name, amount in demand.items() if amount > 0
        )

    def reserve(self, node: str, demand: Resources, times: int = 1) -> None:
        """Subtract a demand, even if that makes free amounts negative; an unknown node is ignored."""
        free = self.free.get(node)
        if free is not None:
            for name, amount in demand.items():
                free[name] = free.get(name, 0.0) - amount * times

    def reserve_all(self, job: JobInfo, places: Iterable[tuple[int, str]]) -> None:
        for rank, node in places:
            self.reserve(node, job.demand(rank))

    def open_to(self, job: JobInfo) -> Iterator[str]:
        """The nodes that accept new replicas of a job, with or without room."""
        return (key for key in self.free if self.nodes[key].schedulable and key not in job.excluded)

    def place(self, job: JobInfo, ranks: Iterable[int]) -> RankNodes | None:
        """Place each rank by first-fit; None if one finds no room (earlier ranks stay placed)."""
        places: RankNodes = {}
        for rank in ranks:
            node = next((key for key in self.open_to(job) if self.fits(key, job.demand(rank))), None)
            if node is None:
                return None
            self.reserve(node, job.demand(rank))
            places[rank] = node
        return places


class _Round:
    """One pass over all jobs, in the order of their importance."""

    def __init__(
        self,
        order: Sequence[JobInfo],
        nodes: Mapping[str, NodeInfo],
        held: Mapping[str, Allocation],
        pinned: Collection[str],
    ) -> None:
        self._order = order
        self._pinned = pinned
        self._room = Room.of(nodes)
        """The room that the minima of the jobs served so far leave."""
        self._minimum: dict[str, RankNodes] = {}
        self._beyond: dict[str, list[str]] = {}
        for job in order:
            self._split(job, held[job.key])

    def run(self) -> dict[str, list[str]]:
        for index, job in enumerate(self._order):
            self._serve(job, self._order[index + 1 :])
        allocations = {job.key: _listed(self._minimum[job.key]) for job in self._order}
        for job in self._order:
            self._keep_beyond(job, allocations[job.key])
        _grow(
            self._room, allocations, [job for job in self._order if job.preemptible and allocations[job.key]]
        )
        return allocations

    def _split(self, job: JobInfo, held: Allocation) -> None:
        """Divide a job's replicas into its minimum, which only more important jobs may take, and the rest."""
        if job.key in self._pinned:
            self._minimum[job.key], self._beyond[job.key] = dict(enumerate(held)), []
            return
        fixed = len(job.fixed)
        elastic_nodes = [node for node in held[fixed:] if node in self._room.free]
        least, most = job.min_replicas - fixed, job.max_replicas - fixed
        places = {rank: node for rank, node in enumerate(held[:fixed]) if node in self._room.free}
        self._minimum[job.key] = places | dict(enumerate(elastic_nodes[:least], fixed))
        self._beyond[job.key] = elastic_nodes[least:most]

    def _serve(self, job: JobInfo, later: Sequence[JobInfo]) -> None:
        """Give the job its minimum, or nothing at all."""
        held = self._minimum[job.key]
        if job.key in self._pinned:
            self._room.reserve_all(job, held.items())
            return
        kept: RankNodes = {}
        for rank, node in held.items():
            if self._room.fits(node, job.demand(rank)):
                self._room.reserve(node, job.demand(rank))
                kept[rank] = node
        missing = [rank for rank in range(job.min_replicas) if rank not in kept]
        places = self._search(job, missing, later) if missing else {}
        if places is None:
            for rank, node in kept.items():
                self._room.reserve(node, job.demand(rank), -1)
            self._minimum[job.key], self._beyond[job.key] = {}, []
            return
        self._room.reserve_all(job, places.items())
        self._minimum[job.key] = kept | places

    def _search(self, job: JobInfo, missing: list[int], later: Sequence[JobInfo]) -> RankNodes | None:
        """Find nodes: free room, else others' room beyond minima, else less important jobs' room."""
        as_important = [other for other in later if other.priority >= job.priority]
        for spared, also_beyond in ((later, True), (later, False), (as_important, False)):
            room = self._room.copy()
            for other in spared:
                room.reserve_all(other, self._minimum[other.key].items())
            for other in self._order if also_beyond else ():
                room.reserve_all(other, enumerate(self._beyond[other.key], other.min_replicas))
            if (places := room.place(job, missing)) is not None:
                return places
        return None

    def _keep_beyond(self, job: JobInfo, allocation: list[str]) -> None:
        """Keep the replicas beyond the minimum that still have room."""
        for node in self._beyond[job.key]:
            if self._room.fits(node, job.resources):
                self._room.reserve(node, job.resources)
                allocation.append(node)


def _importance(job: JobInfo) -> tuple[int, float, str]:
    return -job.priority, -job.age, job.key


def _grow(room: Room, allocations: Mapping[str, list[str]], growing: Sequence[JobInfo]) -> None:
    """Give the jobs one replica each in turn, until no job may have another or finds room for it."""
    # Room only shrinks here: a node without room for a job's next replica will not have room again.
    ahead = {job.key: list(room.open_to(job))[::-1] for job in growing}
    while growing:
        growing = [job for job in growing if _grown(room, job, allocations[job.key], ahead[job.key])]


def _grown(room: Room, job: JobInfo, allocation: list[str], ahead: list[str]) -> bool:
    """Whether the job got one more replica."""
    if len(allocation) >= job.max_replicas:
        return False
    while ahead and not room.fits(ahead[-1], job.resources):
        ahead.pop()
    if not ahead:
        return False
    room.reserve(ahead[-1], job.resources)
    allocation.append(ahead[-1])
    return True
