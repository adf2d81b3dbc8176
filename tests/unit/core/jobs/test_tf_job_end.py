"""How a TFJob ends, and what is left of it."""

from typing import Any

import pytest

from tests.unit.core.jobs.tf_jobs import NAME, Job

ENDS: list[Any] = [
    pytest.param(
        {"Chief": 1, "PS": 1, "Worker": 1}, {"chief_0": "Succeeded"}, "Succeeded", id="the chief decides"
    ),
    pytest.param(
        {"Chief": 1, "Worker": 2},
        {"worker_0": "Succeeded", "worker_1": "Succeeded"},
        "Created",
        id="and nobody else",
    ),
    pytest.param({"Master": 1, "Worker": 1}, {"master_0": "Succeeded"}, "Succeeded", id="Master is a chief"),
    pytest.param({"PS": 1, "Worker": 2}, {"worker_0": "Succeeded"}, "Succeeded", id="else worker 0"),
    pytest.param({"PS": 1, "Worker": 2}, {"worker_1": "Succeeded"}, "Created", id="not another worker"),
    pytest.param(
        {"PS": 2}, {"ps_0": "Succeeded", "ps_1": "Succeeded"}, "Succeeded", id="a job of servers only"
    ),
    pytest.param({"PS": 2}, {"ps_0": "Succeeded"}, "Created", id="all of them"),
    pytest.param({"PS": 1, "Worker": 1}, {"ps_0": ("Failed", 1)}, "Failed", id="a failed server"),
    pytest.param({"Worker": 2}, {"worker_1": ("Failed", 1)}, "Failed", id="a failed worker"),
    pytest.param(
        {"Worker": 1, "Evaluator": 1}, {"evaluator_0": ("Failed", 3)}, "Failed", id="a failed evaluator"
    ),
    pytest.param(
        {"Chief": 1, "Worker": 1},
        {"worker_0": ("Failed", 1), "chief_0": "Succeeded"},
        "Failed",
        id="first comes first",
    ),
]


@pytest.mark.parametrize(("types", "phases", "end"), ENDS)
def test_who_decides_about_the_end(types: dict[str, Any], phases: dict[str, Any], end: str) -> None:
    """The chief's success ends the job; without a chief that of worker 0, and without workers that of all
    replicas. A failure of any replica fails the job."""
    job = Job(**types)
    for short, phase in phases.items():
        if job.phase not in ("Succeeded", "Failed"):
            job.set(**{short: phase})
    assert job.phase == end


TOLD_TO_END: list[Any] = [
    pytest.param({"tfReplicaSpecs": {"PS": {"replicas": 2}}}, id="other parameter servers"),
    pytest.param({"runPolicy": {"suspend": True}}, id="suspended"),
    pytest.param(None, id="its machine is drained"),
]


@pytest.mark.parametrize("edit", TOLD_TO_END)
def test_a_chief_that_is_told_to_end_has_not_succeeded(edit: dict[str, Any] | None) -> None:
    """A chief that saves and exits with 0 on SIGTERM has a pod in phase Succeeded, but the job continues."""
    job = Job(Chief=1, PS=1)
    job.set(chief_0="Running", ps_0="Running")
    if edit:
        job.edit(**edit)
    else:
        job.world.delete("Pod", "mnist-chief-0")
    job.set(chief_0="Succeeded")
    assert job.phase not in ("Succeeded", "Failed")
    job.settle()
    job.settle()
    job.edit(runPolicy={"suspend": False})
    assert "chief-0" in job.pods
    job.set(chief_0="Succeeded")
    assert job.phase == "Succeeded"


def test_what_has_succeeded_stays_so_when_it_is_deleted() -> None:
    """A pod that had succeeded counts as succeeded, even if it was deleted and a finalizer holds it."""
    job = Job({"successPolicy": "AllWorkers"}, Worker=2)
    job.set(worker_0="Succeeded")
    job.pod("worker-0")["metadata"]["deletionTimestamp"] = job.world.now.isoformat()
    job.settle()
    assert "worker-0" not in job.pods
    job.set(worker_1="Succeeded")
    assert job.phase == "Succeeded"


def test_all_workers_when_asked_for() -> None:
    """With successPolicy AllWorkers, the job succeeds when every worker has succeeded. A worker that has
    succeeded counts even if its pod is deleted, and is not run again."""
    job = Job({"successPolicy": "AllWorkers"}, PS=1, Worker=2)
    job.set(worker_0="Succeeded", worker_1="Running")
    assert job.phase == "Running"
    job.world.delete("Pod", "mnist-worker-0")
    job.world.settle()
    assert "worker-0" not in job.pods, "what has succeeded is not run again"
    job.set(worker_1="Succeeded")
    assert job.phase == "Succeeded"


def test_the_message_names_who_failed_and_how() -> None:
    """A failed job says which replica, with its exit code."""
    job = Job(PS=1, Worker=2)
    job.set(worker_1=("Failed", 3))
    assert job.status["reason"] == "TFJobFailed"
    assert "mnist-worker-1 (exit code 3)" in job.status["message"]
    assert job.status["completionTime"]
    assert job.status["replicaStatuses"]["Worker"]["failed"] == 1


def test_the_message_names_why_a_replica_could_not_run() -> None:
    """If a node rejects a pod, the job's message gives its reason."""
    job = Job(Worker=1)
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
    job.world.edit("Pod", "mnist-worker-0", {"status": refused})
    job.world.settle()
    assert f"mnist-worker-0 (Unsupported, without an exit code: {said})" in job.status["message"]


def test_deadline() -> None:
    """The activeDeadlineSeconds count from the job's start, and the controller requeues the job for that
    moment."""
    job = Job(policies={"activeDeadlineSeconds": 60}, Worker=1)
    job.set(worker_0="Running")
    assert job.world.decide("TFJob", NAME).requeue_after == 60
    job.world.tick(60)
    job.world.settle()
    assert (job.phase, job.status["reason"]) == ("Failed", "DeadlineExceeded")


CLEAN: list[Any] = [
    pytest.param({}, "", ["worker-0"], id="default: what runs goes"),
    pytest.param({"cleanPodPolicy": "Running"}, "", ["worker-0"], id="Running"),
    pytest.param({"cleanPodPolicy": "All"}, "", [], id="All"),
    pytest.param({"cleanPodPolicy": "None"}, "", ["ps-0", "worker-0", "worker-1"], id="None"),
    pytest.param({}, "keep-pods", ["ps-0", "worker-0", "worker-1"], id="as training-operator's default"),
]


@pytest.mark.parametrize(("policies", "compat", "left"), CLEAN)
def test_clean_up(policies: dict[str, Any], compat: str, left: list[str]) -> None:
    """The cleanPodPolicy decides which pods stay. A service stays only if its pod still runs."""
    job = Job(policies=policies, compat=compat, PS=1, Worker=2)
    job.set(ps_0="Running", worker_1="Running")
    job.set(worker_0="Succeeded")
    job.settle()
    assert job.phase == "Succeeded"
    assert job.pods == left
    assert job.services == [name for name in left if name != "worker-0"]
    assert job.status["replicaStatuses"]["Worker"]["succeeded"] == 1
    assert job.status["replicaStatuses"]["PS"].get("active", 0) == 0


@pytest.mark.parametrize(("end", "phase"), [("Succeeded", 0), ("Failed", 1)])
def test_the_end_is_written_before_pods_go(end: str, phase: int) -> None:
    """A controller that replaces a dead one finds the job's end in the status or in its pods, and starts
    nothing."""
    job = Job(policies={"cleanPodPolicy": "All"}, Chief=1, Worker=2)
    job.set(chief_0="Running", worker_0="Running", worker_1="Running")
    job.world.set_pod("mnist-chief-0", end, phase)
    ending = job.world.decide("TFJob", NAME)
    assert not ending.delete
    job.world.apply("TFJob", NAME, ending, steps=1)
    job.world.apply("TFJob", NAME, job.world.decide("TFJob", NAME), steps=2)
    job.settle()
    job.settle()
    assert (job.phase, job.pods) == (end, [])


def test_time_to_live() -> None:
    """A finished job is deleted when its TTL has passed, and not before."""
    job = Job(policies={"ttlSecondsAfterFinished": 30}, Worker=1)
    job.set(worker_0="Succeeded")
    assert job.world.decide("TFJob", NAME).requeue_after == 30
    job.world.tick(30)
    job.world.reconcile()
    assert ("TFJob", NAME) not in job.world.objects


def test_dynamic_workers_may_be_lost() -> None:
    """In a dynamic job, a worker that fails for good fails the job only if it is the last one."""
    job = Job({"enableDynamicWorker": True}, PS=1, Worker=2)
    job.set(ps_0="Running", worker_0="Running", worker_1=("Failed", 1))
    assert job.phase == "Running"
    job.set(worker_0=("Failed", 1))
    assert job.phase == "Failed"
