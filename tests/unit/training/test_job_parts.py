"""A process that holds the model together with others saves its part whenever the chief saves."""

import dataclasses

import numpy as np
import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.nodes import CHECKPOINT_EXIT_CODE, ProcessReport, ProcessState
from edl_workflows.core.protocol.training import CheckpointBegin
from edl_workflows.training.checkpoints.checkpoint_parts import Part, shared_checkpoint_name
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, Connect, FakeMaster, eventually, in_background, world

pytestmark = pytest.mark.slow

STEP = 7


class Parts:
    """The parts that a process of a replica group of two saves."""

    def __init__(self, job: Job, store: CheckpointStore, *, full: bool = False) -> None:
        self.asked = 0
        self._rank = job.rank
        self._full = full
        job.replica_size = 2
        job.save_in_two_stages(TwoStages(self.state, store, part=self.state))
        self.asked = 0

    def state(self) -> State:
        """This process' part."""
        self.asked += 1
        if self._full:
            raise CheckpointError("no space left")
        whole = State.of(STEP, {f"shard-{self._rank}": np.zeros(3)})
        return dataclasses.replace(whole, part=Part(self._rank, 2))


def missing(store: CheckpointStore) -> list[int]:
    """The parts that are not there."""
    return store.missing_parts(shared_checkpoint_name(STEP, TOKEN, 1), 2)[0]


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> CheckpointStore:
    """Where checkpoints go."""
    return CheckpointStore(tmp_path_factory.mktemp("checkpoints"))


def test_each_member_saves_its_part_for_a_switch(
    master: FakeMaster, connected: Connect, store: CheckpointStore
) -> None:
    """While drained, a process that is not the chief saves its part when the master asks for a checkpoint,
    once. It takes no ticket."""
    master.say(active=world(1, (1, 0)))
    job = connected()
    parts = Parts(job, store)
    master.say(drain=True)
    eventually(lambda: job.drain_requested)
    thread, _ = in_background(job.between_steps)
    eventually(lambda: master.got(ProcessReport, state=ProcessState.DRAINED))
    assert parts.asked == 0

    master.say(save="world-2")
    assert eventually(lambda: missing(store) == [0])
    master.say(save="", drain=False)
    thread.join(240)
    assert parts.asked == 1
    assert not master.got(CheckpointBegin)


def test_each_member_saves_its_part_at_the_end(
    master: FakeMaster, connected: Connect, store: CheckpointStore
) -> None:
    """At the end of training, a member that is not the chief saves its part."""
    master.say(active=world(1, (1, 0)))
    job = connected()
    Parts(job, store)
    job.report_step(STEP)
    job.save_last()

    assert missing(store) == [0]


def test_a_chief_does_not_try_again_alone(
    master: FakeMaster,
    connected: Connect,
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the other members have saved their parts and wait, the chief does not try again alone, since the
    checkpoint would lack their parts."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=world(1, (0, 1)))
    job = connected()
    parts = Parts(job, store, full=True)
    job.report_step(STEP)
    with pytest.raises(SystemExit) as left:
        job.save_last()

    assert left.value.code == CHECKPOINT_EXIT_CODE
    assert parts.asked == 1
