"""When the chief saves, and what the master is told, against a master that speaks real HTTP."""

import threading
import time

import pytest

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import AckRequest
from edl_workflows.core.protocol.nodes import ProcessReport, ProcessState
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from tests.unit.training.fake_master import Connect, FakeMaster, cluster, eventually, in_background

pytestmark = pytest.mark.slow


def test_what_the_chief_has_trained_goes_with_its_checkpoint(master: FakeMaster, connected: Connect) -> None:
    """The position sent with a checkpoint covers shards that the chief has finished but not acknowledged, and
    the records done of the current shard."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7))
    batches = job.batches("train", size=100, shard_size=20, batch_size=5)
    for _ in range(8):  # the eighth is being trained
        next(batches)
    job.checkpoint()
    (begin,) = master.got(CheckpointBegin)
    known = master.shards.position_for(job.node, begin.consumed, 0.0)
    assert known.datasets["train"].records_done == 35
    assert begin.consumed["train"].begun.records_done == 15


def test_chief_saves_between_drain_and_switch(master: FakeMaster, connected: Connect) -> None:
    """While drained, the chief takes the switch checkpoint when the master asks for it, once."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7))
    master.say(drain=True)
    eventually(lambda: job.drain_requested)
    thread, _ = in_background(job.between_steps)
    eventually(lambda: master.got(ProcessReport, state=ProcessState.DRAINED))
    assert not master.got(CheckpointBegin)

    master.say(save="switch-1")
    eventually(lambda: master.got(CheckpointEnd, uri="/ckpt/7", step=7))
    master.say(save="", drain=False)
    thread.join(240)
    assert len(master.got(CheckpointBegin, request="switch-1")) == len(master.got(CheckpointBegin)) == 1


def test_drained_chief_settles_before_it_saves(master: FakeMaster, connected: Connect) -> None:
    """If drain and save come together, finished shards are acknowledged before the save. A periodic save
    waits."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7), every_seconds=1e-6)
    master.say(drain=True, save="switch")
    eventually(lambda: job.drain_requested)
    batches = job.batches("train", size=8, shard_size=4, batch_size=4)
    master.say(drain=False, save="")
    eventually(lambda: not job.drain_requested)
    next(batches)
    master.say(drain=True, save="switch")
    eventually(lambda: job.drain_requested)
    master.received.clear()
    waiting, _ = in_background(lambda: next(batches))
    eventually(lambda: master.got(CheckpointEnd))
    time.sleep(0.2)

    order = [m for m in master.received if isinstance(m, AckRequest | ProcessReport | CheckpointBegin)]
    assert [type(m) for m in order][:1] == [AckRequest]
    begins = master.got(CheckpointBegin)
    assert [begin.request for begin in begins] == ["switch"]
    assert master.received.index(master.got(AckRequest)[-1]) < master.received.index(begins[0])
    master.say(drain=False, save="")
    waiting.join(240)


def test_slow_saves_leave_room_for_steps(master: FakeMaster, connected: Connect) -> None:
    """If a save takes longer than the period between saves, each boundary saves once and training still
    continues."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7), every_seconds=1e-9)
    assert len(list(job.batches("train", size=40, shard_size=8, batch_size=4))) == 10
    assert len(master.got(CheckpointBegin)) >= 10


def test_the_master_hears_how_long_training_stopped_to_save(master: FakeMaster, connected: Connect) -> None:
    """The master is told how long training stopped for a save, whether it succeeded or not. Before the first
    step nothing is reported."""
    master.say(active=cluster(1))
    job = connected()
    outcomes = iter([None, OSError("full"), None])

    def save() -> CheckpointRef:
        time.sleep(0.05)
        if (error := next(outcomes)) is not None:
            raise error
        return CheckpointRef(uri="/ckpt/7", step=7)

    job.save_with(save)
    job.checkpoint()
    job.report_step(1)
    job.checkpoint()
    job.checkpoint()
    assert eventually(lambda: len(master.got(ProcessReport, state=ProcessState.TRAINING)) == 3)
    first_step, *saves = master.got(ProcessReport, state=ProcessState.TRAINING)
    assert first_step.saving == 0
    assert all(0.05 <= report.saving < 30 for report in saves)


def test_only_the_chief_saves(master: FakeMaster, connected: Connect) -> None:
    """A worker that is not the chief ignores a request for a checkpoint, until it becomes the chief."""
    master.say(active=cluster(1, chief=5), save="a")
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/1", step=1))
    eventually(lambda: job.active)
    job.between_steps()
    assert not job.is_chief
    assert not master.got(CheckpointBegin)

    master.say(active=cluster(1, chief=0))
    eventually(lambda: job.is_chief)
    assert job.should_checkpoint()
    job.between_steps()
    eventually(lambda: master.got(CheckpointEnd, step=1))


def test_failed_save_is_reported_and_training_goes_on(master: FakeMaster, connected: Connect) -> None:
    """A full disk fails the checkpoint with the reason, and training continues."""
    master.say(active=cluster(1), save="a")
    job = connected()

    def save() -> CheckpointRef:
        raise OSError("disk full")

    job.save_with(save)
    eventually(lambda: job.active)
    job.between_steps()

    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert "disk full" in end.error


def test_save_waits_for_an_absent_master(master: FakeMaster, connected: Connect) -> None:
    """If the master is unavailable, a requested checkpoint is not saved, training continues, and the
    checkpoint is saved later."""
    master.say(active=cluster(1), save="a")
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/1", step=1))
    eventually(lambda: job.active)
    master.away = True
    start = time.monotonic()
    job.between_steps()
    job.between_steps()
    assert time.monotonic() - start < 0.5
    master.away = False

    def saved_at_a_later_boundary() -> bool:
        job.between_steps()
        return bool(master.got(CheckpointEnd))

    eventually(saved_at_a_later_boundary)


def test_the_last_checkpoint_is_told_before_the_end(master: FakeMaster, connected: Connect) -> None:
    """If the master is unavailable after the last save, the process waits until it has reported the
    checkpoint."""
    master.say(active=cluster(1))
    job = connected()
    job.wait_until_active()

    def save() -> CheckpointRef:
        master.away = True
        threading.Timer(1.5, lambda: setattr(master, "away", False)).start()
        return CheckpointRef(uri="/checkpoints/7", step=7)

    job.save_with(save)
    assert job.checkpoint(stored=True) is not None
    assert master.got(CheckpointEnd, step=7)


def test_terminated_chief_saves_gives_back_and_leaves(master: FakeMaster, connected: Connect) -> None:
    """On SIGTERM, the chief saves at the next boundary, returns its leases and exits with 143."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/1", step=1))
    batches = job.batches("train", size=100, shard_size=10, batch_size=5)
    next(batches)
    job.terminate()

    with pytest.raises(SystemExit) as left:
        next(batches)
    assert left.value.code == 143
    assert master.got(CheckpointEnd, step=1)
    assert master.shards.progress("train").shards_leased == 0
