"""The loop of a collective job: its members as threads that sum over a real ring, against a master that
speaks real HTTP."""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.protocol.cluster import CheckpointRef, TrainingCluster
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE, NodeRef, ProcessReport, ProcessState
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd, StepReport
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.client import MasterClient
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.collective.world import World, training
from edl_workflows.training.data.sampler import Dataset
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.e2e.pods import free_ports
from tests.e2e.ring_digits import Batch, SoftmaxRegression, digits
from tests.unit.training.fake_master import TOKEN, FakeMaster, eventually, in_place, world

pytestmark = pytest.mark.slow

DATASET = Dataset(size=600, batch_size=10, num_epochs=2)
MOST = 4
STEPS = 30
"""Of the data set with a global batch of 40."""
TOLERANCE = 1e-9
"""Of losses: sums of the same numbers in other orders."""


@dataclass
class Member:
    """One member's thread.

    Attributes:
        made: (epoch, step, loss, records) of each step.
        code: with which it ended; 0 when it finished.
        lost: set, it drops out in the middle of its next step.
    """

    job: Job
    made: list[tuple[int, int, float, list[int]]] = field(default_factory=list)
    code: object = None
    thread: threading.Thread = field(default_factory=threading.Thread)
    lost: threading.Event = field(default_factory=threading.Event)

    def ended(self) -> object:
        """Its code, once it has ended."""
        self.thread.join(240)
        assert not self.thread.is_alive(), "it hangs"
        return self.code


class OnThisMachine(SoftmaxRegression):
    """Members that meet on ports of this machine.

    Args:
        members: of the test.
        ports: by rank.
    """

    def __init__(self, members: "Members", ports: list[int]) -> None:
        super().__init__()
        self._members = members
        self._ports = ports

    def join(self, place: Place) -> None:
        super().join(replace(place, addresses=tuple(f"127.0.0.1:{port}" for port in self._ports)))

    def step(self, mini_batches: Sequence[Batch], wishes: Wishes) -> Reduced:
        self._members.within_step()
        return super().step(mini_batches, wishes)


class Members:
    """Starts members of cluster versions.

    Args:
        master: theirs.
        environment: of worker 0.
        folder: of the checkpoints.
    """

    def __init__(self, master: FakeMaster, environment: NodeEnvironment, folder: Path) -> None:
        self.master = master
        self.allowed = float("inf")
        """Nobody goes beyond this step."""
        self.within_step: Callable[[], object] = lambda: None
        """Called by each when it has read what the master wants, before it sums."""
        self.data = digits()
        self.store = CheckpointStore(folder)
        self._environment = environment
        self._all: list[Member] = []

    def start(self, cluster: TrainingCluster) -> list[Member]:
        """All members of a version, by rank."""
        ports = free_ports(len(cluster.workers))
        members = []
        for worker in cluster.workers:
            environment = replace(self._environment, node=NodeRef(type="worker", id=worker.id))
            member = Member(Job(environment, cluster.version, MasterClient(self.master.url, TOKEN)))
            member.thread = threading.Thread(target=self._run, args=(member, ports), daemon=True)
            member.thread.start()
            members.append(member)
        self._all += members
        return members

    def train(self, cluster: TrainingCluster) -> list[Member]:
        """The members of a version that is the active one, run to its end."""
        self.master.say(active=cluster, next=None, drain=False, save="")
        members = self.start(cluster)
        assert [member.ended() for member in members] == [0] * len(members)
        return members

    def close(self) -> None:
        """End all."""
        for member in self._all:
            member.job.close()
        for member in self._all:
            member.ended()

    def _run(self, member: Member, ports: list[int]) -> None:
        framework = OnThisMachine(self, ports)
        saving = Saving(self.store, every_seconds=None)
        try:
            with training(member.job, framework, DATASET, saving) as run:
                for mini_batches in run:
                    self._step(member, run, mini_batches)
            member.code = 0
        except SystemExit as ended:
            member.code = ended.code
        except Exception as error:  # noqa: BLE001 - the test looks at it
            member.code = error
        finally:
            framework.ring.close()

    def _step(self, member: Member, run: World, mini_batches: tuple[Sequence[int], ...]) -> None:
        records = [list(batch) for batch in mini_batches]
        eventually(lambda: run.global_step < self.allowed)
        if member.lost.is_set():
            raise RuntimeError("killed")
        epoch = run.epoch
        step, loss = run.step([Batch(self.data.images[i], self.data.labels[i]) for i in records])
        member.made.append((epoch, step, loss, [record for batch in records for record in batch]))


@pytest.fixture
def members(master: FakeMaster, environment: NodeEnvironment, tmp_path: Path) -> Iterator[Members]:
    """Members of one job."""
    made = Members(master, environment, tmp_path)
    yield made
    made.close()


def losses(members: list[Member]) -> list[float]:
    """Step by step."""
    return [loss for _, _, loss, _ in members[0].made]


def seen(members: list[Member]) -> "collections.Counter[tuple[int, int]]":
    """How often each (epoch, record) was trained."""
    return collections.Counter(
        (e, r) for member in members for e, _, _, records in member.made for r in records
    )


EACH_ONCE = {(epoch, record): 1 for epoch in (1, 2) for record in range(DATASET.size)}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_loss_curve_is_that_of_one_worker(size: int, members: Members, tmp_path: Path) -> None:
    """However many members share the global batch, each step has the same loss up to rounding, and each
    record of an epoch is trained once. Rank 0 saves at the end."""
    alone = members.train(world(1, (0,)))
    members.store = CheckpointStore(tmp_path / "other")
    together = members.train(world(2, tuple(range(size))))

    assert len(losses(alone)) == STEPS
    assert losses(together) == pytest.approx(losses(alone), rel=TOLERANCE)
    assert seen(together) == EACH_ONCE
    assert members.master.got(CheckpointEnd, step=STEPS)
    in_all = 2 * DATASET.size
    assert members.master.got(StepReport, version=2, step=STEPS, records=in_all, records_total=in_all)


def test_loss_curve_across_changes(master: FakeMaster, members: Members, tmp_path: Path) -> None:
    """Members change from 1 to 3 to 2 by drain, switch checkpoint and successors. Each step has the loss of a
    run with one member, and each record of an epoch is trained exactly once."""
    expected = losses(members.train(world(1, (0,))))
    members.store = CheckpointStore(tmp_path / "other")
    worlds = [world(2, (0,)), world(3, (0, 1, 2)), world(4, (1, 2))]
    members.allowed = 5
    everyone = newest = members.start(worlds[0])
    master.say(active=worlds[0])
    for before, after in pairwise(worlds):
        newest = switch(master, members, before, after, newest)
        everyone = everyone + newest
    members.allowed = STEPS
    assert [member.ended() for member in newest] == [0, 0]

    curve = {step: loss for member in everyone for _, step, loss, _ in member.made}
    assert [curve[step] for step in range(1, STEPS + 1)] == pytest.approx(expected, rel=TOLERANCE)
    assert seen(everyone) == EACH_ONCE


def switch(
    master: FakeMaster, members: Members, before: TrainingCluster, after: TrainingCluster, old: list[Member]
) -> list[Member]:
    """An orderly change, as the master conducts it."""
    eventually(lambda: old[0].made and old[0].made[-1][1] == members.allowed)
    successors = members.start(after)
    master.say(next=after)
    ready = {"version": after.version, "state": ProcessState.READY}
    eventually(lambda: len(master.got(ProcessReport, **ready)) == len(successors))
    master.say(drain=True)
    eventually(lambda: old[0].job.drain_requested)
    members.allowed += 5
    drained = {"version": before.version, "state": ProcessState.DRAINED}
    eventually(lambda: len(master.got(ProcessReport, **drained)) == len(old))
    assert len({len(member.made) for member in old}) == 1  # all after the same step
    master.say(save=f"switch-{after.version}")
    eventually(lambda: master.got(CheckpointBegin, request=f"switch-{after.version}"))
    step = old[0].made[-1][1]
    (end,) = eventually(lambda: master.got(CheckpointEnd, step=step))
    restored = after.model_copy(update={"restore": CheckpointRef(uri=end.uri, step=step)})
    master.say(active=restored, next=None, drain=False, save="")
    eventually(lambda: successors[0].made and successors[0].made[-1][1] == members.allowed)
    for member in old:
        member.job.terminate()
    assert [member.ended() for member in old] == [143] * len(old)
    return successors


def test_members_stop_after_the_same_step(master: FakeMaster, members: Members) -> None:
    """If one member learns of a drain first, all stop after the same step. When the drain is cancelled, all
    continue to the end."""
    cluster = world(1, (0, 1, 2))
    master.say(active=cluster)
    members.allowed = 5
    everyone = members.start(cluster)
    eventually(lambda: len(everyone[0].made) == 5)
    master.say(drain=True)
    eventually(lambda: everyone[1].job.drain_requested)
    members.allowed = STEPS
    eventually(lambda: len(master.got(ProcessReport, state=ProcessState.DRAINED)) == 3)
    assert [len(member.made) for member in everyone] == [6, 6, 6]

    master.say(drain=False)
    assert [member.ended() for member in everyone] == [0, 0, 0]
    assert seen(everyone) == EACH_ONCE


def test_switch_is_not_saved_before_the_last_step(master: FakeMaster, members: Members) -> None:
    """The master may ask a single member for the switch checkpoint together with the drain. If both come
    during a step, the member saves after its last step, not before."""
    cluster = world(1, (0,))
    master.say(active=cluster)
    members.allowed = 5
    (member,) = members.start(cluster)
    eventually(lambda: len(member.made) == 5)

    def switch() -> None:
        if not master.directive.drain:
            master.say(drain=True, save="switch")
            eventually(lambda: member.job.drain_requested)

    members.within_step = switch
    members.allowed = STEPS
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert len(member.made) == 7
    assert end.step == 7
    members.within_step = lambda: None
    master.say(drain=False, save="")
    assert member.ended() == 0


def test_drain_for_another_version_needs_a_step_first(master: FakeMaster, members: Members) -> None:
    """A drain is cancelled and requested again for another version. A member that saw only the second request
    makes one step with those that saw both, and all stop together again."""
    cluster = world(1, (0, 1))
    master.say(active=cluster, next=world(2, (0, 1, 2)))
    members.allowed = 5
    everyone = members.start(cluster)
    eventually(lambda: len(everyone[0].made) == 5)
    master.say(drain=True)
    eventually(lambda: everyone[0].job.drain_requested)
    members.allowed = STEPS
    eventually(lambda: len(master.got(ProcessReport, state=ProcessState.DRAINED)) == 2)
    master.say(next=world(4, (0, 1, 3)))  # as if the pause between had not been seen
    eventually(lambda: len(master.got(ProcessReport, state=ProcessState.DRAINED)) == 4)

    assert [len(member.made) for member in everyone] == [7, 7]
    master.say(drain=False, next=None)
    assert [member.ended() for member in everyone] == [0, 0]


@pytest.mark.parametrize("leaving", [0, 2], ids=["chief", "another"])
def test_member_that_is_told_to_end_loses_no_step(leaving: int, master: FakeMaster, members: Members) -> None:
    """On SIGTERM to one member, the chief saves the step that all have made. Then that member ends with 143,
    and the others wait for the next version."""
    cluster = world(1, (0, 1, 2))
    master.say(active=cluster)
    members.allowed = 5
    everyone = members.start(cluster)
    eventually(lambda: len(everyone[0].made) == 5)
    everyone[leaving].job.terminate()
    members.allowed = STEPS
    assert everyone[leaving].ended() == 143

    (step,) = {member.made[-1][1] for member in everyone}
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert end.step == step
    staying = [member for member in everyone if member is not everyone[leaving]]
    assert all(member.thread.is_alive() for member in staying)
    assert members.store.newest() == CheckpointRef(uri=end.uri, step=step)
    after = members.train(world(2, tuple(m.job.node.id for m in staying), restore=members.store.newest()))
    assert seen([*everyone, *after]) == EACH_ONCE


def test_lost_member_breaks_the_group(
    master: FakeMaster, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a member is lost during a step, the others exit with the code of a lost group. The next version
    continues from the newest checkpoint, and only steps after it are made twice."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    cluster = world(1, (0, 1, 2))
    master.say(active=cluster)
    members.allowed = 5
    everyone = members.start(cluster)
    eventually(lambda: len(everyone[0].made) == 5)
    master.say(save="now")
    eventually(everyone[0].job.should_checkpoint)
    members.allowed = 10
    (saved,) = eventually(lambda: master.got(CheckpointEnd))
    eventually(lambda: len(everyone[0].made) == 10)
    everyone[1].lost.set()
    members.allowed = STEPS
    assert [everyone[rank].ended() for rank in (0, 2)] == [CLUSTER_LOST_EXIT_CODE] * 2

    restore = CheckpointRef(uri=saved.uri, step=saved.step)
    after = members.train(world(2, (0, 2), restore=restore))
    assert after[0].made[0][1] == saved.step + 1
    times = seen([*everyone, *after])
    assert times.keys() == EACH_ONCE.keys()
    lost = {(e, r) for member in everyone for e, step, _, rs in member.made if step > saved.step for r in rs}
    assert {record for record, count in times.items() if count > 1} == lost


def test_group_that_does_not_form_is_tried_again(
    master: FakeMaster, environment: NodeEnvironment, tmp_path: Path
) -> None:
    """If the group of a successor breaks while it forms, the process ends at once with the code of a lost
    group."""

    class Alone(SoftmaxRegression):
        def join(self, place: Place) -> None:
            raise UnavailableError("rank 1 does not answer")

    master.say(active=world(1, (0,)), next=world(2, (0, 1)))
    job = Job(environment, 2, MasterClient(master.url, TOKEN))
    with (
        pytest.raises(SystemExit) as ended,
        training(job, Alone(), DATASET, Saving(CheckpointStore(tmp_path))),
    ):
        pytest.fail("the block was entered")
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE


class AloneInGroup(SoftmaxRegression):
    """It goes on when the others of its group are lost.

    Attributes:
        lose_others: called once when it next meets the others.
    """

    lose_others: Callable[[], None] | None = None

    def prepare(self) -> None:
        """Nothing to build."""

    def regroup(self, place: Place) -> None:
        """It is alone."""

    def interrupt(self, version: int) -> None:
        """It waits for nobody."""

    def close(self) -> None:
        """There is nobody to disconnect from."""

    def waiting(self) -> float:
        return 0.0

    def any_of_replica(self, wanted: bool) -> bool:
        return wanted

    def compare(self, number: int) -> list[int]:
        return [number]

    def broadcast(self, numbers: Sequence[int], root: int = 0, *, load: bool = True) -> list[int]:
        return list(numbers)

    def meet(self) -> None:
        lose, self.lose_others = self.lose_others, None
        if lose is not None:
            lose()
            raise UnavailableError("rank 1 has died")


def test_the_last_step_is_reported_if_the_members_change_then(
    master: FakeMaster, environment: NodeEnvironment, tmp_path: Path
) -> None:
    """A member is lost after the last step, while the report of that step waits. The step is still reported,
    for the new version."""
    master.say(active=world(1, (0,)))
    job, data = Job(environment, 1, MasterClient(master.url, TOKEN)), digits()
    framework, saving = AloneInGroup(), Saving(CheckpointStore(tmp_path), every_seconds=None)
    with training(job, framework, Dataset(size=80, batch_size=10, num_epochs=1), saving) as run:
        for mini_batches in run:
            run.step([Batch(data.images[list(i)], data.labels[list(i)]) for i in mini_batches])
        framework.lose_others = lambda: master.say(active=in_place(2, (0,)))
    framework.ring.close()

    assert job.version == 2
    assert master.got(StepReport, version=2, step=2, records=80)


def test_each_turn_is_one_step(members: Members) -> None:
    """A loop that does not make the step gets an error instead of running for ever."""
    members.master.say(active=world(1, (0,)))
    members._step = lambda *_: None  # type: ignore[method-assign]
    (member,) = members.start(world(1, (0,)))
    assert "call step once" in str(member.ended())


def test_evaluator_is_no_member(master: FakeMaster, environment: NodeEnvironment, tmp_path: Path) -> None:
    """A node that the version does not name gets an error at once."""
    master.say(active=world(1, (1, 2)))
    job = Job(environment, 1, MasterClient(master.url, TOKEN))
    saving = Saving(CheckpointStore(tmp_path))
    with (
        contextlib.closing(job),
        pytest.raises(InvalidError, match="worker-0 is not a member"),
        training(job, SoftmaxRegression(), DATASET, saving),
    ):
        pytest.fail("the block was entered")
