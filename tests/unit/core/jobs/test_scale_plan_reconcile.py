"""Auto plans are carried out in order; manual plans are tied to their job or failed with a reason."""

from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Refusal
from tests.jobs_namespace import JobsNamespace

MASTER = "elasticjob-digits-dlrover-master-0"
Make = Callable[..., dict[str, Any]]


def meta(node: str, **more: Any) -> dict[str, Any]:
    kind, _, number = node.rpartition("-")
    return {"name": f"digits-edljob-{node}", "type": kind, "id": int(number), "rankIndex": int(number)} | more


def status(world: JobsNamespace, name: str) -> dict[str, Any]:
    found: dict[str, Any] = world.objects["ScalePlan", name].get("status", {})
    return found


def test_auto_plan_makes_a_pod_a_node(running: JobsNamespace, plan: Make) -> None:
    """Each entry of createPods becomes a pod with the plan's resources, and the plan records the time."""
    running.add(plan("p", auto=True, createPods=[meta("ps-0", resource={"cpu": "2"}), meta("worker-0")]))
    running.settle()

    assert running.pods("ps") == ["digits-edljob-ps-0"]
    assert running.pods("worker") == ["digits-edljob-worker-0"]
    worker = running.objects["Pod", "digits-edljob-worker-0"]["spec"]
    assert (worker["hostname"], worker["subdomain"]) == ("digits-edljob-worker-0", "digits-edljob")
    resources = running.objects["Pod", "digits-edljob-ps-0"]["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert status(running, "p")["phase"] == "Succeeded"
    assert status(running, "p")["finishTime"]
    assert [step["phase"] for step in status(running, "p")["steps"]] == ["Scaling"]
    assert status(running, "p")["steps"][0]["finishTime"]


def test_a_size_with_any_resource_reaches_the_pod(running: JobsNamespace, plan: Make) -> None:
    """Extended resources are set as requests and limits under the names that the cluster knows. A memory of
    zero sets none."""
    size = {"memory": "0", "nvidia.com/gpu": "1", "example.com/fpga": "2"}
    running.add(plan("p", auto=True, createPods=[meta("worker-0", resource=size)]))
    running.settle()

    resources = running.objects["Pod", "digits-edljob-worker-0"]["spec"]["containers"][0]["resources"]
    wanted = {"nvidia.com/gpu": "1", "example.com/fpga": "2"}
    assert resources == {"requests": wanted, "limits": wanted}


def test_auto_plan_removes_pods(running: JobsNamespace, plan: Make) -> None:
    """The pods in removePods are deleted. One that does not exist is no failure."""
    running.add(plan("p-1", auto=True, createPods=[meta("worker-0"), meta("worker-1")]))
    running.settle()
    running.add(plan("p-2", auto=True, removePods=[meta("worker-1"), meta("worker-7")]))
    running.settle()

    assert running.pods("worker") == ["digits-edljob-worker-0"]
    assert status(running, "p-2")["phase"] == "Succeeded"


def test_repeated_auto_plan_adopts(running: JobsNamespace, plan: Make) -> None:
    """If a master dies and creates the same plan again, the existing pods are adopted."""
    running.add(plan("p-1", auto=True, createPods=[meta("worker-0")]))
    running.settle()
    uid = running.objects["Pod", "digits-edljob-worker-0"]["metadata"]["uid"]
    running.add(plan("p-2", auto=True, createPods=[meta("worker-0")]))
    running.settle()

    assert running.objects["Pod", "digits-edljob-worker-0"]["metadata"]["uid"] == uid
    assert status(running, "p-2")["phase"] == "Succeeded"


def test_auto_plans_run_in_order_of_age_then_number(running: JobsNamespace, plan: Make) -> None:
    """Plans of the same second are carried out in the order of the numbers in their names, 9 before 10."""
    running.add(plan("p-10", auto=True, removePods=[meta("worker-0")]))
    running.add(plan("p-9", auto=True, createPods=[meta("worker-0")]))

    assert running.decide("ScalePlan", "p-10").status is None
    running.settle()
    assert running.pods("worker") == []
    assert status(running, "p-10")["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"createPods": [{"name": "other", "type": "worker", "id": 3}]},
            "spec.createPods.0.name: 'other' must be 'digits-edljob-worker-3' for this type and id",
            id="name of a node",
        ),
        pytest.param(
            {"createPods": [{"name": "digits-edljob-worker-3"}]},
            "spec.createPods.0.type: required field is missing",
            id="type of a node",
        ),
        pytest.param(
            {"createPods": [meta("evaluator-0")]},
            "spec.createPods.0.type: ElasticJob default/digits has no role 'evaluator'; it has ps, worker",
            id="role of a node",
        ),
        pytest.param(
            {"removePods": [{"name": "digits-worker-0"}]},
            "spec.removePods.0.name: 'digits-worker-0' is no pod of the job; "
            "they are called digits-edljob-<type>-<id>",
            id="name of a pod",
        ),
    ],
)
def test_invalid_auto_plan_fails_and_makes_nothing(
    running: JobsNamespace, plan: Make, spec: dict[str, Any], message: str
) -> None:
    """An auto plan that does not fit its job fails with the field, and no pod is created."""
    before = set(running.objects)
    running.add(plan("p", auto=True, **spec))
    running.settle()

    assert (status(running, "p")["phase"], status(running, "p")["reason"]) == ("Failed", "InvalidPlan")
    assert status(running, "p")["message"] == message
    assert set(running.objects) == before | {("ScalePlan", "p")}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"replicaResourceSpecs": {"evaluator": {"replicas": 1}}},
            "spec.replicaResourceSpecs.evaluator: ElasticJob default/digits has no role 'evaluator'; "
            "it has ps, worker",
            id="unknown role",
        ),
        pytest.param(
            {"migratePods": [{"name": "digits-edljob-ps-5"}]},
            "spec.migratePods.0.name: the job has no pod 'digits-edljob-ps-5'; it has digits-edljob-ps-0",
            id="no such pod",
        ),
    ],
)
def test_invalid_manual_plan_fails(
    running: JobsNamespace, plan: Make, spec: dict[str, Any], message: str
) -> None:
    """A manual plan that does not fit its running job fails before the master sees it."""
    running.add(plan("p-0", auto=True, createPods=[meta("ps-0")]))
    running.settle()
    running.add(plan("p", **spec))
    running.settle()

    assert (status(running, "p")["phase"], status(running, "p")["reason"]) == ("Failed", "InvalidPlan")
    assert status(running, "p")["message"] == message


def test_manual_plan_is_the_masters(running: JobsNamespace, plan: Make) -> None:
    """A valid manual plan gets its owner and the labels by which the master selects it, and no status."""
    manifest = plan("grow", replicaResourceSpecs={"worker": {"replicas": 2}})
    manifest["metadata"]["labels"] = {"team": "ads"}
    running.add(manifest)
    running.settle()

    metadata = running.objects["ScalePlan", "grow"]["metadata"]
    assert metadata["labels"] == {"team": "ads", "elasticjob.dlrover/name": "digits", "scale-type": "manual"}
    job = running.objects["ElasticJob", "digits"]["metadata"]
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "name": "digits",
            "uid": job["uid"],
        }
    ]
    assert status(running, "grow") == {}


def test_begun_plan_is_not_judged_again(running: JobsNamespace, plan: Make) -> None:
    """A migration removes the pod that it names. A plan that was valid when it began is not checked again."""
    running.add(plan("p", migratePods=[{"name": "digits-edljob-ps-0"}]) | {"status": {"phase": "Verifying"}})
    running.settle()

    assert status(running, "p")["phase"] == "Verifying"


@pytest.mark.parametrize("auto", [True, False], ids=["auto", "manual"])
def test_plan_for_a_missing_job_fails_after_a_grace(world: JobsNamespace, plan: Make, auto: bool) -> None:
    """The job may be created by the same `kubectl apply`. If it does not exist after 30 s, the plan fails and
    names it."""
    world.add(plan("p", auto=auto, replicaResourceSpecs={"worker": {"replicas": 2}}))
    world.settle()
    assert status(world, "p") == {}
    assert world.decide("ScalePlan", "p").requeue_after == 30

    world.tick(31)
    world.settle()
    assert (status(world, "p")["phase"], status(world, "p")["reason"]) == ("Failed", "JobNotFound")
    assert "ElasticJob default/digits" in status(world, "p")["message"]


@pytest.mark.parametrize("auto", [True, False], ids=["auto", "manual"])
def test_plan_for_a_finished_job_fails(running: JobsNamespace, plan: Make, auto: bool) -> None:
    """A plan for a job that has ended fails with the reason JobFinished."""
    running.set_pod(MASTER, "Succeeded", 0)
    running.settle()
    running.add(plan("p", auto=auto))
    running.settle()

    assert (status(running, "p")["phase"], status(running, "p")["reason"]) == ("Failed", "JobFinished")
    assert "has ended (Succeeded)" in status(running, "p")["message"]


def test_plan_for_a_failed_job_says_why_the_job_failed(running: JobsNamespace, plan: Make) -> None:
    """The message of a plan that comes too late has the job's reason and message, so that a pipeline's task
    shows the cause."""
    said = "worker-0 ended: exit code 1: ValueError: bad batch"
    running.edit(
        "ElasticJob", "digits", {"status": {"phase": "Failed", "reason": "WorkerFailed", "message": said}}
    )
    running.add(plan("p"))
    running.settle()

    assert (status(running, "p")["phase"], status(running, "p")["reason"]) == ("Failed", "JobFailed")
    assert f"has ended (Failed: WorkerFailed: {said});" in status(running, "p")["message"]


def test_auto_plan_for_a_suspended_job_makes_no_pods(running: JobsNamespace, plan: Make) -> None:
    """A plan that a master left behind creates no pods for a suspended job."""
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    running.add(plan("p", auto=True, createPods=[meta("worker-0")]))
    running.settle()

    assert status(running, "p")["reason"] == "JobSuspended"
    assert running.pods("worker") == []


def test_foreign_pod_fails_an_auto_plan(running: JobsNamespace, plan: Make) -> None:
    """If somebody else's pod has the name of a node, the plan's reason is NameConflict, and its message names
    the pod."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "digits-edljob-worker-0"}, "spec": {}}
    running.add(pod)
    running.add(plan("p", auto=True, createPods=[meta("worker-0")]))
    running.settle()

    assert status(running, "p")["reason"] == "NameConflict"
    assert "Pod default/digits-edljob-worker-0 exists" in status(running, "p")["message"]


@pytest.mark.parametrize(
    ("invalid", "phase"), [pytest.param(True, "Failed", id="422"), pytest.param(False, "Scaling", id="quota")]
)
def test_refused_pod(running: JobsNamespace, plan: Make, invalid: bool, phase: str) -> None:
    """If the API server rejects a pod as invalid, the plan fails. If a quota rejects it, the creation is
    tried again."""
    name = "digits-edljob-worker-0"
    running.refuse[name] = Refusal("Pod", name, invalid, "spec.containers[0].image: no")
    running.add(plan("p", auto=True, createPods=[meta("worker-0")]))
    actions = running.decide("ScalePlan", "p")
    running.apply("ScalePlan", "p", actions)

    assert (status(running, "p")["phase"], status(running, "p")["reason"]) == (phase, "PodRefused")
    assert f"{name}: spec.containers[0].image: no" in status(running, "p")["message"]
    if not invalid:
        assert actions.requeue_after
        running.refuse.clear()
        running.settle()
        assert status(running, "p")["phase"] == "Succeeded"
        assert running.pods("worker") == [name]


def test_a_refused_plan_keeps_only_plans_about_its_own_pods_waiting(
    running: JobsNamespace, plan: Make
) -> None:
    """If a quota refuses a pod, plans about other pods continue; one that removes pods may make room."""
    running.add(plan("p-1", auto=True, createPods=[meta("worker-0"), meta("worker-1")]))
    running.settle()
    running.refuse["digits-edljob-worker-2"] = Refusal(
        "Pod", "digits-edljob-worker-2", False, "exceeded quota"
    )
    running.add(plan("p-2", auto=True, createPods=[meta("worker-2")]))
    running.apply("ScalePlan", "p-2", running.decide("ScalePlan", "p-2"))
    running.tick(1)
    running.add(plan("p-3", auto=True, removePods=[meta("worker-1")]))
    running.add(plan("p-4", auto=True, removePods=[meta("worker-2")]))
    for name in ("p-3", "p-4"):
        running.apply("ScalePlan", name, running.decide("ScalePlan", name))

    assert status(running, "p-2")["reason"] == "PodRefused"
    running.apply("ElasticJob", "digits", running.decide("ElasticJob", "digits"))
    job = running.objects["ElasticJob", "digits"]["status"]
    assert (job["phase"], "exceeded quota" in job["message"]) == ("Running", True), (
        "the job says why it waits"
    )
    assert status(running, "p-3")["phase"] == "Succeeded"
    assert running.pods("worker") == ["digits-edljob-worker-0"]
    assert status(running, "p-4") == {}, "the pod that it removes is not there yet"
    running.refuse.clear()
    running.settle()
    assert status(running, "p-4")["phase"] == "Succeeded"


def test_plan_of_an_earlier_job_is_left_to_the_collector(running: JobsNamespace, plan: Make) -> None:
    """A plan that is tied to a deleted job is never applied to a later job of the same name."""
    manifest = plan("p", auto=True, createPods=[meta("worker-0")])
    owner = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "name": "digits",
        "uid": "gone",
    }
    manifest["metadata"]["ownerReferences"] = [owner]
    running.add(manifest)
    running.settle()

    assert status(running, "p") == {}
    assert running.pods("worker") == []
