"""How a running TrainingJob is changed, suspended and told of, row by row:
`edl_workflows.core.jobs.training_job.reconcile`.
"""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import RoleChange
from edl_workflows.core.jobs.training_job.kind import scale
from edl_workflows.core.jobs.training_job.model import TrainingJob
from tests.cases.kinds.training_job import make_training_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.training_jobs import NAME, Job


def test_trainers_come_and_go() -> None:
    """Growing adds the next indices and shrinking removes the highest. Each change is recorded until the pods
    match it, and none counts as a failure."""
    job = Job.running()
    kept = [job.uid("trainer-0"), job.uid("trainer-1")]
    job.scale(4)
    assert (job.phase, job.trainers) == ("scaling", [f"trainer-{i}" for i in range(4)])
    assert job.true_conditions() == ["Created", "Running", "Scaling"]
    assert job.records() == [(2, "Unknown")]
    job.run_all()
    assert (job.phase, job.records()) == ("running", [(2, "True")])

    job.scale(2)
    assert job.phase == "scaling", "until the pods are gone"
    job.settle()
    assert (job.phase, job.trainers) == ("running", ["trainer-0", "trainer-1"])
    assert job.records() == [(2, "True"), (-2, "True")]
    assert [job.uid("trainer-0"), job.uid("trainer-1")] == kept
    assert job.failed() == []


def test_a_trainer_that_is_taken_away_does_not_fail() -> None:
    """Trainers that a scaling removes do not count as failed, whatever their exit codes."""
    job = Job.running(failurePercent=0)
    job.scale(3)
    job.run_all()
    job.scale(2)
    job.world.set_pod(f"{NAME}-trainer-2", "Failed", 143)
    job.world.settle()
    job.settle()
    assert (job.phase, job.failed()) == ("running", [])


CLAMPED: list[Any] = [
    pytest.param({"max-instance": 3}, 3, id="max below: shrinks to it"),
    pytest.param({"max-instance": 6}, 4, id="max above: stays"),
    pytest.param({"min-instance": 5, "max-instance": 6}, 5, id="min above: grows to it"),
    pytest.param({"min-instance": 1, "max-instance": 1}, 1, id="both below"),
]


@pytest.mark.parametrize(("bounds", "wanted"), CLAMPED)
def test_edited_bounds_are_honoured(bounds: dict[str, int], wanted: int) -> None:
    """A number of trainers outside of the bounds is the nearer bound (upstream ignores edits)."""
    job = Job.running()
    job.scale(4)
    job.run_all()
    job.edit(trainer=bounds)
    job.run_all()
    assert (job.phase, len(job.trainers), job.status["parallelism"]) == ("running", wanted, wanted)


def test_min_is_the_default_and_follows_its_edits() -> None:
    """Without parallelism a job has min-instance trainers, also after an edit of min-instance."""
    job = Job.running()
    job.edit(trainer={"min-instance": 3})
    assert len(job.trainers) == 3


def test_a_change_of_mind_is_recorded() -> None:
    """A scaling that is followed by another before it is done is recorded as not done."""
    job = Job.running()
    job.scale(4)
    job.scale(3)
    job.run_all()
    assert job.records() == [(2, "False"), (-1, "True")]
    assert "changed again" in job.status["scale_records"][0]["reason"]


def test_records_are_bounded() -> None:
    """Of the records of scalings, the newest ten stay."""
    job = Job.running()
    for _ in range(8):
        job.scale(3)
        job.run_all()
        job.scale(2)
        job.settle()
    assert len(job.records()) == 10


def test_a_job_that_waits_for_room_says_so_while_it_scales() -> None:
    """The job continues to train, and its message names the pod that can't be scheduled."""
    job = Job.running()
    job.scale(3)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    job.pod("trainer-2")["status"]["conditions"] = [scheduled]
    job.world.settle()
    assert job.phase == "scaling"
    assert job.status["message"] == "2 of 3 trainers run; ctr-trainer-2: Unschedulable: no room"
    job.scale(2)
    job.settle()
    assert job.phase == "running"


def test_other_trainers_of_a_job_that_is_not_fault_tolerant_are_a_new_cluster() -> None:
    """If the number of trainers changes, all trainers end and then the pservers. The new ones start in order
    and know each other. The master stays."""
    job = Job.running(ft=False, trainers=(2, 4))
    master, server = job.uid("master-0"), job.uid("pserver-0")
    job.scale(3)
    assert job.phase == "scaling"
    assert "deletionTimestamp" in job.pod("trainer-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("pserver-0")["metadata"]
    job.settle()
    assert job.trainers == [], "nobody of the new cluster before all of the old are gone"
    job.run_all()
    assert (job.phase, len(job.trainers)) == ("running", 3)
    assert job.uid("master-0") == master
    assert job.uid("pserver-0") != server
    assert job.records() == [(1, "True")]


@pytest.mark.parametrize("trainers", [2, 4])
def test_other_trainers_come_too_late_once_one_has_succeeded(trainers: int) -> None:
    """Once a trainer has succeeded, a job that is not fault-tolerant keeps its trainers and says so, since a
    new cluster would wait for the trainer that has ended."""
    job = Job.running(ft=False, trainers=(2, 4))
    job.scale(3)
    job.settle()
    job.run_all()
    job.set(trainer_0="Succeeded")
    kept = [job.uid("trainer-1"), job.uid("trainer-2"), job.uid("pserver-0")]
    job.scale(trainers)
    job.settle()
    assert (job.phase, job.status["reason"], job.status["parallelism"]) == ("running", "TooLateToScale", 3)
    assert job.status["message"].startswith(f"{trainers} trainers are wanted, but one of 3 has succeeded")
    assert [job.uid("trainer-1"), job.uid("trainer-2"), job.uid("pserver-0")] == kept
    assert job.records() == [(1, "True")]
    assert job.world.events[-1].type == "Warning"
    parsed = TrainingJob.parse(job.world.objects["TrainingJob", NAME])
    with pytest.raises(ManifestError, match="a trainer has succeeded"):
        scale(parsed, {"trainer": RoleChange(replicas=trainers)})
    job.set(trainer_1="Succeeded", trainer_2="Succeeded")
    assert (job.phase, job.status["parallelism"]) == ("succeeded", 3)


OTHER_PSERVERS: list[Any] = [
    pytest.param({"min-instance": 3}, 3, id="another number"),
    pytest.param({"resources": {"limits": {"cpu": "2"}}}, 2, id="another size"),
]


@pytest.mark.parametrize(("change", "servers"), OTHER_PSERVERS)
def test_other_pservers_are_a_new_cluster(change: dict[str, Any], servers: int) -> None:
    """A change of the pservers restarts pservers and trainers, and is not recorded as a scaling of
    trainers."""
    job = Job.running()
    job.edit(pserver=change)
    assert (job.phase, job.status["reason"]) == ("scaling", "ClusterChanging")
    job.settle()
    job.run_all()
    assert job.phase == "running"
    assert [name for name in job.pods if name.startswith("pserver")] == [
        f"pserver-{i}" for i in range(servers)
    ]
    assert job.records() == []


def test_suspend_and_resume() -> None:
    """On suspension, trainers end before the servers. A resumed job is in phase creating, starts its pods in
    the same order, and has a new start time."""
    job = Job.running()
    job.scale(3)
    job.run_all()
    started = job.status["startTime"]
    job.edit(suspend=True)
    assert "deletionTimestamp" in job.pod("trainer-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("pserver-0")["metadata"]
    job.settle()
    assert "deletionTimestamp" in job.pod("pserver-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("master-0")["metadata"]
    for _ in range(2):
        job.settle()
    assert (job.phase, job.pods, job.services) == ("suspended", [], [])
    job.world.tick(10**5)
    job.edit(suspend=False)
    assert (job.phase, job.pods) == ("creating", ["master-0"])
    assert job.status["startTime"] != started
    job.run_all()
    assert (job.phase, len(job.trainers)) == ("running", 3)


def test_what_has_succeeded_is_not_run_again_after_a_suspension() -> None:
    """In a job that is not fault-tolerant, trainers that had succeeded are not started again after a
    suspension."""
    job = Job.running(ft=False, trainers=(2, 2))
    job.report(trainer_0="Succeeded")
    job.edit(suspend=True)
    for _ in range(3):
        job.settle()
    assert job.phase == "suspended"
    job.edit(suspend=False)
    job.run_all()
    assert job.trainers == ["trainer-1"]
    job.set(trainer_1="Succeeded")
    assert job.phase == "succeeded"


TAKEN_DOWN: list[Any] = [
    pytest.param(False, {"trainer": {"parallelism": 3}}, "trainer-1", id="other trainers"),
    pytest.param(False, {"pserver": {"min-instance": 3}}, "trainer-1", id="other pservers"),
    pytest.param(True, {"pserver": {"min-instance": 3}}, "trainer-1", id="other pservers, fault-tolerant"),
    pytest.param(True, {"pserver": {"min-instance": 3}}, "pserver-1", id="other pservers: a pserver"),
    pytest.param(False, {"suspend": True}, "trainer-1", id="suspended"),
    pytest.param(True, {"suspend": True}, "trainer-1", id="suspended, fault-tolerant"),
    pytest.param(True, {"suspend": True}, "pserver-1", id="suspended: a pserver"),
]


@pytest.mark.parametrize(("ft", "change", "peer"), TAKEN_DOWN)
def test_who_loses_its_peers_while_they_are_taken_down_has_not_failed(
    ft: bool, change: dict[str, Any], peer: str
) -> None:
    """The controller dies between two deletions, and a trainer crashes because its peer is gone. The crash
    neither fails the job nor counts as a failure."""
    job = Job.running(ft=ft, trainers=(2, 4), failurePercent=0, backoffLimit=0)
    job.world.edit("TrainingJob", NAME, {"spec": change})
    actions = job.world.decide("TrainingJob", NAME)
    assert [deletion.name for deletion in actions.delete] == ["ctr-trainer-0", "ctr-trainer-1"]
    job.world.apply("TrainingJob", NAME, actions, steps=1)
    job.report(**{peer.replace("-", "_"): ("Failed", 1)})
    for _ in range(4):
        job.settle()
    job.edit(suspend=False)
    job.run_all()
    assert (job.phase, job.failed()) == ("running", [])
    assert job.pod(peer)["status"]["phase"] == "Running"


@pytest.mark.parametrize(
    ("kind", "name"), [("Pod", "ctr-master-0"), ("Pod", "ctr-trainer-1"), ("Service", "ctr-pserver-1")]
)
def test_a_foreign_object_of_our_name_is_told(kind: str, name: str) -> None:
    """If another object has a name that the job needs, the reason is NameConflict, the message names the
    object, and no trainer is created."""
    world = JobsNamespace()
    spec = {"containers": [{"name": "x", "image": "y"}]}
    world.add({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {}}, "spec": spec})
    world.add(make_training_job())
    for pod in ("master-0", "pserver-0", "pserver-1"):
        world.settle()
        if ("Pod", f"{NAME}-{pod}") in world.objects:
            world.set_pod(f"{NAME}-{pod}", "Running")
    world.settle()
    status = world.objects["TrainingJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("creating", "NameConflict")
    assert name in status["message"]
    assert ("Pod", f"{NAME}-trainer-0") not in world.objects


def test_what_is_said_of_a_job() -> None:
    """The status has counters and states by role, and the selector of the scale subresource. At the end, only
    the conditions Created and Succeeded are True."""
    job = Job.running()
    assert job.counts("trainer") == {
        "desired": 2, "active": 2, "ready": 2, "succeeded": 0, "failed": 0, "completed": [],
        "state": "running",
        "labelSelector": "paddlepaddle.org/job-name=ctr,paddlepaddle.org/replica-type=trainer",
    }  # fmt: skip
    job.set(trainer_0="Succeeded")
    job.set(trainer_1="Succeeded")
    assert [job.counts(role)["state"] for role in ("master", "pserver", "trainer")] == ["", "", "succeeded"]
    assert job.true_conditions() == ["Created", "Succeeded"]


def test_counters_alone_may_wait_for_more_of_them() -> None:
    """Changes of counters may be delayed to be written together. Failures and the end of the job are written
    at once."""
    job = Job(trainers=(4, 4))
    job.set(master_0="Running")
    job.report(pserver_0="Running")
    actions = job.world.decide("TrainingJob", NAME)
    assert (actions.status is not None, actions.status_may_wait) == (True, 10.0)
    job.run_all()
    job.report(trainer_0=("Failed", 1))
    assert job.world.decide("TrainingJob", NAME).status_may_wait == 0.0, (
        "a failure is told before its pod goes"
    )
    job.settle()
    job.report(trainer_0="Running")
    assert job.world.decide("TrainingJob", NAME).status_may_wait == 2.0
    job.set(trainer_0="Succeeded")
    job.report(trainer_1="Succeeded")
    assert job.world.decide("TrainingJob", NAME).status_may_wait == 0.0


def test_events_tell_what_goes_beyond_an_ordinary_start() -> None:
    """A normal start creates no Events. After it, each change of phase creates one; failures are Warnings."""
    job = Job.running()
    assert job.world.events == []
    job.scale(3)
    job.run_all()
    job.set(trainer_0="Succeeded")
    job.set(trainer_1="Succeeded", trainer_2="Succeeded")
    reasons = [(event.type, event.reason) for event in job.world.events]
    assert reasons == [
        ("Normal", "JobScaling"),
        ("Normal", "JobRunning"),
        ("Normal", "TrainersEnding"),
        ("Normal", "JobSucceeded"),
    ]
    failed = Job.running(ft=False)
    failed.set(trainer_0=("Failed", 1))
    assert [(event.type, event.reason) for event in failed.world.events] == [("Warning", "TrainerFailed")]
