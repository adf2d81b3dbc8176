"""Laws of replicas that share the jobs, for every order of their requests: no two may write to one job at any
time, each job finds its owner in time, and no more jobs move than must."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.partitions import owner_of
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process import leader, partition_member
from edl_workflows.runtime.process.leader import Election
from edl_workflows.runtime.process.partition import Partition
from edl_workflows.runtime.process.partition_member import PartitionMember, hasten_take_over

ELECTION = hasten_take_over(Election("ns", "lease"))
KEYS = [f"ns/job-{index}" for index in range(16)]
SLOTS = 3
TAKE_OVER_SECONDS = 15.0
SCHEDULES, STEPS = 5, 30


@dataclass
class Replica:
    """A replica, and the jobs that its workers have begun to decide about.

    Attributes:
        busy: by job, the context that ends the decision.
        attempting: whether a request of its attempt is under way.
        stalled: whether it makes no attempts.
        planned: whether a take-over is under way.
    """

    identity: str
    member: PartitionMember
    partition: Partition
    busy: dict[str, ExitStack] = field(default_factory=dict)
    attempting: bool = False
    stalled: bool = False
    planned: bool = False

    def may_write(self, key: str) -> bool:
        return self.member.leading and (key in self.busy or self.partition.owns(key))


class Bed:
    """Replicas over Leases in memory. Whatever a draw decides happens before and after each request: time
    passes, other replicas act, the answer is lost.

    Args:
        seed: of all draws.
    """

    def __init__(self, seed: int) -> None:
        self._draws = random.Random(seed)
        self.now = 0.0
        self.leases: dict[str, dict[str, Any]] = {}
        self.replicas: list[Replica] = []
        self._version = 0
        self._started = 0
        self._depth = 0
        self.quiet = False

    def start(self) -> None:
        """Start a replica, whose clock differs from those of others."""
        self._started += 1
        identity, ahead = f"replica-{self._started}", 1000.0 * self._started
        partition = Partition()
        election = Election(
            ELECTION.namespace,
            ELECTION.name,
            identity,
            ELECTION.lease_seconds,
            ELECTION.renew_seconds,
            ELECTION.retry_seconds,
        )
        member = PartitionMember(
            Cluster(None, "ns", "key"), election, SLOTS, partition, lambda: self.now + ahead
        )
        self.replicas.append(Replica(identity, member, partition))

    def draw_count(self) -> int:
        """Draw the number of replicas at the start."""
        return self._draws.randint(0, SLOTS)

    def step(self) -> None:
        """Let something happen."""
        steps = ["start"] if len(self.replicas) <= SLOTS else []
        if self.replicas:
            steps += ["ticks"] * 4 + [
                "attempt",
                "attempt",
                "wait",
                "begin",
                "begin",
                "end",
                "take over",
                "stall",
            ]
        if self.replicas and not self._depth:
            steps += ["crash", "release"]
        chosen = self._draws.choice(steps)
        if chosen == "start":
            self.start()
        elif chosen == "wait":
            self.wait()
        elif chosen == "ticks":
            self.tick(
                [replica for replica in self.replicas if not replica.stalled], self._draws.randint(1, 8)
            )
        else:
            replica = self._draws.choice(self.replicas)
            {
                "attempt": self.attempt,
                "begin": self._begin,
                "end": self._end,
                "take over": self.take_over,
                "stall": self._stall,
                "crash": self.replicas.remove,
                "release": self._release,
            }[chosen](replica)
        self.check()

    def tick(self, replicas: list[Replica], count: int) -> None:
        """Let replicas renew their Leases, as they do all the time."""
        for _ in range(count):
            for replica in [replica for replica in replicas if replica in self.replicas]:
                self.attempt(replica)
                self.take_over(replica)
                self.check()
            self.now += ELECTION.retry_seconds

    def _stall(self, replica: Replica) -> None:
        """Stop a replica's process for some time, or let it go on."""
        replica.stalled = not replica.stalled

    def wait(self) -> None:
        self.now += self._draws.choice((0.1, 1.5, 1.5, 3.5, 6.5, 9.5))
        self.check()

    def attempt(self, replica: Replica) -> None:
        """Let a replica attempt to renew its Lease; it ends if that fails for too long."""
        if replica.attempting:
            return
        led, replica.attempting = replica.member.leading or replica.member._begun, True
        held = replica.member.attempt()
        replica.attempting = False
        if led and not held and not replica.member.leading and replica in self.replicas:
            self.replicas.remove(replica)

    def take_over(self, replica: Replica) -> None:
        """Finish the take-over that was planned, or plan one: meanwhile, a process lists all objects."""
        if replica.planned:
            replica.partition.take_over()
        replica.planned = bool(replica.partition.plan_take_over()) and not replica.planned

    def check(self) -> None:
        for key in KEYS:
            writers = [replica.identity for replica in self.replicas if replica.may_write(key)]
            assert len(writers) <= 1, f"{key}: {writers} at {self.now}"

    def settle(self) -> None:
        """Let the replicas that are left act without disturbance, for as long as a take-over may take."""
        self.quiet = True
        for replica in list(self.replicas):
            self.attempt(replica)  # ends those that were too late already
        if not self.replicas:
            self.start()
        end = self.now + TAKE_OVER_SECONDS
        while self.now < end:
            for replica in list(self.replicas):
                replica.stalled = False
                self._end(replica)
                self.attempt(replica)
                self.take_over(replica)
                self.check()
            self.now += ELECTION.retry_seconds
        self.quiet = False

    def owners(self, key: str) -> list[str]:
        return [replica.identity for replica in self.replicas if replica.may_write(key)]

    def _begin(self, replica: Replica) -> None:
        """Begin a decision about a job, as a worker does."""
        key = self._draws.choice(KEYS)
        context = ExitStack()
        if replica.member.leading and key not in replica.busy:
            if context.enter_context(replica.partition.acting(key)):
                replica.busy[key] = context
            else:
                context.close()

    def _end(self, replica: Replica) -> None:
        for context in replica.busy.values():
            context.close()
        replica.busy.clear()

    def _release(self, replica: Replica) -> None:
        self._end(replica)
        self.replicas.remove(replica)
        replica.member.release()

    @contextmanager
    def _request(self) -> Iterator[None]:
        """What may happen before a request is carried out, and before its answer arrives."""
        self._happen()
        yield
        self._happen()

    def _happen(self) -> None:
        if self.quiet or self._depth >= 2:
            return
        self._depth += 1
        for _ in range(self._draws.choice((0, 0, 0, 1, 2))):
            self.step()
        self._depth -= 1
        if self._draws.random() < 0.1:
            raise UnavailableError("lost")

    def list_objects(self, _cluster: Cluster, _scope: object) -> SimpleNamespace:
        with self._request():
            items = [dict(lease) for lease in self.leases.values()]
        return SimpleNamespace(items=items)

    def get(self, _cluster: Cluster, _resource: object, name: str, _namespace: str) -> dict[str, Any]:
        if name not in self.leases:
            raise NotFoundError(name)
        return dict(self.leases[name])

    def create(self, _cluster: Cluster, lease: dict[str, Any]) -> None:
        with self._request():
            if lease["metadata"]["name"] in self.leases:
                raise AlreadyExistsError("there")
            self._store(lease)

    def replace(self, _cluster: Cluster, lease: dict[str, Any]) -> None:
        with self._request():
            stored = self.leases[lease["metadata"]["name"]]["metadata"]["resourceVersion"]
            if stored != lease["metadata"]["resourceVersion"]:
                raise ConflictError("changed")
            self._store(lease)

    def _store(self, lease: dict[str, Any]) -> None:
        self._version += 1
        metadata = lease["metadata"] | {"resourceVersion": str(self._version)}
        self.leases[metadata["name"]] = lease | {"metadata": metadata}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_no_two_replicas_write_to_one_job_and_each_job_has_an_owner_in_time(seed: int) -> None:
    """Whenever requests take long, are lost, and replicas stop, crash and start: at no time may two replicas
    write to one job. Within 15 s without disturbance each job has an owner."""
    for number in range(seed, seed + SCHEDULES):
        bed = Bed(number)
        with mock.patch.object(partition_member, "client", bed), mock.patch.object(leader, "client", bed):
            for _ in range(bed.draw_count()):
                bed.start()
            bed.settle()
            for _ in range(STEPS):
                bed.step()
            bed.settle()
        assert all(len(bed.owners(key)) == 1 for key in KEYS), f"{number}"


def test_a_renewal_whose_answer_comes_too_late_does_not_count() -> None:
    """A replica renews its Lease late, and the request takes so long that another one takes over meanwhile.
    The first one writes nothing any more, although the renewal succeeds in the end."""
    bed = Bed(0)
    replace = bed.replace

    def replace_late(cluster: Cluster, lease: dict[str, Any]) -> None:
        if lease["spec"]["holderIdentity"] == slow.identity:
            bed.tick([other], 4)
            bed.take_over(other)
            assert all(other.may_write(key) for key in KEYS)
        replace(cluster, lease)

    with mock.patch.object(partition_member, "client", bed), mock.patch.object(leader, "client", bed):
        for _ in range(2):
            bed.start()
        bed.settle()
        slow, other = bed.replicas
        bed.quiet = True
        bed.tick([other], 3)
        with mock.patch.object(bed, "replace", replace_late):
            slow.member.attempt()
        bed.check()


@given(st.frozensets(st.integers(0, 15), min_size=2), st.data())
def test_a_slot_that_comes_or_goes_moves_only_its_own_jobs(
    slots: frozenset[int], data: st.DataObject
) -> None:
    """Without a slot, each job of another slot stays where it is."""
    gone = data.draw(st.sampled_from(sorted(slots)))
    for key in KEYS:
        if (owner := owner_of(key, slots)) != gone:
            assert owner_of(key, slots - {gone}) == owner


def test_jobs_are_spread_evenly() -> None:
    """Of 4,000 jobs each of four slots owns about 1,000."""
    owners = [owner_of(f"default/job-{index}", range(4)) for index in range(4000)]
    assert all(900 < owners.count(slot) < 1100 for slot in range(4))
