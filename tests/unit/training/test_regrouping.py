"""A process whose group is over: it goes on in the version that names it, or ends."""

import contextlib
from collections.abc import Iterator, Sequence

import pytest

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    STATE_DAMAGED_EXIT_CODE,
    PresenceReport,
    ProcessReport,
    ProcessState,
)
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.training.client import MasterClient
from edl_workflows.training.collective.regrouping import (
    CannotTakePartError,
    DamagedStateError,
    GroupChanges,
    Place,
    Progress,
    can_regroup,
)
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, eventually, in_place, world

FOR_EVER = 100_000.0


class Group:
    """A framework whose other members the test plays.

    Args:
        others: the steps of the other members.
    """

    def __init__(self, *others: int) -> None:
        self.others = list(others)
        self.formed: list[int] = []
        self.over: list[int] = []
        self.failures = 0
        self.loaded: list[int] = []
        self.waits = 0.0
        self.damaged = False
        self.closed = False

    def prepare(self) -> None:
        """Nothing to build."""

    def regroup(self, place: Place) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("a member died meanwhile")
        self.formed.append(place.version)

    def interrupt(self, version: int) -> None:
        self.over.append(version)

    def close(self) -> None:
        self.closed = True

    def waiting(self) -> float:
        return self.waits

    def any_of_replica(self, wanted: bool) -> bool:
        return wanted

    def compare(self, number: int) -> list[int]:
        return [number, *self.others]

    def broadcast(self, numbers: Sequence[int], root: int = 0, *, load: bool = True) -> list[int]:
        if self.damaged:
            raise DamagedStateError("the state of rank 1 arrived damaged")
        if load:
            self.loaded.append(root)
        return Progress(self.others[root - 1], 3, 40).to_numbers() if root else list(numbers)


@pytest.fixture
def job(master: FakeMaster, environment: NodeEnvironment) -> Iterator[Job]:
    """The process of worker 0, started for version 1 of three members."""
    master.say(active=world(1, (0, 1, 2)))
    made = Job(environment, 1, MasterClient(master.url, TOKEN))
    eventually(lambda: made.active)
    yield made
    made.close()


def changes(job: Job, group: Group) -> GroupChanges:
    """How the process changes its group."""
    return GroupChanges(job, group, lambda: Place(job.version, 0, ("a:1",) * (1 + len(group.others))))


@pytest.mark.parametrize("missing", ["close", "any_of_replica"])
def test_an_adapter_with_half_of_the_methods_is_refused(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter that could form another group but for a method is not taken for one that can't: the error
    names the method."""
    assert can_regroup(Group())
    assert not can_regroup(object())
    monkeypatch.delattr(Group, missing)
    with pytest.raises(InvalidError, match=rf"Group has regroup, but no {missing}\b"):
        can_regroup(Group())


MINE, AHEAD = Progress(7, 1, 280), Progress(8, 3, 40)


def test_it_goes_on_with_those_who_made_as_many_steps(job: Job, master: FakeMaster) -> None:
    """A process whose step equals that of the others continues without a transfer of the state, and its later
    reports have the new version."""
    group = Group(7)
    master.say(active=in_place(2, (0, 2)))

    assert changes(job, group).go_on("lost", MINE) == MINE
    assert group.formed == [2]
    assert group.loaded == []
    assert job.version == 2
    job.report_step(8)
    assert eventually(lambda: master.got(ProcessReport, version=2, state=ProcessState.TRAINING))


@pytest.mark.parametrize(
    ("others", "expected", "loaded"),
    [
        ((8,), Progress(8, 3, 40), [1]),
        ((6, 7), MINE, []),
        ((-1, 7), MINE, []),
        ((7, 8), Progress(8, 3, 40), [2]),
    ],
    ids=["it is behind", "another is", "one is new", "the last is ahead"],
)
def test_the_newest_step_wins(
    job: Job, master: FakeMaster, others: tuple[int, ...], expected: Progress, loaded: list[int]
) -> None:
    """Members whose step is behind take the state of one whose step is the newest; the others keep theirs."""
    group = Group(*others)
    master.say(active=in_place(2, (0, 1, 2)))

    assert changes(job, group).go_on("lost", MINE) == expected
    assert group.loaded == loaded


def test_a_group_that_breaks_while_it_forms(job: Job, master: FakeMaster) -> None:
    """If a group breaks while it forms, the process waits for the next version and continues there."""
    group = Group(7)
    group.failures = 1
    changed = changes(job, group)
    master.say(active=in_place(2, (0, 1)))
    stages = iter([in_place(4, (0, 2))])
    inner = group.regroup

    def regroup(place: Place) -> None:
        if (later := next(stages, None)) is not None:
            master.say(active=later)
        inner(place)

    group.regroup = regroup  # type: ignore[method-assign]
    assert changed.go_on("lost", MINE) == MINE
    assert group.formed == [4]


def test_waits_are_ended_when_the_group_is_over(job: Job, master: FakeMaster) -> None:
    """Waits of the group end as soon as the directive says that a member is lost or names a later version."""
    group = Group(7)
    changes(job, group)
    assert group.over == [0]
    master.say(broken=True)
    eventually(lambda: 1 in group.over)
    master.say(broken=False, active=in_place(4, (0, 2)))
    eventually(lambda: 3 in group.over)


def test_no_version_names_this_process(job: Job, master: FakeMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the master names no version in which this process continues, the process ends and joins no group."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", FOR_EVER)
    monkeypatch.setattr("edl_workflows.training.cluster_member.CLUSTER_LOST_SECONDS", 0.1)
    group = Group(7)

    with pytest.raises(SystemExit) as ended:
        changes(job, group).go_on("lost", MINE)
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE
    assert group.formed == []


def test_a_newcomer_gets_the_state(master: FakeMaster, environment: NodeEnvironment) -> None:
    """A new member reports READY and that it can change its group, meets the others, and gets their state."""
    master.say(active=world(3, (1, 0)))
    group = Group(9)
    with contextlib.closing(Job(environment, 3, MasterClient(master.url, TOKEN))) as job:
        assert changes(job, group).join() == Progress(9, 3, 40)
        eventually(lambda: master.got(ProcessReport, state=ProcessState.READY, in_place=True))
    assert group.loaded == [1]


def test_a_damaged_state_ends_the_process_at_once(
    job: Job, master: FakeMaster, capfd: pytest.CaptureFixture[str]
) -> None:
    """A process that received a damaged state ends at once, since the others count on it in this version. Its
    last line says why."""
    group = Group(8)
    group.damaged = True
    master.say(active=in_place(2, (0, 1)))

    with pytest.raises(SystemExit) as ended:
        changes(job, group).go_on("lost", MINE)
    assert ended.value.code == STATE_DAMAGED_EXIT_CODE
    assert group.loaded == []
    assert capfd.readouterr().err.endswith("the state of rank 1 arrived damaged\n")


def test_a_member_that_can_not_listen_ends_at_once(
    job: Job, master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that can't listen ends at once and does not wait for another version. The others, who wait for
    it, continue when the master learns of its end. Its node is sound."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", FOR_EVER)
    monkeypatch.setattr("edl_workflows.training.cluster_member.CLUSTER_LOST_SECONDS", FOR_EVER)
    group = Group(7)

    def regroup(place: Place) -> None:
        raise CannotTakePartError("rank 0 can't listen")

    group.regroup = regroup  # type: ignore[method-assign]
    master.say(active=in_place(2, (0, 1)))
    with pytest.raises(SystemExit) as ended:
        changes(job, group).go_on("lost", MINE)
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE


def test_the_master_hears_who_waits(job: Job, master: FakeMaster) -> None:
    """The master is told regularly which step is the newest and how long the member has waited."""
    group = Group(7)
    changes(job, group)
    eventually(lambda: master.got(PresenceReport, version=1, step=0, waiting=0.0))
    job.report_step(8)
    eventually(lambda: master.got(StepReport, step=8))
    group.waits = 4.5
    eventually(lambda: master.got(PresenceReport, version=1, step=8, waiting=4.5))
    job.go_on_in(in_place(2, (0, 1)))
    group.waits = 0.0
    eventually(lambda: master.got(PresenceReport, version=2, step=8, waiting=0.0))


def test_a_step_is_reported_for_the_version_that_made_it(job: Job, master: FakeMaster) -> None:
    """A step whose report is delayed until the members have changed does not count for the next version,
    which has not shown yet that it trains."""
    changes(job, Group(8))
    job.report_step(7)
    eventually(lambda: master.got(StepReport, step=7))
    job.report_step(8)
    job.go_on_in(in_place(2, (0, 1)))
    eventually(lambda: master.got(PresenceReport, version=2), what="later reports")

    assert not master.got(StepReport, version=2)


def test_the_group_is_closed_with_the_job(job: Job) -> None:
    """A process that ends disconnects from the other members, and only then."""
    group = Group(7)
    changes(job, group)
    assert not group.closed
    job.close()
    assert group.closed
