"""The library for training code, against a master that speaks real HTTP."""

import errno
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edl_workflows.agent.client import LONGEST_DELAY, MasterClient
from edl_workflows.agent.environment import NodeEnvironment
from edl_workflows.agent.job import Job
from edl_workflows.exceptions import ConflictError, InvalidError, JobFailedError, UnavailableError
from edl_workflows.protocol.cluster import CheckpointRef
from edl_workflows.protocol.datasets import AckRequest, FailedShard, LeaseRequest
from edl_workflows.protocol.nodes import (
    CHECKPOINT_EXIT_CODE,
    CLUSTER_LOST_EXIT_CODE,
    ProcessReport,
    ProcessState,
    ServerChanges,
    ServerReport,
)
from edl_workflows.protocol.sync import SyncJoin
from edl_workflows.protocol.training import CheckpointBegin, CheckpointEnd, StepReport
from tests.unit.agent.fake_master import TOKEN, FakeMaster, cluster, eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def connected(master: FakeMaster, environment: NodeEnvironment) -> Iterator[Callable[[int], Job]]:
    """Makes jobs of a version for worker 0; closed at the end."""
    jobs: list[Job] = []

    def connect(version: int = 1) -> Job:
        jobs.append(Job(environment, version, MasterClient(master.url, TOKEN)))
        return jobs[-1]

    yield connect
    for job in jobs:
        job.close()


Connect = Callable[..., Job]


def in_background(target: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run something in a thread; what it raises lands in the list."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - SystemExit is what we look for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def test_batches_cover_each_record_once(master: FakeMaster, connected: Connect) -> None:
    """One worker without failures gets each record of each epoch exactly once, in batches of the asked
    size."""
    master.say(active=cluster(1))
    seen: list[int] = []
    for batch in connected().batches("train", size=103, shard_size=20, batch_size=8, num_epochs=2):
        assert len(batch.indices) <= 8
        seen.extend(batch.indices)

    assert sorted([*range(103)] * 2) == sorted(seen)
    assert master.shards.finished


def test_nothing_is_acknowledged_before_it_is_done(master: FakeMaster, connected: Connect) -> None:
    """A shard whose last batch is still being processed is not acknowledged."""
    master.say(active=cluster(1))
    batches = connected().batches("train", size=4, shard_size=4, batch_size=4)

    next(batches)
    time.sleep(0.3)
    assert master.shards.progress("train").records_done == 0
    assert next(batches, None) is None
    assert master.shards.progress("train").records_done == 4


def test_drain_gives_back_what_is_left_and_goes_on_after(master: FakeMaster, connected: Connect) -> None:
    """A drained worker settles all, says so and waits; when the drain is called off it goes on, with no
    record lost or twice."""
    master.say(active=cluster(1))
    job = connected()
    seen: list[int] = []
    half_way = threading.Event()

    def train() -> None:
        for batch in job.batches("train", size=100, shard_size=20, batch_size=5):
            seen.extend(batch.indices)
            if len(seen) == 45:
                master.say(drain=True)
                eventually(lambda: job.drain_requested)
                half_way.set()

    thread, raised = in_background(train)
    assert half_way.wait(10)
    eventually(lambda: master.got(ProcessReport, state=ProcessState.DRAINED))
    progress = master.shards.progress("train")
    assert (len(seen), progress.shards_leased) == (45, 0)
    assert progress.records_done == 45  # also the first five records of the third shard

    master.say(drain=False)
    thread.join(10)
    assert not raised
    assert sorted(seen) == list(range(100))


def test_what_the_chief_has_trained_goes_with_its_checkpoint(master: FakeMaster, connected: Connect) -> None:
    """Also what it has not acknowledged yet: the shards that are through, and how far it is in the one it is
    at."""
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
    thread.join(10)
    assert len(master.got(CheckpointBegin, request="switch-1")) == len(master.got(CheckpointBegin)) == 1


def test_drained_chief_settles_before_it_saves(master: FakeMaster, connected: Connect) -> None:
    """When drain and save come together everything done is acknowledged first; a periodic save waits."""
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
    waiting.join(60)


@pytest.mark.parametrize("drain", [True, False], ids=["drained", "without shards"])
def test_a_closed_job_ends_its_loop(master: FakeMaster, connected: Connect, drain: bool) -> None:
    """A training loop in another thread ends with an error when its job is closed; it asks nobody for
    anything any more."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7), every_seconds=None)
    batches = job.batches("train", size=8, shard_size=8, batch_size=4)
    next(batches)
    master.say(drain=True) if drain else master.say(active=None)
    eventually(lambda: job.drain_requested if drain else not job.active)
    loop, raised = in_background(lambda: list(batches))
    if drain:
        eventually(lambda: [m for m in master.got(ProcessReport) if m.state is ProcessState.DRAINED])
    job.close()
    loop.join(60)
    assert not loop.is_alive()
    assert [type(error) for error in raised] == [UnavailableError]


def test_a_lasting_refusal_is_asked_less_and_less(master: FakeMaster, connected: Connect) -> None:
    """A chief whose checkpoint the master does not take rests longer and longer before it asks again."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7), every_seconds=None)
    eventually(lambda: job.active)
    master.away = True
    for _ in range(8):
        before = time.monotonic()
        assert job.checkpoint() is None
    assert job._saving._not_before - before >= LONGEST_DELAY / 2


def test_bad_parameters_are_named(master: FakeMaster, connected: Connect) -> None:
    """A data set that makes no sense is refused before anything is sent, with the field and what is wrong."""
    master.say(active=cluster(1))
    with pytest.raises(InvalidError, match=r"data set 'train'.*num_epochs.*valid integer"):
        connected().batches("train", size=8, shard_size=4, num_epochs="many")
    with pytest.raises(InvalidError, match="at least one record"):
        connected().batches("train", shard_size=4)


def test_slow_saves_leave_room_for_steps(master: FakeMaster, connected: Connect) -> None:
    """Where saving takes longer than its period, every boundary saves once and training still goes on."""
    master.say(active=cluster(1))
    job = connected()
    job.save_with(lambda: CheckpointRef(uri="/ckpt/7", step=7), every_seconds=1e-9)
    assert len(list(job.batches("train", size=40, shard_size=8, batch_size=4))) == 10
    assert len(master.got(CheckpointBegin)) >= 10


def test_only_the_chief_saves(master: FakeMaster, connected: Connect) -> None:
    """A request for a checkpoint leaves other workers alone, until one of them becomes the chief."""
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
    """A disk that is full fails the checkpoint with its reason, and nothing else."""
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
    """A requested checkpoint that can't be announced is not taken, and training is not held up; it is taken
    later."""
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
    """A master that goes away meanwhile hears of it when it is back, however long that takes: the process
    waits."""
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
    """SIGTERM means: at the next boundary save, give leases back, exit 143."""
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


def test_successor_waits_until_its_version_is_active(master: FakeMaster, connected: Connect) -> None:
    """A prepared process says READY and goes on at once when its version is the active one."""
    master.say(active=cluster(1), next=cluster(2))
    job = connected(2)
    thread, raised = in_background(job.wait_until_active)
    eventually(lambda: master.got(ProcessReport, version=2, state=ProcessState.READY))
    assert thread.is_alive()
    assert job.cluster.restore is None

    master.say(active=cluster(2, restore=CheckpointRef(uri="/ckpt/9", step=9)), next=None)
    thread.join(2)
    assert not thread.is_alive()
    assert not raised
    assert job.cluster.restore == CheckpointRef(uri="/ckpt/9", step=9)


def test_process_of_an_old_version_takes_no_work(master: FakeMaster, connected: Connect) -> None:
    """When a later version is active without a drain (a lost parameter server), the old process just waits
    for its end."""
    master.say(active=cluster(1))
    job = connected()
    batches = job.batches("train", size=100, shard_size=5, batch_size=5, ahead=1)
    next(batches)
    master.say(active=cluster(2))
    eventually(lambda: not job.active)
    thread, raised = in_background(lambda: next(batches))
    time.sleep(0.2)
    leased = master.shards.progress("train").shards_leased

    assert thread.is_alive()
    assert leased <= 2
    job.terminate()
    thread.join(10)
    assert isinstance(raised[0], SystemExit)


def test_broken_cluster_waits_for_the_next_version(master: FakeMaster, connected: Connect) -> None:
    """A process whose cluster broke stays until it is ended, once the master has named the next version."""
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)
    thread, raised = in_background(lambda: job.cluster_lost("socket closed"))
    master.say(next=cluster(2))
    time.sleep(0.1)
    assert thread.is_alive()
    job.terminate()
    thread.join(10)
    assert isinstance(raised[0], SystemExit)


def test_broken_cluster_without_a_next_version_ends(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the master names no other version, the process ends with the code that tells so."""
    monkeypatch.setattr("edl_workflows.agent.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1))
    with pytest.raises(SystemExit) as left:
        connected().cluster_lost("socket closed")
    assert left.value.code == CLUSTER_LOST_EXIT_CODE


def test_broken_cluster_whose_next_version_is_withdrawn_ends(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that fails takes its version back; the process must not wait for it for ever."""
    monkeypatch.setattr("edl_workflows.agent.job.CLUSTER_LOST_SECONDS", 0.5)
    master.say(active=cluster(1), next=cluster(2))
    job = connected()
    eventually(lambda: job.active)
    thread, raised = in_background(lambda: job.cluster_lost("socket closed"))
    master.say(next=None)
    thread.join(10)
    assert isinstance(raised[0], SystemExit)
    assert raised[0].code == CLUSTER_LOST_EXIT_CODE


def test_steps_are_reported_in_the_background(master: FakeMaster, connected: Connect) -> None:
    """The first step is reported at once, the newest follows, and a call costs microseconds."""
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)
    job.report_step(1, 2.5)
    (first,) = eventually(lambda: master.got(StepReport, step=1))
    start = time.perf_counter()
    for step in range(2, 10_002):
        job.report_step(step)
        job.between_steps()
    each = (time.perf_counter() - start) / 10_000

    assert (first.version, first.loss) == (1, 2.5)
    assert each < 100e-6
    eventually(lambda: master.got(StepReport, step=10_001))
    assert len(master.got(StepReport)) < 10
    assert master.got(ProcessReport, state=ProcessState.TRAINING)


def test_metrics_are_reported_with_steps(master: FakeMaster, connected: Connect) -> None:
    """Before or after the step itself; none is lost between two reports, and the step keeps its loss."""
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)
    job.report_step(1, 2.5)
    eventually(lambda: master.got(StepReport, step=1))
    job.report(2, {"accuracy": 0.5, "diverged": float("nan")})
    job.report_step(3, 1.5, records=96)
    job.report(3, {"auc": 0.7})
    eventually(lambda: master.got(StepReport, step=3))
    found: dict[str, float] = {}
    for one in master.got(StepReport):
        found |= one.metrics
    newest = master.got(StepReport, step=3)[-1]

    assert found == {"accuracy": 0.5, "auc": 0.7}
    assert (newest.loss, newest.records) == (1.5, 96)
    with pytest.raises(InvalidError, match="letters, digits"):
        job.report(4, {"{{x}}": 1.0})


def test_training_survives_an_absent_master(master: FakeMaster, connected: Connect) -> None:
    """While the master is away what is leased is trained; when it is back all is acknowledged."""
    master.say(active=cluster(1))
    seen: list[int] = []
    away = threading.Timer(0.5, lambda: setattr(master, "away", False))
    for batch in connected().batches("train", size=60, shard_size=5, batch_size=5):
        seen.extend(batch.indices)
        if len(seen) == 20:
            master.away = True
            away.start()

    assert sorted(seen) == list(range(60))
    assert master.shards.finished


def test_other_parameters_under_a_known_name_are_refused(master: FakeMaster, connected: Connect) -> None:
    """Two workers that disagree about a data set hear of it before any training."""
    master.say(active=cluster(1))
    job = connected()
    job.batches("train", size=100, shard_size=5)
    with pytest.raises(ConflictError, match="size"):
        job.batches("train", size=99, shard_size=5)


def test_failed_data_set_ends_the_loop(master: FakeMaster, connected: Connect) -> None:
    """When a data set has failed, every worker's loop raises the master's reason."""
    master.say(active=cluster(1))
    job = connected()
    shards = job.shards("train", size=10, shard_size=5, ahead=1, max_retries=0)
    other = LeaseRequest(node=job.node.model_copy(update={"id": 9}))
    reply = master.shards.lease("train", other, time.time())
    failed = FailedShard(**reply.shards[0].model_dump(), message="bad record")
    master.shards.acknowledge("train", AckRequest(node=other.node, failed=[failed]), time.time())

    with pytest.raises(JobFailedError, match="bad record"):
        list(shards)


def test_sync_and_barrier_wait_for_the_others(master: FakeMaster, connected: Connect) -> None:
    """Both return only when the master says so."""
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)

    def meet() -> None:
        job.sync("epoch")
        job.barrier("saved")

    thread, _ = in_background(meet)
    eventually(lambda: master.got(SyncJoin))
    assert thread.is_alive()
    master.sync_finished = True
    job.open_barrier("saved")
    thread.join(10)
    assert not thread.is_alive()


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
    """Who has said how to save need not save at the end, and nothing is saved twice."""
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
    """At the end of the job's block; not after an error, whose state nobody wants, nor where nothing was
    trained."""
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
    """And only what there is to train on ends a training."""
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
    """The training is not lost with one failed save: somebody may make room meanwhile. The master hears of
    each failure."""
    monkeypatch.setattr("edl_workflows.agent.job.LAST_SAVE_PAUSE", 0.01)
    master.say(active=cluster(1))
    job = connected()
    saves = Saves(job, full=True)
    job.report_step(1)
    thread, raised = in_background(job.save_last)
    eventually(lambda: len(master.got(CheckpointEnd)) >= 2)
    assert "No space left on device" in master.got(CheckpointEnd)[0].error
    saves.full = False
    thread.join(30)
    assert (raised, len(saves.steps)) == ([], 1)


def test_a_data_set_s_end_does_not_insist_on_saving(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training may go on with another data set: a disk that is full at the end of one does not end the
    program."""
    monkeypatch.setattr("edl_workflows.agent.job.LAST_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("edl_workflows.agent.job.CLUSTER_LOST_SECONDS", 0.1)
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
    """The chief before it may have been lost between the last step and the last checkpoint. Without servers
    its model would be untrained: nothing is saved."""
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
    """Its connection is gone: nobody waits for a master that can't be asked any more."""
    master.say(active=cluster(1))
    job = connected()
    saves = Saves(job)
    job.report_step(1)
    eventually(lambda: job.is_chief)
    job.close()
    thread, raised = in_background(job.save_last)
    thread.join(10)
    assert not thread.is_alive()
    assert (raised, saves.steps) == ([], [])


def test_the_last_checkpoint_waits_for_no_master_once_the_job_is_closed(
    master: FakeMaster, connected: Connect
) -> None:
    """Another thread may close the job while the master is away."""
    master.say(active=cluster(1))
    master.deaf_to_ends = True
    job = connected()
    saves = Saves(job)
    job.report_step(1)
    thread, raised = in_background(job.save_last)
    eventually(lambda: master.ends_asked)
    job.close()
    thread.join(30)
    assert not thread.is_alive()
    assert (raised, saves.steps) == ([], [0])


def test_tries_of_the_last_checkpoint_say_so(master: FakeMaster, connected: Connect) -> None:
    """The master does not count them as failures of different checkpoints."""
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
    """The process ends with a code of its own, and its last words are the first cause."""
    monkeypatch.setattr("edl_workflows.agent.job.LAST_SAVE_SECONDS", 0.0)
    monkeypatch.setattr("edl_workflows.agent.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1))
    job = connected()
    Saves(job, full=True)
    job.report_step(1)
    with pytest.raises(SystemExit) as left:
        job.save_last()
    assert left.value.code == CHECKPOINT_EXIT_CODE
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == "the last checkpoint could not be saved: OSError: [Errno 28] No space left on device"


def test_program_says_which_changes_of_its_servers_it_survives(
    master: FakeMaster, connected: Connect
) -> None:
    """What a program says goes with its being ready; a version that it can't be is refused, and its process
    waits for its end."""
    master.say(active=cluster(1))
    job = connected()
    job.allow_server_changes(ServerChanges.NEVER, "a table is not saved")
    job.wait_until_active()
    eventually(lambda: master.got(ProcessReport, state=ProcessState.READY))
    (ready,) = master.got(ProcessReport, state=ProcessState.READY)
    assert ready.servers == ServerReport(changes=ServerChanges.NEVER, reason="a table is not saved")

    next_one = connected(2)
    thread, raised = in_background(lambda: next_one.refuse_version("a table for each server"))
    eventually(lambda: master.got(ProcessReport, state=ProcessState.UNFIT))
    (unfit,) = master.got(ProcessReport, state=ProcessState.UNFIT)
    assert unfit.servers.changes is ServerChanges.SAME_COUNT
    assert thread.is_alive()
    next_one.terminate()
    thread.join(10)
    assert isinstance(raised[0], SystemExit)
