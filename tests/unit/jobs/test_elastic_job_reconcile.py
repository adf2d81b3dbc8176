"""The phases of an ElasticJob, its master, suspend and resume, conflicts."""

from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.jobs.actions import Refusal
from edl_workflows.jobs.elastic_job.model import ElasticJobStatus
from edl_workflows.jobs.elastic_job.status import status_delay
from edl_workflows.jobs.testing import JobsNamespace

MASTER = "elasticjob-digits-dlrover-master-0"
SECOND = "elasticjob-digits-dlrover-master-1"
Make = Callable[..., dict[str, Any]]


def status(world: JobsNamespace) -> dict[str, Any]:
    found: dict[str, Any] = world.objects["ElasticJob", "digits"]["status"]
    return found


def condition(world: JobsNamespace, kind: str) -> str:
    found = [c["status"] for c in status(world)["conditions"] if c["type"] == kind]
    return found[0] if found else "absent"


def create_nodes(world: JobsNamespace, plan: Make, *names: str) -> None:
    """Let an auto plan make these nodes, and let them run."""
    metas = []
    for name in names:
        kind, _, number = name.rpartition("-")
        metas.append(
            {"name": f"digits-edljob-{name}", "type": kind, "id": int(number), "rankIndex": int(number)}
        )
    world.add(plan(f"digits-scaleplan-{len(world.objects)}", auto=True, createPods=metas))
    world.settle()
    for name in names:
        world.set_pod(f"digits-edljob-{name}", "Running")
    world.settle()


def test_first_reconcile_makes_everything_a_master_needs(world: JobsNamespace, job: Make) -> None:
    """A new job gets its token, rights, services and behind them its master, all owned by it, in one
    decision.
    """
    world.add(job())
    kinds = [manifest["kind"] for manifest in world.decide("ElasticJob", "digits").create]
    assert kinds.index("Pod") == len(kinds) - 1
    world.reconcile()

    made = {key for key in world.objects if key[0] != "ElasticJob"}
    assert made == {
        ("Secret", "digits-edljob-token"),
        ("ConfigMap", "digits-edljob-state"),
        ("ServiceAccount", "digits-edljob-master"),
        ("Role", "digits-edljob-master"),
        ("RoleBinding", "digits-edljob-master"),
        ("Service", "elasticjob-digits-dlrover-master"),
        ("Service", "digits-edljob"),
        ("Pod", MASTER),
    }
    uid = world.objects["ElasticJob", "digits"]["metadata"]["uid"]
    assert all(world.objects[key]["metadata"]["ownerReferences"][0]["uid"] == uid for key in made)
    assert status(world)["phase"] == "Pending"
    assert condition(world, "Created") == "True"
    assert status(world)["observedGeneration"] == 1
    assert status(world)["startTime"]


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
    """After an accident there is a second master, and only failures of its own use up the budget."""
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
    """Two masters never run at once, and a deletion costs nothing of the budget."""
    running.delete("Pod", MASTER)
    running.settle()
    assert running.pods("dlrover-master") == []
    assert status(running)["phase"] == "Restarting"

    running.reap()
    running.settle()
    assert running.pods("dlrover-master") == [MASTER]
    assert status(running)["masterRestarts"] == 0


def test_restarts_survive_the_loss_of_all_pods(running: JobsNamespace) -> None:
    """The status remembers how much of the budget is used when no pod does."""
    running.set_pod(MASTER, "Failed", 2)
    running.settle()
    for name in (MASTER, SECOND):
        running.objects.pop(("Pod", name))
    running.settle()

    assert status(running)["masterRestarts"] == 1
    assert running.pods("dlrover-master") == [SECOND]


def test_budget_of_restarts_ends_the_job(world: JobsNamespace, job: Make) -> None:
    """A master that fails more often than restartCount allows fails the job, after growing waits."""
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
    """What the master wrote as its failure becomes the job's reason and message."""
    failure = {"reason": "ShardRetriesExhausted", "message": "shard 7 of 'train' failed 4 times"}
    running.edit("ElasticJob", "digits", {"status": {"failure": failure}})
    running.set_pod(MASTER, "Failed", 1)
    running.settle()

    assert status(running)["phase"] == "Failed"
    assert status(running)["reason"] == failure["reason"]
    assert status(running)["message"] == failure["message"]
    assert status(running)["failure"] == failure


def test_end_removes_what_runs_and_keeps_what_ended(running: JobsNamespace, plan: Make) -> None:
    """A finished job keeps finished pods for their logs, and nothing that runs."""
    create_nodes(running, plan, "ps-0", "worker-0", "worker-1")
    running.set_pod("digits-edljob-worker-0", "Succeeded", 0)
    running.set_pod(MASTER, "Succeeded", 0)
    running.settle()
    running.reap()
    running.settle()

    assert status(running)["phase"] == "Succeeded"
    assert status(running)["completionTime"]
    assert running.pods("ps") == []
    assert running.pods("worker") == ["digits-edljob-worker-0"]
    assert running.pods("dlrover-master") == [MASTER]
    assert not [key for key in running.objects if key[0] == "Service"]
    assert status(running)["replicaStatuses"]["worker"]["succeeded"] == 1
    assert condition(running, "Running") == "False"


def test_final_phase_is_final(running: JobsNamespace) -> None:
    """Nothing that happens later changes how a job ended."""
    running.set_pod(MASTER, "Succeeded", 0)
    running.settle()
    before = dict(status(running))
    running.set_pod(MASTER, "Failed", 1)
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    running.settle()

    assert status(running) | {"observedGeneration": 1} == before | {
        "observedGeneration": 1,
        "replicaStatuses": status(running)["replicaStatuses"],
    }


def test_suspend_stops_workers_before_the_others(running: JobsNamespace, plan: Make) -> None:
    """Workers end first, then parameter servers and master; Suspended is said when all are gone."""
    create_nodes(running, plan, "ps-0", "worker-0")
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    running.settle()
    assert (running.pods("worker"), running.pods("ps")) == ([], ["digits-edljob-ps-0"])
    assert (status(running)["phase"], status(running)["reason"]) == ("Running", "Suspending")

    running.reap()
    running.settle()
    assert (running.pods("ps"), running.pods("dlrover-master")) == ([], [])
    assert status(running)["phase"] == "Running"

    running.reap()
    running.settle()
    assert status(running)["phase"] == "Suspended"


def test_resume_makes_a_master(running: JobsNamespace) -> None:
    """A resumed job is Pending until its new master runs, and no longer Suspended."""
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    running.settle()
    running.reap()
    running.settle()
    assert status(running)["phase"] == "Suspended"
    assert ("ConfigMap", "digits-edljob-state") in running.objects

    running.edit("ElasticJob", "digits", {"spec": {"suspend": False}})
    running.settle()
    assert status(running)["phase"] == "Pending"
    running.set_pod(MASTER, "Running")
    running.settle()
    assert status(running)["phase"] == "Running"
    assert condition(running, "Suspended") == "False"


def test_job_born_suspended_has_no_pods(world: JobsNamespace, job: Make) -> None:
    """A job that is suspended from the start makes nothing (upstream makes a master)."""
    world.add(job(suspend=True))
    world.settle()

    assert status(world)["phase"] == "Suspended"
    assert [key for key in world.objects if key[0] == "Pod"] == []


def test_foreign_object_is_a_conflict_until_it_is_gone(world: JobsNamespace, job: Make) -> None:
    """An object of somebody else in the way is named, left alone, and waited for."""
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "digits-edljob-token"},
        "data": {"a": "b"},
    }
    world.add(foreign)
    world.add(job())
    world.settle()

    assert (status(world)["phase"], status(world)["reason"]) == ("Pending", "NameConflict")
    assert (
        "Secret default/digits-edljob-token exists and belongs to no controller" in status(world)["message"]
    )
    assert "delete or rename" in status(world)["message"]
    assert world.objects["Secret", "digits-edljob-token"]["data"] == {"a": "b"}
    assert world.pods("dlrover-master") == []
    assert world.decide("ElasticJob", "digits").requeue_after

    world.delete("Secret", "digits-edljob-token")
    world.settle()
    assert world.pods("dlrover-master") == [MASTER]
    assert status(world)["reason"] == "JobPending"


def test_objects_of_an_earlier_job_are_waited_for(running: JobsNamespace, job: Make) -> None:
    """A job made again under its name waits until the garbage collector has removed the old one's objects."""
    old = running.objects.pop(("ElasticJob", "digits"))
    running.add(job())
    running.settle()
    assert old["metadata"]["uid"] != running.objects["ElasticJob", "digits"]["metadata"]["uid"]
    assert status(running)["reason"] == "EarlierJob"

    running.delete("Service", "elasticjob-digits-dlrover-master")  # any deletion lets the collector run
    running.reap()
    running.settle()
    assert status(running)["reason"] == "JobPending"


def test_refused_master_is_reported_and_tried_again(world: JobsNamespace, job: Make) -> None:
    """A quota or an invalid template is told in the status with the server's words; nothing is final."""
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


def test_edit_of_replicas_becomes_a_plan(running: JobsNamespace) -> None:
    """Scaling by spec is a manual plan named after the generation, with just what changed."""
    running.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {"worker": {"replicas": 3}}}})
    running.settle()

    made = running.objects["ScalePlan", "digits-spec-2"]
    assert made["spec"] == {"ownerJob": "digits", "replicaResourceSpecs": {"worker": {"replicas": 3}}}
    assert made["metadata"]["labels"]["scale-type"] == "manual"
    assert status(running)["specReplicas"] == {"ps": 2, "worker": 3}


def test_edit_whose_plan_is_refused_is_not_lost(running: JobsNamespace) -> None:
    """A quota on plans delays an edit; it does not swallow it."""
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


def test_edit_behind_a_plan_of_an_earlier_job_is_not_lost(running: JobsNamespace, plan: Make) -> None:
    """A plan that the garbage collector is about to delete delays an edit; it does not stand for it."""
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
    """While the master carries a plan out the job is Scaling and still Running; then the plan's counts are
    desired.
    """
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
    """A plan that was rolled back leaves the counts as they were."""
    running.add(plan("grow", replicaResourceSpecs={"worker": {"replicas": 4}}))
    running.edit("ScalePlan", "grow", {"status": {"phase": "Failed"}})
    running.settle()

    assert status(running)["replicaStatuses"]["worker"]["desired"] == 1


def test_newest_finished_plans_are_kept(running: JobsNamespace, plan: Make) -> None:
    """Ten finished plans of each type stay for users to read; a master's many push out none of theirs."""
    running.add(plan("by-hand") | {"status": {"phase": "Succeeded"}})
    for number in range(14):
        running.add(plan(f"digits-scaleplan-{number}", auto=True))
        running.settle()

    left = [name for kind, name in running.objects if kind == "ScalePlan"]
    assert left == ["by-hand"] + [f"digits-scaleplan-{number}" for number in range(4, 14)]


def test_counters_are_those_of_the_pods(running: JobsNamespace, plan: Make) -> None:
    """Each role's counters follow its pods; pods on their way out are counted nowhere."""
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


def test_pending_tells_why(world: JobsNamespace, job: Make) -> None:
    """An unschedulable master's reason stands in the job's message."""
    world.add(job())
    world.settle()
    why = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes: too much cpu",
    }
    world.objects["Pod", MASTER]["status"] = {"phase": "Pending", "conditions": [why]}
    world.settle()

    assert status(world)["message"] == f"{MASTER}: Unschedulable: 0/1 nodes: too much cpu"


def test_deleting_job_is_left_alone(running: JobsNamespace) -> None:
    """A job that is being deleted is the garbage collector's."""
    running.objects["ElasticJob", "digits"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    running.objects.pop(("Pod", MASTER))

    assert not running.reconcile()


def test_invalid_job_fails_with_the_field(world: JobsNamespace, job: Make) -> None:
    """A job that a laxer API server let in is Failed, and the message has the field path."""
    manifest = job()
    manifest["spec"]["replicaSpecs"]["worker"]["replica"] = 2
    world.add(manifest)
    world.settle()

    assert (status(world)["phase"], status(world)["reason"]) == ("Failed", "InvalidSpec")
    assert status(world)["message"] == (
        "spec.replicaSpecs.worker.replica: unknown field; did you mean 'replicas'?"
    )
    assert condition(world, "Failed") == "True"


def test_masters_fields_are_never_written(running: JobsNamespace) -> None:
    """Progress and checkpoint belong to the master: no patch of ours touches them."""
    progress = {"step": 7, "records": 70, "unknownYet": 1}
    running.edit("ElasticJob", "digits", {"status": {"progress": progress}})
    running.set_pod(MASTER, "Failed", 2)
    running.settle()

    assert status(running)["progress"] == progress


def test_events_tell_each_change_once(running: JobsNamespace) -> None:
    """One Event a change of phase or reason, but none for a start that goes as it should."""
    assert running.events == []
    running.set_pod(MASTER, "Failed", 2)
    running.settle()
    running.set_pod(SECOND, "Running")
    running.settle()
    running.set_pod(SECOND, "Succeeded", 0)
    running.settle()

    assert [e.reason for e in running.events] == ["JobRestarting", "JobRunning", "JobSucceeded"]


def test_a_named_account_gets_no_rights_from_us(world: JobsNamespace, job: Make) -> None:
    """Who names the master's ServiceAccount has given it its rights: no account, role or binding is made a
    job.
    """
    manifest = job()
    manifest["spec"]["replicaSpecs"]["dlrover-master"] = {
        "template": {"spec": {"serviceAccountName": "masters"}}
    }
    world.add(manifest)
    world.settle()

    assert not [key for key in world.objects if key[0] in ("ServiceAccount", "Role", "RoleBinding")]
    assert world.objects["Pod", MASTER]["spec"]["serviceAccountName"] == "masters"


def test_master_is_not_made_without_what_it_needs(world: JobsNamespace, job: Make) -> None:
    """A refused Secret keeps the master away until it is there; the job says so."""
    world.refuse["digits-edljob-token"] = Refusal("Secret", "digits-edljob-token", False, "quota")
    world.add(job())
    world.reconcile()
    assert world.pods("dlrover-master") == []
    assert (status(world)["phase"], status(world)["reason"]) == ("Created", "CreateRefused")

    world.refuse.clear()
    world.settle()
    assert world.pods("dlrover-master") == [MASTER]


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        pytest.param({"initial": 0, "pending": 1}, 30.0, id="made but not running"),
        pytest.param({"pending": 0, "active": 1, "ready": 1}, 2.0, id="running"),
        pytest.param({"pending": 1, "active": 1, "ready": 1}, 10.0, id="some running"),
        pytest.param({"pending": 1, "active": 0, "failed": 1}, 2.0, id="failed"),
    ],
)
def test_counters_may_wait(changed: dict[str, int], seconds: float) -> None:
    """A change of counters alone may be written together with the next ones, the sooner the more it tells."""
    old = ElasticJobStatus.model_validate({"replicaStatuses": {"worker": {"desired": 1}}})
    assert status_delay(old, {"replicaStatuses": {"worker": changed}}) == seconds


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(None, id="nothing"),
        pytest.param({"phase": "Running", "replicaStatuses": {"worker": {"active": 1}}}, id="a phase"),
        pytest.param({"replicaStatuses": {"ps": {"desired": 1}}}, id="a new role"),
    ],
)
def test_news_do_not_wait(patch: dict[str, Any] | None) -> None:
    """A phase, or a role that had no counters, is written at once."""
    old = ElasticJobStatus.model_validate({"replicaStatuses": {"worker": {"desired": 1}}})
    assert status_delay(old, patch) == 0.0


@pytest.mark.parametrize(("limit", "kept"), [(None, 5), (2, 2), (0, 0)], ids=["by default", "two", "none"])
def test_of_replaced_pods_the_newest_stay(
    world: JobsNamespace, job: Make, plan: Make, limit: int | None, kept: int
) -> None:
    """While the job runs, per role; a pod that nobody has replaced stays, since its master may not know yet
    how it ended.
    """
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


def test_a_master_that_no_node_can_run_ends_the_job_and_says_why(world: JobsNamespace, job: Make) -> None:
    """A pod that its node refuses for good is no disruption: it uses the budget, and the job's message has
    the node's words.
    """
    world.add(job())
    world.settle()
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    for index in range(10):
        name = f"elasticjob-digits-dlrover-master-{index}"
        if name not in world.pods("dlrover-master"):
            break
        refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
        world.edit("Pod", name, {"status": refused})
        world.settle()
        world.tick(600)
        world.settle()
    assert (status(world)["phase"], status(world)["reason"]) == ("Failed", "MasterRestartsExhausted")
    assert index == 4
    assert f"the master could not run after 3 restarts: {said}" in status(world)["message"]


@pytest.mark.parametrize(
    "reason", ["OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "TopologyAffinityError"]
)
def test_a_master_that_another_node_can_run_costs_nothing(
    world: JobsNamespace, job: Make, reason: str
) -> None:
    """A node that turned out to be full, or to be another than the scheduler knew, refuses one pod, not the
    job's master.
    """
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
