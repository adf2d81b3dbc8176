"""First-fit: replicas go to the first node with room, by name. It looks at requests alone, not at what jobs report.

`FirstFitPolicy.optimize` changes as little as it can. What a job holds stays where it is. Jobs that hold too little get their
minimum, the most important first: from room that nobody has, else from what others hold beyond their minimum, else from
jobs of lower priority. What is left then goes to jobs that may have more, one replica each in turn.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from edl_workflows.scaling.policy import Allocation, JobInfo, NodeInfo, Resources

_SLACK = 1e-6
"""Sums of floats such as 0.1 are off by less than this part of them."""

RankNodes = dict[int, str]
"""Rank → node, of the replicas that have a place."""


class FirstFitPolicy:
    """First-fit; see the module."""

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """As many replicas as there is room for; none if that is less than the minimum."""
        room = _Room.of(nodes)
        places = room.place(job, range(job.min_replicas))
        if places is None:
            return []
        found = _listed(places)
        _grow(room, {job.key: found}, [job])
        return found

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        """The change that the module describes."""
        held = {key: list(previous.get(key, ())) for key in jobs}
        order = sorted(jobs.values(), key=lambda job: (not _pinned(job, held[job.key]), *_importance(job)))
        # What a job has to give up is room for those before it: again, until nothing moves. Each round but the last serves
        # a more important job than the one before it could, so there are at most as many as jobs, and two more.
        for _ in range(len(order) + 2):
            found = _Round(order, nodes, held).run()
            if found == held:
                break
            held = found
        return held


def _listed(places: RankNodes) -> list[str]:
    return [places[rank] for rank in sorted(places)]


@dataclass(frozen=True)
class _Room:
    """What is free, by node. Taking changes it.

    Attributes:
        nodes: as they are.
        free: node → resource → amount.
    """

    nodes: Mapping[str, NodeInfo]
    free: dict[str, dict[str, float]] = field(repr=False)

    @classmethod
    def of(cls, nodes: Mapping[str, NodeInfo]) -> "_Room":
        """All that is free at first."""
        return cls(nodes, {key: dict(nodes[key].free) for key in sorted(nodes)})

    def copy(self) -> "_Room":
        """Another one with as much room."""
        return _Room(self.nodes, {key: dict(free) for key, free in self.free.items()})

    def fits(self, node: str, demand: Resources) -> bool:
        """Whether the node holds so much more."""
        free = self.free.get(node)
        return free is not None and all(
            amount <= free.get(name, 0.0) + _SLACK * amount for name, amount in demand.items() if amount > 0
        )

    def take(self, node: str, demand: Resources, times: int = 1) -> None:
        """So much less, also where there is not so much; a node that is gone has nothing to take."""
        free = self.free.get(node)
        if free is not None:
            for name, amount in demand.items():
                free[name] = free.get(name, 0.0) - amount * times

    def take_all(self, job: JobInfo, places: Iterable[tuple[int, str]]) -> None:
        """What the replicas of these ranks take."""
        for rank, node in places:
            self.take(node, job.demand(rank))

    def open_to(self, job: JobInfo) -> Iterator[str]:
        """The nodes that take new replicas of a job, where they have room."""
        return (key for key in self.free if self.nodes[key].schedulable and key not in job.excluded)

    def place(self, job: JobInfo, ranks: Iterable[int]) -> RankNodes | None:
        """First-fit for each rank, and take it; None where one finds no room, which leaves a part taken."""
        places: RankNodes = {}
        for rank in ranks:
            node = next((key for key in self.open_to(job) if self.fits(key, job.demand(rank))), None)
            if node is None:
                return None
            self.take(node, job.demand(rank))
            places[rank] = node
        return places


class _Round:
    """One pass over all jobs.

    Args:
        order: the jobs, the most important first.
        nodes: free for all of them together.
        held: job → what it holds.
    """

    def __init__(
        self, order: Sequence[JobInfo], nodes: Mapping[str, NodeInfo], held: Mapping[str, Allocation]
    ) -> None:
        self._order = order
        self._room = _Room.of(nodes)
        """Without the minima of the jobs that have been served."""
        self._minimum: dict[str, RankNodes] = {}
        self._beyond: dict[str, list[str]] = {}
        for job in order:
            self._split(job, held[job.key])

    def run(self) -> dict[str, list[str]]:
        """What each job holds after it."""
        for index, job in enumerate(self._order):
            self._serve(job, self._order[index + 1 :])
        found = {job.key: _listed(self._minimum[job.key]) for job in self._order}
        for job in self._order:
            self._keep_beyond(job, found[job.key])
        _grow(self._room, found, [job for job in self._order if job.preemptible and found[job.key]])
        return found

    def _split(self, job: JobInfo, held: Allocation) -> None:
        """What a job holds: the minimum, which only a more important job may take, and what is beyond it."""
        if _pinned(job, held):
            self._minimum[job.key], self._beyond[job.key] = dict(enumerate(held)), []
            return
        fixed = len(job.fixed)
        there = [node for node in held[fixed:] if node in self._room.free]
        least, most = job.min_replicas - fixed, job.max_replicas - fixed
        places = {rank: node for rank, node in enumerate(held[:fixed]) if node in self._room.free}
        self._minimum[job.key] = places | dict(enumerate(there[:least], fixed))
        self._beyond[job.key] = there[least:most]

    def _serve(self, job: JobInfo, later: Sequence[JobInfo]) -> None:
        """Give the job its minimum, or nothing."""
        held = self._minimum[job.key]
        if _pinned(job, held.values()):
            self._room.take_all(job, held.items())
            return
        kept: RankNodes = {}
        for rank, node in held.items():
            if self._room.fits(node, job.demand(rank)):
                self._room.take(node, job.demand(rank))
                kept[rank] = node
        missing = [rank for rank in range(job.min_replicas) if rank not in kept]
        found = self._search(job, missing, later) if missing else {}
        if found is None:
            for rank, node in kept.items():
                self._room.take(node, job.demand(rank), -1)
            self._minimum[job.key], self._beyond[job.key] = {}, []
            return
        self._room.take_all(job, found.items())
        self._minimum[job.key] = kept | found

    def _search(self, job: JobInfo, missing: list[int], later: Sequence[JobInfo]) -> RankNodes | None:
        """Places for the missing ranks: from nobody, from what is beyond others' minima, from less important jobs."""
        as_important = [other for other in later if other.priority >= job.priority]
        for spared, also_beyond in ((later, True), (later, False), (as_important, False)):
            room = self._room.copy()
            for other in spared:
                room.take_all(other, self._minimum[other.key].items())
            for other in self._order if also_beyond else ():
                room.take_all(other, enumerate(self._beyond[other.key], other.min_replicas))
            if (places := room.place(job, missing)) is not None:
                return places
        return None

    def _keep_beyond(self, job: JobInfo, found: list[str]) -> None:
        """What the job held beyond its minimum and still has room."""
        for node in self._beyond[job.key]:
            if self._room.fits(node, job.resources):
                self._room.take(node, job.resources)
                found.append(node)


def _pinned(job: JobInfo, held: Collection[str]) -> bool:
    return not job.preemptible and bool(held)


def _importance(job: JobInfo) -> tuple[int, float, str]:
    return -job.priority, -job.age, job.key


def _grow(room: _Room, found: Mapping[str, list[str]], growing: Sequence[JobInfo]) -> None:
    """One replica more each in turn, until no job may have or finds room for another."""
    # Room only shrinks here: a node that has no room for a job's next replica never has again.
    ahead = {job.key: list(room.open_to(job))[::-1] for job in growing}
    while growing:
        growing = [job for job in growing if _grown(room, job, found[job.key], ahead[job.key])]


def _grown(room: _Room, job: JobInfo, found: list[str], ahead: list[str]) -> bool:
    """Whether the job got one more replica."""
    if len(found) >= job.max_replicas:
        return False
    while ahead and not room.fits(ahead[-1], job.resources):
        ahead.pop()
    if not ahead:
        return False
    room.take(ahead[-1], job.resources)
    found.append(ahead[-1])
    return True
