"""A TFJob that is suspended, resumed or given other replicas."""

from typing import Any

import pytest

from edl_workflows.core.kubernetes import lost_pods
from tests.unit.core.jobs.tf_jobs import NAME, Job

GOING: list[Any] = [
    pytest.param({"tfReplicaSpecs": {"Worker": {"replicas": 2}}}, id="other workers"),
    pytest.param({"runPolicy": {"suspend": True}}, id="suspended"),
]


@pytest.mark.parametrize("edit", GOING)
def test_the_deadline_holds_while_pods_do_not_go(edit: dict[str, Any]) -> None:
    """Even if pods hang on a lost node after a scaling or a suspension, the controller wakes up for the
    deadline and fails the job."""
    job = Job(policies={"activeDeadlineSeconds": 60}, Worker=3)
    job.set(worker_0="Running", worker_1="Running", worker_2="Running")
    job.edit(**edit)
    assert job.world.wake("TFJob", NAME) == lost_pods.CONFIRM_SECONDS
    assert (job.phase in ("Restarting", "Running"), job.status["reason"]) == (True, "PodLost")
    waits = [job.world.wake("TFJob", NAME) for _ in range(2)]
    assert sum(waits) == 60 - lost_pods.CONFIRM_SECONDS
    assert (job.phase, job.status["reason"]) == ("Failed", "DeadlineExceeded")


def test_suspend_and_resume() -> None:
    """A suspended job has no pods; its servers end last. A resumed job has the same replicas and a new start
    time."""
    job = Job(PS=1, Worker=1)
    job.set(ps_0="Running", worker_0="Running")
    started = job.status["startTime"]
    job.edit(runPolicy={"suspend": True})
    assert "deletionTimestamp" in job.pod("worker-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("ps-0")["metadata"], "a chief that saves needs the servers"
    job.settle()
    job.settle()
    assert (job.phase, job.pods, job.services) == ("Suspended", [], [])
    job.world.tick(5)
    job.edit(runPolicy={"suspend": False})
    assert job.status["reason"] == "TFJobResumed"
    assert job.status["startTime"] != started
    job.set(ps_0="Running", worker_0="Running")
    assert job.phase == "Running"


def test_other_parameter_servers_are_a_new_cluster() -> None:
    """A change of the parameter servers ends the workers first and then the servers. All start again with the
    new TF_CONFIG."""
    job = Job(PS=1, Worker=1)
    job.set(ps_0="Running", worker_0="Running")
    job.edit(tfReplicaSpecs={"PS": {"replicas": 2}})
    assert job.phase == "Restarting"
    assert "deletionTimestamp" in job.pod("worker-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("ps-0")["metadata"]
    assert "ps-1" not in job.pods, "nobody of the new cluster before all of the old are gone"
    job.settle()
    job.settle()
    assert job.pods == ["ps-0", "ps-1", "worker-0"]
    assert job.config("worker-0")["cluster"]["ps"] == [f"mnist-ps-{i}.default.svc:2222" for i in range(2)]
    job.set(ps_0="Running", ps_1="Running", worker_0="Running")
    assert job.phase == "Running"


@pytest.mark.parametrize("edit", GOING)
@pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
def test_who_crashes_over_a_peer_that_was_told_to_end_costs_nothing(
    policy: str, edit: dict[str, Any]
) -> None:
    """Pods are deleted one after the other. A pod that fails because its peers are already gone does not
    count as a failure."""
    job = Job(policies={"backoffLimit": 0}, Worker=(3, policy))
    job.set(worker_0="Running", worker_1="Running", worker_2="Running")
    job.world.edit("TFJob", NAME, {"spec": edit})
    job.world.apply("TFJob", NAME, job.world.decide("TFJob", NAME), steps=1)
    job.world.reap()
    job.world.set_pod("mnist-worker-1", "Failed", 137 if policy == "ExitCode" else 1)
    restarted = {"name": "tensorflow", "restartCount": 1, "state": {"running": {}}}
    job.pod("worker-2")["status"]["containerStatuses"] = [restarted]
    for _ in range(3):
        job.settle()
    job.edit(runPolicy={"suspend": False})
    assert (job.phase in ("Created", "Restarting"), job.status.get("restarts", {})) == (True, {})


def test_pods_keep_their_cluster_where_users_depend_on_it() -> None:
    """With the compatibility option static-cluster, a change of replicas adds and removes pods, and restarts
    none."""
    job = Job(compat="static-cluster", PS=1, Worker=2)
    before = job.pod("worker-0")["metadata"]["uid"]
    job.edit(tfReplicaSpecs={"PS": {"replicas": 2}, "Worker": {"replicas": 1}})
    job.settle()
    assert job.pods == ["ps-0", "ps-1", "worker-0"]
    assert job.pod("worker-0")["metadata"]["uid"] == before
