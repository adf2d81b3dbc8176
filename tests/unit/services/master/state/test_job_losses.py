"""Whole jobs in memory that lose servers, workers or the chief, before and after the data is consumed."""

import pytest

from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.nodes.registry import ExitReason
from edl_workflows.services.master.state.observations import PodPhase
from tests.unit.services.master.simulated_job import SimulatedJob
from tests.unit.services.master.state.whole_jobs import make_job


def test_a_lost_server_means_a_version_from_the_newest_checkpoint() -> None:
    """After the loss of a server, its replacement has the same rank, and model and data go back to the newest
    checkpoint together."""
    job = make_job()
    job.save_periodically()
    saved = job.state.checkpoints.newest
    assert saved is not None
    job.calm(3)
    before = views.records_done(job.state)
    job.kill(("ps", 0))
    job.observe()
    assert views.next_announcement(job.state).directive.lost
    job.calm(1)
    job.calm(6)
    active = job.state.versions.active
    assert active is not None
    assert active.members == (2, 1)
    assert active.restore == saved.ref
    assert not views.next_announcement(job.state).directive.lost
    assert job.state.versions.settled
    job.calm(3)
    assert views.records_done(job.state) < before + 60
    assert not any(node.waiting for node in job.state.nodes)


def test_a_lost_worker_gives_its_shards_back_and_is_replaced() -> None:
    """The replacement of a lost worker has its rank and a new id. Its shards are leased to others, and the
    job ends with all data trained."""
    job = make_job(shards=200)
    job.kill(("worker", 1))
    job.calm(5)
    fresh = job.state.nodes.at_rank("worker", 1)
    assert fresh is not None
    assert fresh.id == 2
    job.calm(100)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[1] == set(range(200))


def test_a_lost_chief_is_named_anew_in_the_same_version() -> None:
    """With parameter servers, the model survives the loss of the chief: the version stays and gets another
    chief."""
    job = make_job()
    job.kill(("worker", 0))
    job.calm(5)
    active = job.published.directive.active
    assert active is not None
    assert (active.version, active.chief_id) == (1, 2)


def test_a_lost_chief_without_servers_means_a_new_version() -> None:
    """Without parameter servers, the model is lost with the chief, so a new version starts from the newest
    checkpoint."""
    job = make_job("worker=1")
    job.save_periodically()
    job.calm(2)
    job.kill(("worker", 0))
    job.calm(8)
    active = job.published.directive.active
    assert active is not None
    assert active.version == 2
    assert active.restore is not None


def test_a_worker_that_joins_while_the_version_trains_starts_from_the_newest_checkpoint() -> None:
    """Without parameter servers, a worker that joins loads a model: the newest checkpoint. The one with which
    the version began may have been removed by then, since a program keeps only the newest."""
    job = make_job("worker=1")
    job.save_periodically()
    job.kill(("worker", 0))
    job.calm(8)
    began = job.state.versions.active
    assert began is not None
    assert began.restore is not None
    job.save_periodically()
    job.calm(2)
    newest, active = job.state.checkpoints.newest, job.published.directive.active
    assert newest is not None
    assert newest.ref != began.restore
    assert active is not None
    assert (active.version, active.restore) == (began.number, newest.ref)


def test_a_fatal_error_of_the_chief_fails_the_job() -> None:
    """After a fatal error of the chief, the job's status has the reason and the node."""
    job = make_job()
    job.kill(("worker", 0), code=1)
    job.calm(3)
    failure = views.job_status(job.state, job.now)["failure"]
    assert failure["reason"] == "CriticalNodeFailed"
    assert "worker-0" in failure["message"]


def test_the_step_goes_back_as_soon_as_the_model_is_lost() -> None:
    """When the model is lost, the status goes back to the checkpoint's step, so that nobody who waits for a
    later step is told that it is reached."""
    job = make_job()
    job.save_periodically()
    saved = job.state.checkpoints.newest
    assert saved is not None
    job.calm(3)
    assert job.state.steps.step > saved.step
    job.kill(("ps", 0))
    job.observe()
    assert views.job_status(job.state, job.now)["progress"]["step"] == saved.step


def test_the_job_goes_on_without_a_worker_that_is_given_up() -> None:
    """If a worker that is not critical fails for good, the other workers train its data."""
    job = make_job(shards=100)
    job.kill(("worker", 1), code=1)
    job.calm(80)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[1] == set(range(100))


def test_silent_nodes_count_as_failed_and_their_pods_go() -> None:
    """A node without heartbeats is replaced after the time-out, and its pod is deleted since it may still
    run."""
    job = make_job(heartbeat=60.0)
    job.now += 50
    for ref in sorted(job.pods):
        if ref != ("worker", 1):
            job.act(ref)
    job.now += 20
    job.settle()
    lost = job.state.nodes.find("worker", 1)
    assert lost is not None
    assert lost.exit_reason is ExitReason.NO_HEARTBEAT
    job.now += 31
    job.observe()
    job.commit()
    assert ("worker", 1) in {ref for plan in job.plans.values() for ref in plan.remove}


def test_nodes_that_were_lost_are_forgotten_when_their_pods_are_gone() -> None:
    """The state of a long job does not grow with each lost worker: a lost node is dropped once its pod is
    gone, but not while the pod may still run."""
    job = make_job(heartbeat=60.0)
    for lost in (1, 2, 3):
        for _ in range(4):
            job.now += 20
            for ref in sorted(job.pods):
                if ref != ("worker", lost):
                    job.act(ref)
        job.observe()
        assert job.state.nodes.find("worker", lost) is not None
        job.calm(5)
        assert ("worker", lost) not in job.pods
    assert {str(node) for node in job.state.nodes} == {"ps-0", "ps-1", "worker-0", "worker-4"}


def trained_job(shards: int = 40) -> SimulatedJob:
    """A job whose data is consumed; its workers are about to end."""
    job = make_job(shards=shards)
    job.save_periodically()
    for _ in range(shards):
        for worker in (0, 1):
            if not job.state.shards.finished:
                job.act(("worker", worker))
                job.commit()
    assert job.state.shards.finished
    return job


def test_a_server_lost_after_the_chief_has_ended_brings_the_chief_back() -> None:
    """Model and data go back to the checkpoint. The chief, which has ended, is started again to restore
    it."""
    job = trained_job()
    job.act(("worker", 0))
    job.commit()
    assert job.pods["worker", 0].exit_code == 0
    job.kill(("ps", 0))
    job.observe()
    chief = job.state.chief
    assert chief is not None
    assert (chief.id, chief.live) == (2, True)
    job.calm(40)
    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.models[2] == set(range(40))


@pytest.mark.parametrize("told", [True, False], ids=["workers said so", "all seen at once"])
def test_a_server_lost_after_all_workers_have_ended_changes_nothing(told: bool) -> None:
    """The job succeeds and no node is started again, even if the master learns of the workers' end and of the
    server's loss in the same moment."""
    job = trained_job()
    for worker in (0, 1):
        if told:
            job.act(("worker", worker))
        else:
            job.pods["worker", worker].phase, job.pods["worker", worker].exit_code = PodPhase.SUCCEEDED, 0
    made = list(job.created)
    job.kill(("ps", 0))
    job.calm(40)

    assert job.state.outcome is not None
    assert job.state.outcome.succeeded
    assert job.created == made
    assert {node.id for node in job.state.nodes.of("worker")} == {0, 1}
