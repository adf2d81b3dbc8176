"""The last model is saved at the end of the data, by the chief and once."""

import errno

import pytest

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import CHECKPOINT_EXIT_CODE
from edl_workflows.core.protocol.training import CheckpointBegin, CheckpointEnd
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import Connect, FakeMaster, cluster, eventually, in_background

pytestmark = pytest.mark.slow


class Saves:
    """Saves that fail while the disk is full."""

    def __init__(self, job: Job, full: bool = False) -> None:
        self.steps: list[int] = []
        self.full = full
        self.step = 0
        job.save_with(self)

    def __call__(self) -> CheckpointRef:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.steps.append(self.step)
        return CheckpointRef(uri=f"/ckpt/{self.step}", step=self.step)


def test_the_last_model_is_saved_at_the_end_of_the_data(master: FakeMaster, connected: Connect) -> None:
    """A program that registered how to save gets its last model saved, once, without a call at the end."""
    master.say(active=cluster(1))
    with connected() as job:
        saves = Saves(job)
        for _ in job.batches("train", size=20, shard_size=5, batch_size=5):
            saves.step += 1
        assert saves.steps == [4]
        (end,) = master.got(CheckpointEnd)
        assert end.step == 4
    assert saves.steps == [4]


def test_the_last_model_of_a_loop_of_another_shape_is_saved(master: FakeMaster, connected: Connect) -> None:
    """Leaving the job's block saves the last model, but not after an error and not if nothing was trained."""
    master.say(active=cluster(1))
    with connected() as job:
        saves = Saves(job)
        job.report_step(7)
    assert len(saves.steps) == 1
    with connected() as job:
        idle = Saves(job)
    assert idle.steps == []
    job = connected()
    broken = Saves(job)
    job.report_step(7)
    job.__exit__(ValueError, ValueError("loss is NaN"), None)
    assert broken.steps == []


def test_only_the_chief_saves_the_last_model(master: FakeMaster, connected: Connect) -> None:
    """Only the chief saves the last model, and only at the end of training data, not of evaluation data."""
    master.say(active=cluster(1))
    job = connected()
    saves = Saves(job)
    list(job.batches("held-out", size=5, shard_size=5, batch_size=5, task_type="evaluation"))
    assert saves.steps == []
    master.say(active=cluster(1, chief=5))
    eventually(lambda: not job.is_chief)
    list(job.batches("train", size=5, shard_size=5, batch_size=5))
    assert saves.steps == []


def test_the_last_model_is_tried_until_the_disk_has_room(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed save of the last model is repeated, since somebody may free space. Each failure is reported to
    the master."""
    monkeypatch.setattr("edl_workflows.training.job.LAST_SAVE_PAUSE", 0.01)
    master.say(active=cluster(1))
    job = connected()
    saves = Saves(job, full=True)
    job.report_step(1)
    thread, raised = in_background(job.save_last)
    eventually(lambda: len(master.got(CheckpointEnd)) >= 2)
    assert "No space left on device" in master.got(CheckpointEnd)[0].error
    saves.full = False
    thread.join(240)
    assert (raised, len(saves.steps)) == ([], 1)


def test_a_data_set_s_end_does_not_insist_on_saving(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full at the end of a data set, the program continues, perhaps with another data set."""
    monkeypatch.setattr("edl_workflows.training.job.LAST_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1))
    with connected() as job:
        saves = Saves(job, full=True)
        for _ in job.batches("easy", size=5, shard_size=5, batch_size=5):
            saves.step += 1
        (failed,) = eventually(lambda: master.got(CheckpointEnd))
        assert "No space left on device" in failed.error
        saves.full = False
        for _ in job.batches("hard", size=5, shard_size=5, batch_size=5):
            saves.step += 1
    assert saves.steps == [2]


def test_a_chief_that_came_too_late_to_train_saves_what_the_servers_hold(
    master: FakeMaster, connected: Connect
) -> None:
    """The previous chief may have been lost between the last step and the last checkpoint, so its replacement
    saves what the servers hold. Without servers its model would be untrained, and nothing is saved."""
    master.say(active=cluster(1, ps=1))
    lost = connected()
    list(lost.batches("train", size=5, shard_size=5, batch_size=5))
    with connected() as job:
        saves = Saves(job)
        assert list(job.batches("train", size=5, shard_size=5, batch_size=5)) == []
        assert saves.steps == [0]
    assert saves.steps == [0]
    with connected() as job:
        saves = Saves(job)
        eventually(lambda: job.active)
    assert saves.steps == [0]
    master.say(active=cluster(1))
    with connected() as job:
        saves = Saves(job)
        eventually(lambda: job.active)
        assert list(job.batches("train", size=5, shard_size=5, batch_size=5)) == []
    assert saves.steps == []


def test_a_closed_job_is_not_saved(master: FakeMaster, connected: Connect) -> None:
    """A closed job has no connection to its master, so the end of the block saves nothing."""
    master.say(active=cluster(1))
    job = connected()
    saves = Saves(job)
    job.report_step(1)
    eventually(lambda: job.is_chief)
    job.close()
    thread, raised = in_background(job.save_last)
    thread.join(240)
    assert not thread.is_alive()
    assert (raised, saves.steps) == ([], [])


def test_the_last_checkpoint_waits_for_no_master_once_the_job_is_closed(
    master: FakeMaster, connected: Connect
) -> None:
    """While the last checkpoint waits for an unavailable master, another thread may close the job, which ends
    the wait."""
    master.say(active=cluster(1))
    master.deaf_to_ends = True
    job = connected()
    saves = Saves(job)
    job.report_step(1)
    thread, raised = in_background(job.save_last)
    eventually(lambda: master.ends_asked)
    job.close()
    thread.join(240)
    assert not thread.is_alive()
    assert (raised, saves.steps) == ([], [0])


def test_tries_of_the_last_checkpoint_say_so(master: FakeMaster, connected: Connect) -> None:
    """Attempts at the last checkpoint are marked, so that the master does not count them as failures of
    different checkpoints."""
    master.say(active=cluster(1))
    job = connected()
    Saves(job)
    job.report_step(1)
    job.checkpoint()
    job.report_step(2)
    job.save_last()
    assert [begin.last for begin in master.got(CheckpointBegin)] == [False, True]


def test_a_last_model_that_can_not_be_saved_is_the_end_s_cause(
    master: FakeMaster,
    connected: Connect,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The process ends with an exit code of its own, and the last line of its output names the cause."""
    monkeypatch.setattr("edl_workflows.training.job.LAST_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1))
    job = connected()
    Saves(job, full=True)
    job.report_step(1)
    with pytest.raises(SystemExit) as left:
        job.save_last()
    assert left.value.code == CHECKPOINT_EXIT_CODE
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "the last checkpoint could not be saved: OSError: [Errno 28] No space left on device"
