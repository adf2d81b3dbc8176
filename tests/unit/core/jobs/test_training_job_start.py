"""How a TrainingJob starts, row by row: `edl_workflows.core.jobs.training_job.reconcile`."""

from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Refusal
from edl_workflows.core.kubernetes import lost_pods
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.training_jobs import NAME, Job


def test_roles_are_started_in_order() -> None:
    """The master starts first, then the pservers when it is ready, and then the trainers. The phase is
    creating until a trainer runs."""
    job = Job()
    assert (job.phase, job.pods) == ("creating", ["master-0"])
    assert job.status["message"].startswith("master: 0 of 1 ready")
    job.set(master_0="Running")
    assert job.pods == ["master-0", "pserver-0", "pserver-1"]
    job.set(pserver_0="Running")
    assert job.trainers == [], "all pservers, not some"
    job.set(pserver_1="Running")
    assert (job.phase, job.trainers) == ("creating", ["trainer-0", "trainer-1"])
    job.set(trainer_1="Running")
    assert job.phase == "running"
    assert job.true_conditions() == ["Created", "Running"]


ROLES: list[Any] = [
    pytest.param(
        {"ft": True, "master": False}, ["master-0", "pserver-0"], id="fault-tolerant: always a master"
    ),
    pytest.param({"ft": False, "master": True}, ["master-0", "pserver-0"], id="configured: a master"),
    pytest.param({"ft": False, "master": False}, ["pserver-0"], id="neither: no master"),
    pytest.param({"ft": True, "pservers": 0}, ["master-0"], id="no pservers"),
    pytest.param({"ft": False, "master": False, "pservers": 0}, [], id="trainers only"),
]


@pytest.mark.parametrize(("spec", "servers"), ROLES)
def test_which_roles_there_are(spec: dict[str, Any], servers: list[str]) -> None:
    """There is a master if it is configured or the job is fault-tolerant, and there are pservers if they are
    configured."""
    job = Job.running(**{"pservers": 1, "trainers": (2, 2), **spec})
    assert job.pods == [*servers, "trainer-0", "trainer-1"]


def test_running_needs_all_trainers_of_a_job_that_is_not_fault_tolerant() -> None:
    """A job that is not fault-tolerant runs when all its trainers run, since they wait for each other."""
    job = Job(ft=False, master=False, pservers=0, trainers=(2, 2))
    job.set(trainer_0="Running")
    assert job.phase == "creating"
    job.set(trainer_1="Running")
    assert job.phase == "running"


def test_names_labels_and_owners() -> None:
    """All pods have upstream's labels, ours and an owner reference. Masters and pservers have a headless
    service."""
    job = Job.running()
    assert job.pods == ["master-0", "pserver-0", "pserver-1", "trainer-0", "trainer-1"]
    assert job.services == ["master-0", "pserver-0", "pserver-1"]
    for short, label in (
        ("master-0", "paddle-job-master"),
        ("pserver-1", "paddle-job-pserver"),
        ("trainer-1", "paddle-job"),
    ):
        metadata = job.pod(short)["metadata"]
        role, _, index = short.partition("-")
        assert metadata["labels"][label] == NAME
        assert metadata["labels"]["paddlepaddle.org/job-name"] == NAME
        assert metadata["labels"]["paddlepaddle.org/replica-type"] == role
        assert metadata["labels"]["paddlepaddle.org/replica-index"] == index
        assert metadata["ownerReferences"][0]["kind"] == "TrainingJob"
    assert job.world.objects["Service", f"{NAME}-pserver-0"]["spec"]["clusterIP"] == "None"


def test_trainers_that_know_each_other_have_addresses() -> None:
    """In a job that is not fault-tolerant, each trainer has a service, so that the others can reach it."""
    job = Job.running(ft=False, master=False, pservers=1, trainers=(2, 2))
    assert job.services == ["pserver-0", "trainer-0", "trainer-1"]


NOT_READY: list[Any] = [
    pytest.param({}, {}, "MasterNotReady", "master: 0 of 1 ready", id="master"),
    pytest.param({}, {"master_0": "Running"}, "PserverNotReady", "pserver: 0 of 2 ready", id="pservers"),
    pytest.param(
        {"pservers": 0}, {"master_0": "Running"}, "TrainerNotReady", "trainer: 0 of 2 ready", id="trainers"
    ),
]


@pytest.mark.parametrize(("spec", "phases", "reason", "message"), NOT_READY)
def test_a_role_that_is_never_ready_fails_the_job(
    spec: dict[str, Any], phases: dict[str, str], reason: str, message: str
) -> None:
    """After readyTimeoutSeconds the job fails and says which role is not ready and why. The controller
    requeues it for that moment."""
    job = Job(readyTimeoutSeconds=60, **spec)
    job.set(**phases)
    waiting = job.pods[-1]
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no node fits",
    }
    job.pod(waiting)["status"]["conditions"] = [scheduled]
    job.world.settle()
    assert job.world.decide("TrainingJob", NAME).requeue_after == 60
    job.world.tick(59)
    job.world.settle()
    assert job.phase == "creating"
    job.world.tick(1)
    job.world.settle()
    assert (job.phase, job.status["reason"]) == ("failed", reason)
    assert message in job.status["message"]
    assert "no node fits" in job.status["message"]
    job.settle()
    assert job.pods == []


def test_no_limit() -> None:
    """With readyTimeoutSeconds 0, the job waits for ever, as upstream."""
    job = Job(readyTimeoutSeconds=0)
    assert job.world.decide("TrainingJob", NAME).requeue_after is None
    job.world.tick(10**6)
    job.world.settle()
    assert job.phase == "creating"


def test_a_pserver_that_stops_to_be_ready_has_the_same_time() -> None:
    """The time-out counts from when a pod ceased to be Ready, not from its creation."""
    job = Job.running(readyTimeoutSeconds=60)
    job.world.tick(1000)
    at = job.world.now.isoformat().replace("+00:00", "Z")
    lost = {"type": "Ready", "status": "False", "lastTransitionTime": at}
    job.pod("pserver-0")["status"]["conditions"] = [lost]
    job.world.settle()
    assert job.phase == "running"
    job.world.tick(60)
    job.world.settle()
    assert (job.phase, job.status["reason"]) == ("failed", "PserverNotReady")


def test_a_pserver_that_is_made_anew_only_later_is_not_waited_for_meanwhile() -> None:
    """While the next pod of a place that had too many in a row is held back, its readyTimeoutSeconds do not
    run: they begin with the pod."""
    job = Job(readyTimeoutSeconds=60)
    job.set(master_0="Running")
    job.set(pserver_1="Running")
    for _ in range(8):
        job.world.tick(9)
        job.world.objects.pop(("Pod", f"{NAME}-pserver-0"), None)
        job.world.settle()

    assert (job.phase, job.status["reason"]) == ("creating", "ReplacedAgainAndAgain")


def test_a_pserver_that_does_not_go_has_the_same_time() -> None:
    """A deleted pod on a lost node blocks its name. After readyTimeoutSeconds the job says so and fails."""
    job = Job.running(readyTimeoutSeconds=60)
    job.world.delete("Pod", f"{NAME}-pserver-0")
    job.world.settle()
    assert job.world.wake("TrainingJob", NAME) == lost_pods.CONFIRM_SECONDS
    assert job.status["reason"] == "PodLost"
    assert sum(job.world.wake("TrainingJob", NAME) for _ in range(2)) == 60 - lost_pods.CONFIRM_SECONDS
    assert (job.phase, job.status["reason"]) == ("failed", "PserverNotReady")
    assert "ctr-pserver-0 is being deleted, but its node does not confirm its end" in job.status["message"]


def test_a_pserver_of_an_earlier_cluster_that_does_not_go_has_the_same_time() -> None:
    """The controller requeues the job for the moment when the time of the blocked pserver is over."""
    job = Job.running(readyTimeoutSeconds=60)
    job.edit(pserver={"min-instance": 3})
    job.settle()
    assert "deletionTimestamp" in job.pod("pserver-0")["metadata"]
    assert job.world.wake("TrainingJob", NAME) == lost_pods.CONFIRM_SECONDS
    assert job.status["reason"] == "PodLost"
    assert sum(job.world.wake("TrainingJob", NAME) for _ in range(2)) == 60 - lost_pods.CONFIRM_SECONDS
    assert (job.phase, job.status["reason"]) == ("failed", "PserverNotReady")


def test_a_trainer_that_waits_does_not_end_a_job_that_runs() -> None:
    """Once a fault-tolerant job runs, it continues with the trainers that it has, even if another one is
    never ready."""
    job = Job(readyTimeoutSeconds=60, pservers=0)
    job.set(master_0="Running")
    job.set(trainer_0="Running")
    job.world.tick(10_000)
    job.world.settle()
    assert job.phase == "running"


def test_what_may_not_be_made_is_told_and_has_its_time_too() -> None:
    """While a quota rejects the pservers, the reason is CreateRefused. After readyTimeoutSeconds the job
    fails with the server's message."""
    world = JobsNamespace()
    world.refuse[f"{NAME}-pserver-0"] = Refusal(
        "Pod", f"{NAME}-pserver-0", invalid=False, message="exceeded quota"
    )
    job = Job(world, readyTimeoutSeconds=60)
    job.report(master_0="Running")
    job.world.reconcile()
    assert (job.phase, job.status["reason"]) == ("creating", "CreateRefused")
    assert job.world.decide("TrainingJob", NAME).requeue_after == 30
    job.world.tick(60)
    job.world.settle()
    assert job.status["reason"] == "PserverNotReady"
    assert "exceeded quota" in job.status["message"]
