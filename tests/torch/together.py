"""A job of two members, threads of this process, without a master: the second one joins the first, which dies
afterwards."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from edl_workflows.core.protocol.cluster import Member, TrainingCluster
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.training.checkpoints.saving import SaveWish
from edl_workflows.training.collective.world import World
from tests.torch.alone import JobAlone
from tests.torch.members import SECONDS, places, together

JOINS, DIES = 4, 9
"""Steps after which the second member is let in, and in which the first one dies."""


class Died(Exception):  # noqa: N818 - no error: what the test wants
    """The end of a member."""


class Versions:
    """What a master decides: version 1 has member 0, version 2 both, version 3 member 1.

    Attributes:
        active: the newest version that trains.
    """

    def __init__(self, max_workers: int) -> None:
        self.changed = threading.Condition()
        self.active = 1
        self.ready = False
        self._all = [
            self._version(1, max_workers, {0: 0}),
            self._version(2, max_workers, {0: 1, 1: 0}),
            self._version(3, max_workers, {1: 2}),
        ]
        self.followers: dict[int, Callable[[], None]] = {}

    def of(self, version: int) -> TrainingCluster:
        """A version."""
        return self._all[version - 1]

    def activate(self, version: int) -> None:
        """Begin a version, and tell its members."""
        with self.changed:
            self.active = max(self.active, version)
            self.changed.notify_all()
        for member in self.of(self.active).workers:
            if member.id in self.followers:
                self.followers[member.id]()

    def wait(self, true: Callable[[], bool]) -> None:
        """Wait for a change."""
        with self.changed:
            assert self.changed.wait_for(true, SECONDS), "nothing changed"

    def _version(self, version: int, max_workers: int, processes: dict[int, int]) -> TrainingCluster:
        (place,) = places(1)
        members = [
            Member(rank=rank, id=node, address=place.addresses[0], process=process)
            for rank, (node, process) in enumerate(processes.items())
        ]
        chief = members[0].id
        return TrainingCluster(version=version, workers=members, max_workers=max_workers, chief_id=chief)


@dataclass
class JobTogether(JobAlone):
    """One of the members.

    Attributes:
        versions: shared by both.
        number: 0: trains from the beginning; 1: joins.
    """

    versions: Versions = field(default_factory=lambda: Versions(1))
    number: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.node = NodeRef(type="worker", id=self.number)
        self.version = self.number + 1
        self.environment.listen_address = lambda version: self.versions.of(version).workers[0].address

    @property
    def cluster(self) -> TrainingCluster:
        """Its present version."""
        return self.versions.of(self.version)

    @cluster.setter
    def cluster(self, _alone: TrainingCluster) -> None:
        """That of `JobAlone` is not used."""

    @property
    def is_chief(self) -> bool:
        """Whether it has rank 0."""
        return self.cluster.chief_id == self.number

    @property
    def active(self) -> bool:
        """Whether its version trains."""
        return self.versions.active == self.version

    @property
    def drain_requested(self) -> bool:
        """The first one is to let the second one in."""
        wanted = self.version == 1 and bool(self.steps) and self.steps[-1][0] >= JOINS
        if wanted:
            self.versions.wait(lambda: self.versions.ready)
        return wanted

    @property
    def successor(self) -> TrainingCluster | None:
        """The version in which it goes on."""
        newest = self.versions.of(self.versions.active)
        member = any(worker.id == self.number for worker in newest.workers)
        return newest if member and newest.version > self.version else None

    @property
    def newest_group_over(self) -> int:
        """As of `Job`."""
        return self.versions.active - 1

    def follow_directive(self, changed: Callable[[], None]) -> None:
        """Have it called after each change."""
        self.versions.followers[self.number] = changed
        changed()

    def wait_until_active(self, *, in_place: bool) -> None:
        """The second one is ready, and waits."""
        assert in_place
        with self.versions.changed:
            self.versions.ready = self.versions.ready or self.number == 1
            self.versions.changed.notify_all()
        self.versions.wait(lambda: self.active)

    def wait_for_successor(self, _reason: str) -> TrainingCluster | None:
        """Wait for it."""
        self.versions.wait(lambda: self.successor is not None)
        return self.successor

    def go_on_in(self, cluster: TrainingCluster) -> None:
        """In a later version."""
        self.version = cluster.version

    def drain(self) -> None:
        """Let the second one in."""
        self.versions.activate(2)

    def checkpoint_wish(self) -> SaveWish:
        """None."""
        return SaveWish(0)

    def cluster_lost(self, reason: str, *_more: Any) -> NoReturn:
        """Nothing like that."""
        raise AssertionError(reason)


def members(max_workers: int) -> list[JobTogether]:
    """Both, with the same versions."""
    versions = Versions(max_workers)
    return [JobTogether(max_workers, versions=versions, number=number) for number in (0, 1)]


def train_together(monkeypatch: pytest.MonkeyPatch, trainings: Sequence[Callable[[], object]]) -> None:
    """Run the trainings of the two members. The first one dies in the step after `DIES`, before the second
    one begins to sum: operations under way would go on, because the sockets of a thread stay open."""
    inner, dead = World.step, threading.Event()

    def step(self: Any, mini_batches: Any) -> tuple[int, float]:
        if self.global_step == DIES and self.job.number == 0:
            self.job.versions.activate(3)
            dead.set()
            raise Died
        if self.global_step == DIES:
            assert dead.wait(SECONDS), "the first member did not die"
        return inner(self, mini_batches)

    def first() -> None:
        with pytest.raises(Died):
            trainings[0]()

    monkeypatch.setattr(World, "step", step)
    together([first, trainings[1]])
