"""The life of an ElasticJob: its objects, suspension, conflicts with objects of others, its end, events."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobStatus
from edl_workflows.core.jobs.elastic_job.pods import NodeToMake, node_pod
from edl_workflows.core.jobs.elastic_job.separate_copies import CONDITION, NO_GROUP, OWN_COPIES
from edl_workflows.core.jobs.elastic_job.status import status_delay
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.elastic_jobs import MASTER, SECOND, Make, condition, create_nodes, status


def test_first_reconcile_makes_everything_a_master_needs(world: JobsNamespace, job: Make) -> None:
    """In one decision, a new job gets a token, rights, services and then its master, all owned by the job."""
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


def test_end_removes_what_runs_and_keeps_what_ended(running: JobsNamespace, plan: Make) -> None:
    """A finished job keeps its finished pods for their logs, and its running pods are deleted."""
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


def _decide_with_period(world: JobsNamespace, seconds: int) -> Mapping[str, Any] | None:
    """The status that a decision writes while masters are to write progress that rarely."""
    manifest = world.objects["ElasticJob", "digits"]
    observed = world.observe(ELASTIC_JOB, manifest)
    return ELASTIC_JOB.decide(manifest, replace(observed, progress_period=seconds)).status


def test_the_period_of_progress_goes_with_other_changes(world: JobsNamespace, job: Make) -> None:
    """A status that is written anyway has the period of the master's progress if that has changed; a period
    alone writes nothing, and one of 60 s is that of jobs without the field."""
    world.add(job())
    first = _decide_with_period(world, 120)
    assert first is not None
    assert (first["phase"], first["progressPeriodSeconds"]) == ("Pending", 120)
    assert "progressPeriodSeconds" not in (_decide_with_period(world, 60) or {})
    assert "progressPeriodSeconds" not in (_decide_with_period(world, 0) or {})
    world.settle()
    assert _decide_with_period(world, 120) is None

    world.edit("ElasticJob", "digits", {"status": {"progressPeriodSeconds": 120}})
    world.set_pod(MASTER, "Running")
    assert "progressPeriodSeconds" not in (_decide_with_period(world, 120) or {})
    running = _decide_with_period(world, 60)
    assert running is not None
    assert (running["phase"], running["progressPeriodSeconds"]) == ("Running", 60)

    world.set_pod(MASTER, "Succeeded", 0)
    assert "progressPeriodSeconds" not in (_decide_with_period(world, 60) or {})


def test_final_phase_is_final(running: JobsNamespace) -> None:
    """Nothing that happens afterwards changes how a job ended."""
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
    """On a suspension workers end first, then parameter servers and the master. The phase is Suspended when
    all are gone."""
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


@pytest.mark.parametrize(("seconds", "grace"), [(0, 120), (10, 120), (100, 305)])
def test_suspended_pods_get_the_time_that_saves_take(
    running: JobsNamespace, plan: Make, seconds: int, grace: int
) -> None:
    """If saves take longer than the pods' grace allows, they are deleted with a longer one. New pods have
    it."""
    create_nodes(running, plan, "worker-0")
    checkpoint = {"uri": "a", "step": 1, "time": "2026-01-01T00:00:00Z", "saveSeconds": seconds}
    running.edit("ElasticJob", "digits", {"status": {"checkpoint": checkpoint}})
    create_nodes(running, plan, "ps-1")
    new_pod = running.objects["Pod", "digits-edljob-ps-1"]
    assert new_pod["spec"]["terminationGracePeriodSeconds"] == grace
    running.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    (deletion,) = running.decide("ElasticJob", "digits").delete
    assert deletion.name == "digits-edljob-worker-0"
    assert deletion.grace_seconds == grace


def test_grace_of_a_template_stays(world: JobsNamespace, job: Make) -> None:
    """Pods end within 120 s, unless their template says otherwise."""
    own = job()
    template = own["spec"]["replicaSpecs"]["worker"]["template"]
    assert (
        node_pod(ElasticJob.parse(world.add(own)), NodeToMake("worker", 0, 0, 1))["spec"][
            "terminationGracePeriodSeconds"
        ]
        == 120
    )
    template["spec"]["terminationGracePeriodSeconds"] = 7
    own["metadata"]["name"] = "short"
    made = node_pod(ElasticJob.parse(world.add(own)), NodeToMake("worker", 0, 0, 1))
    assert made["spec"]["terminationGracePeriodSeconds"] == 7


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
    """A job that is created suspended has no pods. Upstream would create a master."""
    world.add(job(suspend=True))
    world.settle()

    assert status(world)["phase"] == "Suspended"
    assert [key for key in world.objects if key[0] == "Pod"] == []


def test_foreign_object_is_a_conflict_until_it_is_gone(world: JobsNamespace, job: Make) -> None:
    """An object of somebody else with a name that the job needs is named in the status and left alone; the
    job waits for its removal."""
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
    """A job created again under its name waits until the garbage collector has removed the objects of the old
    one."""
    old = running.objects.pop(("ElasticJob", "digits"))
    running.add(job())
    running.settle()
    assert old["metadata"]["uid"] != running.objects["ElasticJob", "digits"]["metadata"]["uid"]
    assert status(running)["reason"] == "EarlierJob"

    running.delete("Service", "elasticjob-digits-dlrover-master")  # any deletion lets the collector run
    running.reap()
    running.settle()
    assert status(running)["reason"] == "JobPending"


def test_pending_tells_why(world: JobsNamespace, job: Make) -> None:
    """The reason of an unschedulable master is in the job's message."""
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
    """A job that is being deleted is left to the garbage collector."""
    running.objects["ElasticJob", "digits"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    running.objects.pop(("Pod", MASTER))

    assert not running.reconcile()


def test_invalid_job_fails_with_the_field(world: JobsNamespace, job: Make) -> None:
    """A job that an older API server admitted although it is invalid fails, and its message has the field
    path."""
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
    """The controller's patches never change progress and checkpoint, which belong to the master."""
    progress = {"step": 7, "records": 70, "unknownYet": 1}
    checkpoint = {"uri": "/c/7", "step": 7, "time": "2026-01-01T00:00:00Z", "unknownYet": 1}
    running.edit("ElasticJob", "digits", {"status": {"progress": progress, "checkpoint": checkpoint}})
    running.set_pod(MASTER, "Failed", 2)
    running.settle()

    assert status(running)["progress"] == progress
    assert status(running)["checkpoint"] == checkpoint


def test_events_tell_each_change_once(running: JobsNamespace) -> None:
    """Each change of phase or reason creates one Event, but an ordinary start creates none."""
    assert running.events == []
    running.set_pod(MASTER, "Failed", 2)
    running.settle()
    running.set_pod(SECOND, "Running")
    running.settle()
    running.set_pod(SECOND, "Succeeded", 0)
    running.settle()

    assert [e.reason for e in running.events] == ["JobRestarting", "JobRunning", "JobSucceeded"]


def test_the_masters_role_follows_the_version(running: JobsNamespace) -> None:
    """A role that another version made gets the rights of this one, once, since the job's next master needs
    them."""
    role = running.objects["Role", "digits-edljob-master"]
    current = role["rules"]
    role["rules"] = current[:2]
    running.settle()

    assert running.objects["Role", "digits-edljob-master"]["rules"] == current
    assert not running.decide("ElasticJob", "digits").patch


def test_a_named_account_gets_no_rights_from_us(world: JobsNamespace, job: Make) -> None:
    """If the user names the master's ServiceAccount, no account, Role or RoleBinding is created."""
    manifest = job()
    manifest["spec"]["replicaSpecs"]["dlrover-master"] = {
        "template": {"spec": {"serviceAccountName": "masters"}}
    }
    world.add(manifest)
    world.settle()

    assert not [key for key in world.objects if key[0] in ("ServiceAccount", "Role", "RoleBinding")]
    assert world.objects["Pod", MASTER]["spec"]["serviceAccountName"] == "masters"


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
    """Changes of counters alone may be delayed and written together: longest while pods are only created,
    shorter while some of them start, and shortest otherwise."""
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
    """A change of the phase, or the first counters of a role, are written at once."""
    old = ElasticJobStatus.model_validate({"replicaStatuses": {"worker": {"desired": 1}}})
    assert status_delay(old, patch) == 0.0


def test_separate_copies_are_a_condition(running: JobsNamespace) -> None:
    """What the master warns of is a condition of the job, as long as it does, and after the job's end. A job
    without that warning has no such condition."""
    assert condition(running, CONDITION) == "absent"
    status(running)["warnings"] = ["another one", NO_GROUP]
    running.settle()
    assert condition(running, CONDITION) == "True"
    assert next(c for c in status(running)["conditions"] if c["type"] == CONDITION)["message"] == NO_GROUP
    status(running)["warnings"] = []
    running.settle()
    assert condition(running, CONDITION) == "False"
    status(running)["warnings"] = [OWN_COPIES]
    running.set_pod(MASTER, "Succeeded", 0)
    running.settle()
    assert (condition(running, CONDITION), status(running)["phase"]) == ("True", "Succeeded")
