"""The library for training code, against a master that speaks real HTTP: data, versions, steps, barriers."""

import threading
import time

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError, JobFailedError, UnavailableError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.datasets import AckRequest, FailedShard, LeaseRequest
from edl_workflows.core.protocol.nodes import (
    CLUSTER_LOST_EXIT_CODE,
    ProcessReport,
    ProcessState,
    ServerChanges,
    ServerReport,
)
from edl_workflows.core.protocol.sync import SyncJoin
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.training import reports
from edl_workflows.training.client import LONGEST_DELAY
from tests.unit.training.fake_master import (
    Connect,
    FakeMaster,
    cluster,
    eventually,
    in_background,
    in_place,
)

pytestmark = pytest.mark.slow


def test_batches_cover_each_record_once(master: FakeMaster, connected: Connect) -> None:
    """A single worker without failures gets each record of each epoch exactly once, in batches of the
    requested size."""
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
    """A worker that is told to drain settles all shards, reports that it is drained, and waits. If the drain
    is cancelled, it continues, and no record is lost or trained twice."""
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
    assert half_way.wait(240)
    eventually(lambda: master.got(ProcessReport, state=ProcessState.DRAINED))
    progress = master.shards.progress("train")
    assert (len(seen), progress.shards_leased) == (45, 0)
    assert progress.records_done == 45  # also the first five records of the third shard

    master.say(drain=False)
    thread.join(240)
    assert not raised
    assert sorted(seen) == list(range(100))


@pytest.mark.parametrize("drain", [True, False], ids=["drained", "without shards"])
def test_a_closed_job_ends_its_loop(master: FakeMaster, connected: Connect, drain: bool) -> None:
    """Closing a job ends the training loop of another thread with UnavailableError."""
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
    loop.join(240)
    assert not loop.is_alive()
    assert [type(error) for error in raised] == [UnavailableError]


def test_a_lasting_refusal_is_asked_less_and_less(master: FakeMaster, connected: Connect) -> None:
    """While the master is unavailable, the chief waits longer and longer before it asks again for a
    checkpoint."""
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
    """A data set with invalid parameters is rejected with the field and the reason."""
    master.say(active=cluster(1))
    with pytest.raises(InvalidError, match=r"data set 'train'.*num_epochs.*valid integer"):
        connected().batches("train", size=8, shard_size=4, num_epochs="many")
    with pytest.raises(InvalidError, match="at least one record"):
        connected().batches("train", shard_size=4)


def test_successor_waits_until_its_version_is_active(master: FakeMaster, connected: Connect) -> None:
    """A prepared process reports READY and continues as soon as its version is active."""
    master.say(active=cluster(1), next=cluster(2))
    job = connected(2)
    thread, raised = in_background(job.wait_until_active)
    eventually(lambda: master.got(ProcessReport, version=2, state=ProcessState.READY))
    assert thread.is_alive()
    assert job.cluster.restore is None

    master.say(active=cluster(2, restore=CheckpointRef(uri="/ckpt/9", step=9)), next=None)
    thread.join(240)
    assert not thread.is_alive()
    assert not raised
    assert job.cluster.restore == CheckpointRef(uri="/ckpt/9", step=9)


def test_the_log_says_that_a_group_is_over_and_what_follows(
    master: FakeMaster, connected: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, which is shown without any configuration of logging, names the reason, and another one the
    number of workers that go on."""
    master.say(active=in_place(1, (0, 1)), next=None)
    job = connected(1)
    thread, raised = in_background(lambda: job.wait_for_successor("connection reset"))
    assert eventually(lambda: [record.message for record in caplog.records if record.levelname == "WARNING"])
    master.say(active=in_place(2, (0,)))
    thread.join(240)
    assert not raised
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the group of cluster version 1 is over: connection reset",
        "training goes on with 1 worker; a step that was not complete is repeated",
    ]


def test_process_of_an_old_version_takes_no_work(master: FakeMaster, connected: Connect) -> None:
    """If a later version is active without a drain, because a parameter server was lost, the old process
    waits for its end and takes no work."""
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
    thread.join(240)
    assert isinstance(raised[0], SystemExit)


def test_broken_cluster_waits_for_the_next_version(master: FakeMaster, connected: Connect) -> None:
    """A process whose cluster broke waits to be ended once the master has named the next version."""
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)
    thread, raised = in_background(lambda: job.cluster_lost("socket closed"))
    master.say(next=cluster(2))
    time.sleep(0.1)
    assert thread.is_alive()
    job.terminate()
    thread.join(240)
    assert isinstance(raised[0], SystemExit)


def test_broken_cluster_without_a_next_version_ends(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the master names no other version, the process ends with the code of a lost cluster."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1))
    with pytest.raises(SystemExit) as left:
        connected().cluster_lost("socket closed")
    assert left.value.code == CLUSTER_LOST_EXIT_CODE


def test_broken_cluster_whose_next_version_is_withdrawn_ends(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed plan withdraws its version. A process that waits for this version ends."""
    monkeypatch.setattr("edl_workflows.training.job.CLUSTER_LOST_SECONDS", 0.5)
    master.say(active=cluster(1), next=cluster(2))
    job = connected()
    eventually(lambda: job.active)
    thread, raised = in_background(lambda: job.cluster_lost("socket closed"))
    master.say(next=None)
    thread.join(240)
    assert isinstance(raised[0], SystemExit)
    assert raised[0].code == CLUSTER_LOST_EXIT_CODE


def test_steps_are_reported_in_the_background(master: FakeMaster, connected: Connect) -> None:
    """The first step is reported at once, and of later ones only the newest. A call takes less than 100
    microseconds."""
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


def test_a_step_that_somebody_waits_for_is_reported_at_once(
    master: FakeMaster, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the interval of step reports, also if it was made before the program knew that
    somebody waits for it. The steps before it do."""
    monkeypatch.setattr(reports, "STEP_SECONDS", 3600.0)
    master.say(active=cluster(1))
    job = connected()
    eventually(lambda: job.active)
    master.awaited = 5
    job.report_step(1)
    eventually(lambda: master.got(StepReport, step=1))
    master.awaited = 6
    for step in range(2, 6):
        job.report_step(step)
    job.report_step(6)
    eventually(lambda: master.got(StepReport, step=6))
    assert not master.got(StepReport, step=2)


def test_metrics_are_reported_with_steps(master: FakeMaster, connected: Connect) -> None:
    """Finite metrics arrive whether they are reported before or after their step, and the step keeps its
    loss."""
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
    """While the master is unavailable, leased shards are trained; when it is back, they are acknowledged."""
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
    """Registering a data set with other parameters raises ConflictError before any training."""
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
    """`sync` and `barrier` return only when the master says that all have arrived."""
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
    thread.join(240)
    assert not thread.is_alive()


def test_program_says_which_changes_of_its_servers_it_survives(
    master: FakeMaster, connected: Connect
) -> None:
    """The report READY tells which changes of servers the program survives. A process that reports its
    version as unfit waits to be ended."""
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
    thread.join(240)
    assert isinstance(raised[0], SystemExit)
