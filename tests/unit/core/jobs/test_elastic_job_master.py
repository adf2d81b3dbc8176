"""An ElasticJob's master: the job's phase follows it, and it is replaced when it fails."""

import pytest

from edl_workflows.core.jobs.actions import Refusal
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.elastic_jobs import MASTER, SECOND, Make, condition, status


@pytest.mark.parametrize(
    ("pod_phase", "exit_code", "reason", "phase", "why"),
    [
        pytest.param("Pending", None, "", "Pending", "JobPending", id="master waits for a node"),
        pytest.param("Running", None, "", "Running", "JobRunning", id="master runs"),
        pytest.param("Succeeded", 0, "", "Succeeded", "JobSucceeded", id="master succeeded"),
        pytest.param("Failed", 1, "", "Failed", "MasterFailed", id="fatal exit code"),
    ],
)
def test_phase_follows_the_master(
    world: JobsNamespace, job: Make, pod_phase: str, exit_code: int | None, reason: str, phase: str, why: str
) -> None:
    """The phase of the first master's pod determines the phase of the job."""
    world.add(job())
    world.settle()
    world.set_pod(MASTER, pod_phase, exit_code, reason)
    world.settle()

    assert (status(world)["phase"], status(world)["reason"]) == (phase, why)
    assert condition(world, phase) == "True"
    assert condition(world, "Created") == "True"


def test_a_failed_masters_log_is_read_with_edl(world: JobsNamespace, job: Make) -> None:
    """The message of a job whose master has failed has the command of `edl` that prints the master's log."""
    world.add(job())
    world.settle()
    world.set_pod(MASTER, "Failed", 1, "")
    world.settle()

    assert "`edl logs digits dlrover-master-0 --namespace default`" in status(world)["message"]


@pytest.mark.parametrize(
    ("exit_code", "reason", "restarts"),
    [
        pytest.param(2, "", 1, id="a failure counts"),
        pytest.param(137, "", 1, id="a killed master counts"),
        pytest.param(None, "Evicted", 0, id="an eviction does not"),
        pytest.param(None, "", 0, id="nor a pod that never ran"),
    ],
)
def test_failed_master_is_replaced(
    running: JobsNamespace, exit_code: int | None, reason: str, restarts: int
) -> None:
    """A failed master is replaced. Only its own failures count as restarts, not disruptions."""
    running.set_pod(MASTER, "Failed", exit_code, reason)
    running.settle()

    assert status(running)["phase"] == "Restarting"
    assert SECOND in running.pods("dlrover-master")
    assert status(running)["masterRestarts"] == restarts
    assert condition(running, "Running") == "False"

    running.set_pod(SECOND, "Running")
    running.settle()
    assert status(running)["phase"] == "Running"
    assert condition(running, "Restarting") == "False"


def test_deleted_master_is_replaced_once_it_is_gone(running: JobsNamespace) -> None:
    """While a deleted master ends, no other is made, and the deletion of a master uses no restart."""
    running.delete("Pod", MASTER)
    running.settle()
    assert running.pods("dlrover-master") == []
    assert status(running)["phase"] == "Restarting"

    running.reap()
    running.settle()
    assert running.pods("dlrover-master") == [MASTER]
    assert status(running)["masterRestarts"] == 0


def test_restarts_survive_the_loss_of_all_pods(running: JobsNamespace) -> None:
    """The number of used restarts is in the status, so that it survives the loss of all pods."""
    running.set_pod(MASTER, "Failed", 2)
    running.settle()
    for name in (MASTER, SECOND):
        running.objects.pop(("Pod", name))
    running.settle()

    assert status(running)["masterRestarts"] == 1
    assert running.pods("dlrover-master") == [SECOND]


def test_budget_of_restarts_ends_the_job(world: JobsNamespace, job: Make) -> None:
    """A master that fails more often than restartCount allows fails the job. The restarts in between are
    delayed more and more."""
    manifest = job()
    manifest["spec"]["replicaSpecs"]["dlrover-master"] = {"restartCount": 2}
    world.add(manifest)
    world.settle()
    for index, wait in enumerate((0, 10, 0)):
        name = f"elasticjob-digits-dlrover-master-{index}"
        world.set_pod(name, "Running")
        world.settle()
        world.set_pod(name, "Failed", 3)
        world.settle()
        if wait:
            requeue = world.decide("ElasticJob", "digits").requeue_after
            assert requeue == wait
        world.tick(wait)
        world.settle()

    assert (status(world)["phase"], status(world)["reason"]) == ("Failed", "MasterRestartsExhausted")
    assert status(world)["masterRestarts"] == 2
    assert "exit code 3 after 2 restarts" in status(world)["message"]


def test_failure_of_the_master_is_the_jobs(running: JobsNamespace) -> None:
    """The failure that the master wrote to the status becomes the job's reason and message."""
    failure = {"reason": "ShardRetriesExhausted", "message": "shard 7 of 'train' failed 4 times"}
    running.edit("ElasticJob", "digits", {"status": {"failure": failure}})
    running.set_pod(MASTER, "Failed", 1)
    running.settle()

    assert status(running)["phase"] == "Failed"
    assert status(running)["reason"] == failure["reason"]
    assert status(running)["message"] == failure["message"]
    assert status(running)["failure"] == failure


def test_refused_master_is_reported_and_tried_again(world: JobsNamespace, job: Make) -> None:
    """If a quota or a webhook rejects the master's pod, the status has the server's message, and the creation
    is tried again."""
    world.refuse[MASTER] = Refusal("Pod", MASTER, False, "exceeded quota: pods=0")
    world.add(job())
    world.reconcile()
    actions = world.decide("ElasticJob", "digits")
    world.apply("ElasticJob", "digits", actions)

    assert status(world)["reason"] == "CreateRefused"
    assert "Pod elasticjob-digits-dlrover-master-0: exceeded quota" in status(world)["message"]
    assert actions.requeue_after

    world.refuse.clear()
    world.settle()
    assert world.pods("dlrover-master") == [MASTER]


def test_master_is_not_made_without_what_it_needs(world: JobsNamespace, job: Make) -> None:
    """If the master's Secret is refused, the master's pod is not created until the Secret exists, and the job
    says so."""
    world.refuse["digits-edljob-token"] = Refusal("Secret", "digits-edljob-token", False, "quota")
    world.add(job())
    world.reconcile()
    assert world.pods("dlrover-master") == []
    assert (status(world)["phase"], status(world)["reason"]) == ("Created", "CreateRefused")

    world.refuse.clear()
    world.settle()
    assert world.pods("dlrover-master") == [MASTER]


def test_a_master_that_no_node_can_run_ends_the_job_and_says_why(world: JobsNamespace, job: Make) -> None:
    """A pod that its node rejects for good ends the job, since no other node could run it, and the job's
    message has the node's reason."""
    world.add(job())
    world.settle()
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
    world.edit("Pod", "elasticjob-digits-dlrover-master-0", {"status": refused})
    world.settle()
    assert (status(world)["phase"], status(world)["reason"]) == ("Failed", "MasterFailed")
    assert f"the master could not run: {said}" in status(world)["message"]


@pytest.mark.parametrize(
    "reason",
    ["OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "TopologyAffinityError", "InvalidNodeInfo"],
)
def test_a_master_that_another_node_can_run_costs_nothing(
    world: JobsNamespace, job: Make, reason: str
) -> None:
    """If a node turns out to be full or different from what the scheduler knew, the rejected pod uses no
    restart."""
    world.add(job())
    world.settle()
    for index in range(6):
        refused = {"phase": "Failed", "reason": reason, "message": "Node didn't have enough resource"}
        world.edit("Pod", f"elasticjob-digits-dlrover-master-{index}", {"status": refused})
        world.settle()
        world.tick(600)
        world.settle()

    assert world.pods("dlrover-master")[-1] == "elasticjob-digits-dlrover-master-6"
    assert status(world)["masterRestarts"] == 0


def test_master_on_a_lost_machine_is_replaced_at_once(running: JobsNamespace) -> None:
    """A master that Kubernetes took from an unreachable node has a successor with another name in the same
    decision. Its own pod is deleted by force, so that no agent asks it, and no restart is used."""
    since = running.now.isoformat()
    running.objects["Pod", MASTER]["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": since},
        {"type": "ContainersReady", "status": "True"},
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
    ]
    running.delete("Pod", MASTER)
    running.settle()
    assert running.pods("dlrover-master") == [SECOND]
    assert ("Pod", MASTER) not in running.objects
    assert status(running)["masterRestarts"] == 0


def test_master_on_an_unreachable_node_is_replaced_before_kubernetes_deletes_it(
    running: JobsNamespace,
) -> None:
    """The installation sets how long a node may be unreachable. A Ready condition that the kubelet itself has
    made False does not count."""
    since = running.now.isoformat()
    conditions = [
        {"type": "Ready", "status": "False", "lastTransitionTime": since},
        {"type": "ContainersReady", "status": "False"},
    ]
    running.objects["Pod", MASTER]["status"]["conditions"] = conditions
    running.tick(3600)
    running.settle()
    assert running.pods("dlrover-master") == [MASTER]

    conditions[0]["lastTransitionTime"] = running.now.isoformat()
    conditions[1]["status"] = "True"
    assert running.wake("ElasticJob", "digits") == running.settings.unreachable_seconds == 60
    assert running.pods("dlrover-master") == [SECOND]
    assert ("Pod", MASTER) not in running.objects


def test_suspension_does_not_wait_for_a_lost_machine(running: JobsNamespace) -> None:
    """A job whose pod is on a lost machine can be suspended."""
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    running.settle()
    assert status(running)["phase"] != "Suspended"
    running.wake("ElasticJob", "digits")
    assert status(running)["phase"] == "Suspended"
