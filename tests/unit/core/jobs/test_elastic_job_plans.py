"""An ElasticJob and its ScalePlans: edits of the spec become plans, and counters follow the pods."""

import pytest

from edl_workflows.core.jobs.actions import Refusal
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.elastic_jobs import MASTER, Make, condition, create_nodes, status


def test_edit_of_replicas_becomes_a_plan(running: JobsNamespace) -> None:
    """Scaling by spec is a manual plan named after the generation, with just what changed."""
    running.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}})
    running.settle()

    made = running.objects["ScalePlan", "digits-spec-2"]
    assert made["spec"] == {"ownerJob": "digits", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    assert made["metadata"]["labels"]["scale-type"] == "manual"
    assert status(running)["specReplicas"] == {"ps": 2, "worker": 3}


def test_edit_whose_plan_is_refused_is_not_lost(running: JobsNamespace) -> None:
    """If a quota rejects the plan of an edit, the edit is delayed, but not lost."""
    running.refuse["digits-spec-2"] = Refusal("ScalePlan", "digits-spec-2", False, "exceeded quota")
    running.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}})
    actions = running.decide("ElasticJob", "digits")
    running.apply("ElasticJob", "digits", actions)
    assert (status(running)["phase"], status(running)["reason"]) == ("Running", "CreateRefused")
    assert actions.requeue_after

    running.refuse.clear()
    running.settle()
    assert ("ScalePlan", "digits-spec-2") in running.objects
    assert status(running)["reason"] == "JobRunning"


WORKER = "digits-edljob-worker-0"


def ask_for_worker(world: JobsNamespace, plan: Make, number: int) -> None:
    """Add the master's plan for the only worker."""
    world.tick(1)
    node = {"name": WORKER, "type": "worker", "id": 0, "rankIndex": 0}
    world.add(plan(f"digits-scaleplan-{number}", auto=True, createPods=[node]))


def decide_once(world: JobsNamespace) -> None:
    """Decide about the job alone."""
    world.apply("ElasticJob", "digits", world.decide("ElasticJob", "digits"))


@pytest.fixture
def servers_run(running: JobsNamespace, plan: Make) -> JobsNamespace:
    """A namespace with a job that lacks nothing but its worker."""
    create_nodes(running, plan, "ps-0", "ps-1")
    return running


def refuse_worker(world: JobsNamespace, plan: Make) -> None:
    """Let the API server refuse a worker for good."""
    said = 'strict decoding error: unknown field "spec.containers[0].commnad"'
    world.refuse[WORKER] = Refusal("Pod", WORKER, True, said)
    ask_for_worker(world, plan, 1)
    world.settle()


@pytest.fixture
def worker_refused(world: JobsNamespace, job: Make, plan: Make) -> JobsNamespace:
    """A namespace with a job of two workers, of which the API server has refused one for good."""
    made = job()
    made["spec"]["replicaSpecs"]["worker"]["replicas"] = 2
    world.add(made)
    world.settle()
    world.set_pod("elasticjob-digits-dlrover-master-0", "Running")
    create_nodes(world, plan, "ps-0", "ps-1", "worker-1")
    refuse_worker(world, plan)
    return world


def test_a_role_whose_pods_can_never_be_made_ends_the_job(servers_run: JobsNamespace, plan: Make) -> None:
    """If the API server refuses the only worker for good, the job fails at once, with the path in the job's
    own template."""
    refuse_worker(servers_run, plan)

    assert (status(servers_run)["phase"], status(servers_run)["reason"]) == ("Failed", "PodRefused")
    assert "spec.replicaSpecs.worker.template.spec.containers[0].commnad" in status(servers_run)["message"]
    assert status(servers_run)["completionTime"]


def test_job_says_why_its_pod_can_never_be_made(worker_refused: JobsNamespace, plan: Make) -> None:
    """If the API server refuses a pod for good while others of its role run, its plan fails and the master
    asks again and again. The job's message has the server's words all the while, one Event has them, and they
    go when the pod is made."""
    for number in (2, 3):
        assert worker_refused.objects["ScalePlan", f"digits-scaleplan-{number - 1}"]["status"]["phase"] == (
            "Failed"
        )
        assert status(worker_refused)["phase"] == "Running"
        assert 'unknown field "spec.containers[0].commnad"' in status(worker_refused)["message"]
        ask_for_worker(worker_refused, plan, number)
        decide_once(worker_refused)
        assert "commnad" in status(worker_refused)["message"], "a new plan does not hide the last one's words"
        worker_refused.settle()
    told = [e for e in worker_refused.events if e.message == status(worker_refused)["message"]]
    of_plans = 3
    assert [(e.type, e.reason) for e in told] == [("Warning", "PodRefused")] * (of_plans + 1)

    worker_refused.refuse.clear()
    ask_for_worker(worker_refused, plan, 4)
    worker_refused.settle()
    assert worker_refused.pods("worker") == [WORKER, WORKER.replace("-0", "-1")]
    assert status(worker_refused)["message"] == ""

    del worker_refused.objects["Pod", WORKER]
    worker_refused.settle()
    assert status(worker_refused)["message"] == "", "a pod that was made and lost is not refused"


def test_job_with_a_refused_pod_can_be_suspended_corrected_and_resumed(
    worker_refused: JobsNamespace, plan: Make
) -> None:
    """The last worker goes with the suspension. That does not end the job: it is resumed with the corrected
    template, and what an earlier master could not make says nothing about it."""
    worker_refused.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    phases = []
    for _ in range(4):
        decide_once(worker_refused)
        phases.append(status(worker_refused)["phase"])
        worker_refused.reap()
        worker_refused.tick(1)
    assert phases == ["Running", "Running", "Suspended", "Suspended"]

    worker_refused.refuse.clear()
    worker_refused.edit("ElasticJob", "digits", {"spec": {"suspend": False}})
    worker_refused.settle()
    (master,) = worker_refused.pods("dlrover-master")
    worker_refused.set_pod(master, "Running")
    worker_refused.settle()
    assert (status(worker_refused)["phase"], status(worker_refused)["message"]) == ("Running", "")

    ask_for_worker(worker_refused, plan, 2)
    worker_refused.settle()
    assert worker_refused.pods("worker") == [WORKER]
    assert status(worker_refused)["phase"] == "Running"


def test_words_about_a_refused_pod_end_with_the_wish_for_it(worker_refused: JobsNamespace) -> None:
    """If a job is scaled down so that it needs the refused pod no longer, its message says nothing of it."""
    worker_refused.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {"worker": {"replicas": 0}}}})
    worker_refused.settle()
    worker_refused.edit("ScalePlan", "digits-spec-2", {"status": {"phase": "Succeeded"}})
    worker_refused.settle()

    assert status(worker_refused)["replicaStatuses"]["worker"]["desired"] == 0
    assert status(worker_refused)["message"] == ""


def test_job_names_the_foreign_pod_in_the_place_of_its_own(servers_run: JobsNamespace, plan: Make) -> None:
    """If somebody else's pod has the name of a node, the job's message and an Event name that pod."""
    servers_run.add({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": WORKER}, "spec": {}})
    ask_for_worker(servers_run, plan, 1)
    servers_run.settle()

    assert f"Pod default/{WORKER} exists" in status(servers_run)["message"]
    told = [e.reason for e in servers_run.events if e.message == status(servers_run)["message"]]
    assert told == ["NameConflict", "NameConflict"], "one of the plan, one of the job"


def test_edit_behind_a_plan_of_an_earlier_job_is_not_lost(running: JobsNamespace, plan: Make) -> None:
    """A plan of an earlier job of the same name, which the garbage collector is about to delete, delays the
    plan for an edit but does not replace it."""
    old = plan("digits-spec-2", replicaResourceSpecs={"worker": {"replicas": 9}})
    earlier = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "name": "digits",
        "uid": "x",
    }
    old["metadata"]["ownerReferences"] = [earlier]
    running.add(old)
    running.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}})
    actions = running.decide("ElasticJob", "digits")
    running.apply("ElasticJob", "digits", actions)
    assert actions.requeue_after
    assert status(running)["specReplicas"] == {"ps": 2, "worker": 1}

    del running.objects["ScalePlan", "digits-spec-2"]
    running.settle()
    assert running.objects["ScalePlan", "digits-spec-2"]["spec"]["replicaResourceSpecs"]["worker"] == {
        "replicas": 3
    }
    assert status(running)["specReplicas"] == {"ps": 2, "worker": 3}


def test_manual_plan_in_progress_is_scaling(running: JobsNamespace, plan: Make) -> None:
    """While the master carries out a plan, the job is Scaling and still Running. Afterwards the plan's counts
    are the desired ones."""
    running.add(plan("grow", replicaResourceSpecs={"worker": {"replicas": 4}}))
    running.settle()
    assert status(running)["phase"] == "Running"

    running.edit("ScalePlan", "grow", {"status": {"phase": "Scaling"}})
    running.settle()
    assert (status(running)["phase"], status(running)["scalePlan"]) == ("Scaling", "grow")
    assert condition(running, "Running") == "True"

    running.edit("ScalePlan", "grow", {"status": {"phase": "Succeeded"}})
    running.settle()
    assert (status(running)["phase"], status(running)["scalePlan"]) == ("Running", "")
    assert condition(running, "Scaling") == "False"
    assert status(running)["replicaStatuses"]["worker"]["desired"] == 4


def test_failed_plan_changes_no_desired_count(running: JobsNamespace, plan: Make) -> None:
    """A plan that was rolled back does not change the desired counts."""
    running.add(plan("grow", replicaResourceSpecs={"worker": {"replicas": 4}}))
    running.edit("ScalePlan", "grow", {"status": {"phase": "Failed"}})
    running.settle()

    assert status(running)["replicaStatuses"]["worker"]["desired"] == 1


def test_newest_finished_plans_are_kept(running: JobsNamespace, plan: Make) -> None:
    """The ten newest finished plans of each type are kept. The many plans of a master do not remove plans of
    users."""
    running.add(plan("by-hand") | {"status": {"phase": "Succeeded"}})
    for number in range(14):
        running.add(plan(f"digits-scaleplan-{number}", auto=True))
        running.settle()

    left = [name for kind, name in running.objects if kind == "ScalePlan"]
    assert left == ["by-hand"] + [f"digits-scaleplan-{number}" for number in range(4, 14)]


def test_counters_are_those_of_the_pods(running: JobsNamespace, plan: Make) -> None:
    """Each role's counters follow its pods. Pods that are being deleted are not counted."""
    create_nodes(running, plan, "ps-0", "worker-0", "worker-1")
    running.set_pod("digits-edljob-worker-1", "Failed", 2)
    running.delete("Pod", "digits-edljob-ps-0")
    running.settle()

    counters = status(running)["replicaStatuses"]
    assert counters["ps"] | {"labelSelector": ""} == {
        "desired": 2, "initial": 2, "pending": 0, "active": 0, "ready": 0, "succeeded": 0, "failed": 0,
        "labelSelector": "",
    }  # fmt: skip
    assert (counters["worker"]["active"], counters["worker"]["ready"], counters["worker"]["failed"]) == (
        1,
        1,
        1,
    )
    assert counters["worker"]["labelSelector"] == (
        "elasticjob.dlrover/name=digits,elasticjob.dlrover/replica-type=worker"
    )


@pytest.mark.parametrize(("limit", "kept"), [(None, 5), (2, 2), (0, 0)], ids=["by default", "two", "none"])
def test_of_replaced_pods_the_newest_stay(
    world: JobsNamespace, job: Make, plan: Make, limit: int | None, kept: int
) -> None:
    """While the job runs, the newest replaced pods of each role are kept. A failed pod without a replacement
    is always kept, since the master may not know yet how it ended."""
    manifest = job()
    if limit is not None:
        manifest["spec"]["faultTolerance"] = {"replacedPodsHistoryLimit": limit}
    world.add(manifest)
    world.settle()
    world.set_pod(MASTER, "Running")
    metas = [
        {
            "name": f"digits-edljob-{kind}-{number}",
            "type": kind,
            "id": number,
            "rankIndex": 0 if number else 1,
        }
        for kind, count in (("worker", 9), ("ps", 2))
        for number in range(count)
    ]
    world.add(plan("all", auto=True, createPods=metas))
    world.settle()
    for meta in metas:
        world.set_pod(str(meta["name"]), "Running" if meta["id"] == 8 else "Failed", 137)
    world.settle()

    newest = [f"digits-edljob-worker-{number}" for number in range(8 - kept, 8)]
    assert world.pods("worker") == ["digits-edljob-worker-0", *newest, "digits-edljob-worker-8"]
    assert world.pods("ps") == ["digits-edljob-ps-0", "digits-edljob-ps-1"]
    world.set_pod(MASTER, "Succeeded", 0)
    world.settle()
    assert "digits-edljob-worker-0" in world.pods("worker")
