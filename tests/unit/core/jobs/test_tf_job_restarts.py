"""Which replicas of a TFJob are restarted, how fast and how often."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.core.jobs.tf_jobs import Job

RESTARTS: list[Any] = [
    pytest.param("ExitCode", 1, "", False, id="1 is permanent"),
    pytest.param("ExitCode", 127, "", False, id="127 is permanent"),
    pytest.param("ExitCode", 128, "", True, id="128 is transient"),
    pytest.param("ExitCode", 137, "", True, id="137 is transient"),
    pytest.param("ExitCode", 139, "", True, id="139 is transient"),
    pytest.param("ExitCode", 139, "exit-codes-2021", False, id="139 was permanent"),
    pytest.param("ExitCode", 138, "exit-codes-2021", True, id="138 was not"),
    pytest.param("ExitCode", None, "", True, id="lost without a code"),
    pytest.param("OnFailure", None, "", True, id="OnFailure: lost"),
    pytest.param("Always", 1, "", True, id="Always"),
    pytest.param("Never", 137, "", False, id="Never"),
]


@pytest.mark.parametrize(("policy", "code", "compat", "restarted"), RESTARTS)
def test_which_failures_are_restarted(policy: str, code: int | None, compat: str, restarted: bool) -> None:
    """Restart policy and exit code decide whether a failed replica is restarted, whichever other replicas
    run."""
    job = Job(compat=compat, PS=(1, policy), Worker=(2, policy))
    job.set(ps_0="Running", worker_0="Running", worker_1="Running")
    before = job.pod("worker-1")["metadata"]["uid"]
    job.set(worker_1=("Failed", code))
    if not restarted:
        assert job.phase == "Failed"
        return
    job.settle()
    assert job.pod("worker-1")["metadata"]["uid"] != before
    assert job.status["restarts"]["mnist-worker-1"]["count"] == 1
    job.set(worker_1="Running")
    assert job.phase == "Running"
    assert sorted(job.true_conditions()) == ["Created", "Running"]


@pytest.mark.parametrize("reason", ["Evicted", "Terminated", "Preempting"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_disrupted_pod_is_replaced_whatever_it_exits_with(reason: str, code: int) -> None:
    """The exit code of a pod that was evicted, terminated or preempted says nothing about its program, so the
    pod is replaced."""
    job = Job(PS=(1, "ExitCode"), Worker=(1, "ExitCode"))
    job.set(ps_0="Running", worker_0="Running")
    before = job.pod("ps-0")["metadata"]["uid"]
    job.world.set_pod("mnist-ps-0", "Failed", code, reason)
    job.world.reconcile()
    assert f"mnist-ps-0 is being replaced ({reason}, exit code {code})" in job.status["message"]
    job.settle()
    assert job.pod("ps-0")["metadata"]["uid"] != before
    assert job.phase == "Running"
    assert job.status["restarts"]["mnist-ps-0"]["count"] == 1


def test_restarting_is_seen_while_a_replica_is_replaced() -> None:
    """The condition Restarting excludes Running, and the message names the replica."""
    job = Job(PS=(1, "ExitCode"), Worker=(1, "ExitCode"))
    job.set(ps_0="Running", worker_0="Running")
    job.world.set_pod("mnist-worker-0", "Failed", 137)
    job.world.reconcile()
    assert job.phase == "Restarting"
    assert sorted(job.true_conditions()) == ["Created", "Restarting"]
    assert "mnist-worker-0" in job.status["message"]


def test_a_pod_that_was_replaced_leaves_its_number_and_how_it_ended() -> None:
    """The status keeps only the count and the exit code of a replaced pod, so that ten thousand entries fit.
    Each restart counts once, even if the controller dies in between."""
    job = Job(Worker=(2, "ExitCode"))
    job.set(worker_0="Running")
    uid = job.pod("worker-1")["metadata"]["uid"]
    job.world.set_pod("mnist-worker-1", "Failed", 137)
    job.world.reconcile(steps=1)
    assert job.status["restarts"]["mnist-worker-1"] == {"count": 1, "uid": uid, "exitCode": 137}
    job.settle()
    assert job.pod("worker-1")["metadata"]["uid"] != uid
    assert {name: {k: v for k, v in r.items() if v} for name, r in job.status["restarts"].items()} == {
        "mnist-worker-1": {"count": 1, "exitCode": 137}
    }


def assert_slows_down(job: Job, short: str, fail: Callable[[], None]) -> None:
    """A pod is replaced at once the first time that it fails, then after 10 s, then after 20 s."""
    for wait in (0, 10, 20):
        before = job.uid(short)
        fail()
        if wait:
            assert job.uid(short) == before, "too early"
            assert job.world.decide("TFJob", job.name).requeue_after == wait
            job.world.tick(wait)
        job.settle()
        assert job.uid(short) != before


def test_a_crash_loop_slows_down() -> None:
    """A replica's second restart is delayed by 10 s, and its third by 20 s."""
    job = Job(Worker=(2, "ExitCode"))

    assert_slows_down(job, "worker-1", lambda: job.set(worker_1=("Failed", 137)))


def test_a_pod_that_its_node_refuses_is_not_made_again_at_once_for_ever() -> None:
    """For a pod that was rejected by its node and has no container status, the delay counts from the creation
    of the pod."""
    job = Job(Worker=(1, "OnFailure"))

    assert_slows_down(job, "worker-0", lambda: job.set(worker_0=("Failed", None, "UnexpectedAdmissionError")))


def test_back_off_limit() -> None:
    """A job survives backoffLimit restarts; restarts of containers by the kubelet count, too."""
    job = Job(policies={"backoffLimit": 1, "cleanPodPolicy": "None"}, Worker=(2, "ExitCode"))
    job.set(worker_1=("Failed", 137))
    assert job.phase != "Failed"
    job.set(worker_0="Running")
    pod = job.pod("worker-0")
    pod["status"]["containerStatuses"] = [{"name": "tensorflow", "restartCount": 1, "state": {"running": {}}}]
    job.settle()
    assert (job.phase, job.status["reason"]) == ("Failed", "BackoffLimitExceeded")
    job.settle()
    assert job.pods == [], "what was stopped by force does not run on"
