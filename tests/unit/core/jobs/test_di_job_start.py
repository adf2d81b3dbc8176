"""A DIJob's pods and phases while all goes well, and its counters:
`edl_workflows.core.jobs.di_job.reconcile`."""

from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Refusal
from tests.cases.kinds.di_job import make_di_job, task
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.di_jobs import NAME, Job

ALL = ["collector-0", "collector-1", "evaluator-0", "learner-0"]


def test_pods_and_one_service() -> None:
    """Each replica has a pod with upstream's name, owned by the job. The job has one headless service with
    upstream's port."""
    job = Job()
    assert job.pods == ALL
    assert [name for kind, name in job.world.objects if kind == "Service"] == ["di-atari"]
    service = job.world.objects["Service", "di-atari"]["spec"]
    assert service["clusterIP"] == "None"
    assert service["ports"][0] == {"name": "di-port", "port": 22270, "targetPort": 22270, "protocol": "TCP"}
    assert service["selector"] == {"diengine/job": NAME, "diengine/operator": "di-operator"}
    assert job.pod("learner-0")["metadata"]["ownerReferences"][0]["kind"] == "DIJob"
    assert job.status["replicas"] == 4


# Phases: what the pods do -> where the job is.
PHASES: list[Any] = [
    pytest.param({}, "Starting", id="all pods are made"),
    pytest.param({"learner_0": "Running"}, "Starting", id="not all are ready"),
    pytest.param(
        dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Running"),
        "Running",
        id="all are ready",
    ),
    pytest.param(
        {
            "learner_0": "Running", "collector_0": "Succeeded", "collector_1": "Running",
            "evaluator_0": "Running",
        },
        "Running",
        id="one has succeeded, the rest are ready",
    ),
    pytest.param(
        dict.fromkeys(("learner_0", "collector_0", "collector_1"), "Succeeded"),
        "Starting",
        id="all but one have succeeded",
    ),
    pytest.param(
        dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Succeeded"),
        "Succeeded",
        id="all have succeeded",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "phase"), PHASES)
def test_phases_of_a_job_that_goes_well(pods: dict[str, str], phase: str) -> None:
    """The job is Starting until all pods run, and Running until all have succeeded. Beside Created, only the
    condition of the phase is True."""
    job = Job()
    job.set(**pods)
    assert job.phase == phase
    assert job.true_conditions() == ["Created", phase]
    assert job.status["reason"] == f"Job{phase}"


def test_lost_readiness_does_not_leave_running() -> None:
    """A pod that is not ready for a while changes the counters only."""
    job = Job()
    job.run()
    job.pod("collector-1")["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    job.world.settle()
    assert (job.phase, job.status["readyReplicas"]) == ("Running", 3)


def test_a_sidecar_counts_for_nothing() -> None:
    """Ready replicas count pods, so a sidecar does not change them."""
    one = task("learner")
    one["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "logs:1"})
    job = Job(one)
    job.run()
    assert (job.phase, job.status["readyReplicas"]) == ("Running", 1)
    assert all("DI_RANK" in {v["name"] for v in c["env"]} for c in job.pod("learner-0")["spec"]["containers"])


# Scaling a job that runs: edit -> pods, who is made anew, reschedules.
SCALES: list[Any] = [
    pytest.param({"collector": 4}, ["collector-2", "collector-3"], id="out: nobody is restarted"),
    pytest.param({"collector": 1}, [], id="in: the highest rank goes"),
    pytest.param({"learner": 2}, ["learner-1"], id="another task, out: the others keep their ranks"),
    pytest.param({"evaluator": 2, "collector": 3}, ["collector-2", "evaluator-1"], id="two tasks"),
    pytest.param({"evaluator": 2, "collector": 1}, ["evaluator-1"], id="one task out, one in"),
]  # fmt: skip


@pytest.mark.parametrize(("replicas", "new"), SCALES)
def test_scaled_by_the_spec(replicas: dict[str, int], new: list[str]) -> None:
    """After each change, the ranks are 0 … N-1, the position of a pod in DI_NODES is its rank, and only pods
    whose rank changed are created again."""
    job = Job()
    job.run()
    before = {short: job.uid(short) for short in ALL}
    job.resize(**replicas)
    assert job.phase in ("Rescheduling", "Starting")
    job.settle()
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 0))
    assert [short for short in job.pods if before.get(short) != job.uid(short)] == new
    assert sorted(job.rank(short) for short in job.pods) == list(range(len(job.pods)))
    for short in new:
        assert job.env(short)["DI_NODES"].split(",")[job.rank(short)].startswith(f"{NAME}-{short}.di-{NAME}.")
    assert job.status["replicas"] == len(job.pods)


def test_a_task_that_shrinks_again_moves_nobody() -> None:
    """Removing the last replica changes no rank of the others, since it has the last rank."""
    job = Job()
    job.run()
    job.resize(learner=2)
    job.settle()
    job.run()
    before = {short: job.uid(short) for short in ALL}
    job.resize(learner=1)
    job.settle()
    job.run()

    assert {short: job.uid(short) for short in job.pods} == before


def test_only_a_rank_beyond_the_end_moves() -> None:
    """If a replica in the middle is removed, the replica with the last rank takes its rank, and the others
    stay."""
    job = Job(task("learner", 2), task("collector", 2), task("evaluator"))
    job.run()
    before = {short: job.uid(short) for short in job.pods}
    moved = max(before, key=job.rank)
    job.resize(learner=1)
    job.settle()
    job.run()

    assert job.phase == "Running"
    assert sorted(job.rank(short) for short in job.pods) == [0, 1, 2, 3]
    assert [short for short in job.pods if job.uid(short) != before[short]] == [moved]


def test_ranks_of_the_collector_come_last() -> None:
    """Collectors have the last ranks, whatever the order of the tasks, so that adding or removing them
    changes no other rank."""
    job = Job()
    assert {short: job.rank(short) for short in ALL} == {
        "learner-0": 0, "evaluator-0": 1, "collector-0": 2, "collector-1": 3,
    }  # fmt: skip


def test_another_template_replaces_its_task_only() -> None:
    """An edit of a task's template replaces the pods of that task only."""
    job = Job()
    job.run()
    before = {short: job.uid(short) for short in ALL}
    tasks = make_di_job()["spec"]["tasks"]
    tasks[2]["template"]["spec"]["containers"][0]["image"] = "ding:2"
    job.edit(tasks=tasks)
    job.settle()
    assert [short for short in ALL if job.uid(short) != before[short]] == ["evaluator-0"]
    assert job.pod("evaluator-0")["spec"]["containers"][0]["image"] == "ding:2"


def test_a_foreign_pod_is_told() -> None:
    """If a pod that belongs to someone else has the name of a replica, the job's reason is NameConflict and
    no other pod is created."""
    world = JobsNamespace()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "atari-learner-0", "labels": {}}}
    world.add(pod | {"spec": {"containers": [{"name": "x", "image": "y"}]}})
    world.add(make_di_job())
    world.settle()
    status = world.objects["DIJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "NameConflict")
    assert "atari-learner-0" in status["message"]
    assert sum(kind == "Pod" for kind, _ in world.objects) == 1


@pytest.mark.parametrize(("name", "kind"), [("di-atari", "Service"), ("atari-di-token", "Secret")])
def test_a_foreign_service_or_secret_is_told(name: str, kind: str) -> None:
    """A foreign object with the name of the job's service or Secret is reported."""
    world = JobsNamespace()
    world.add({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {}}, "spec": {}})
    world.add(make_di_job())
    world.settle()
    assert world.objects["DIJob", NAME]["status"]["reason"] == "NameConflict"
    assert not any(kind == "Pod" for kind, _ in world.objects)


def test_a_refused_pod_is_told_and_tried_again() -> None:
    """If a quota rejects a pod, the job stays Pending with the server's message, and continues when the quota
    allows the pod."""
    world = JobsNamespace()
    world.refuse["atari-collector-1"] = Refusal(
        "Pod", "atari-collector-1", invalid=False, message="exceeded quota"
    )
    world.add(make_di_job())
    world.reconcile()
    status = world.objects["DIJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "CreateRefused")
    assert "exceeded quota" in status["message"]
    assert world.decide("DIJob", NAME).requeue_after == 30
    world.refuse.clear()
    world.settle()
    assert world.objects["DIJob", NAME]["status"]["phase"] == "Starting"


def test_why_a_pod_waits_is_told() -> None:
    """If a pod can't be scheduled, the job's message has the scheduler's reason."""
    job = Job()
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no volume"}
    job.pod("learner-0")["status"] = {"phase": "Pending", "conditions": [told]}
    job.world.settle()
    assert "atari-learner-0: Unschedulable: no volume" in job.status["message"]


def test_a_lost_service_comes_back() -> None:
    """The service is created again, and the phase does not change."""
    job = Job()
    job.run()
    del job.world.objects["Service", "di-atari"]
    job.world.settle()
    assert ("Service", "di-atari") in job.world.objects
    assert (job.phase, job.count()) == ("Running", (0, 0, 0))


def test_what_others_write_stays() -> None:
    """The controller does not change the allocation and the profilings in the status."""
    job = Job(preemptible=True)
    job.world.edit(
        "DIJob", NAME, {"status": {"allocation": ["a", "a", "a"], "profilings": {"0": {"speed": 3}}}}
    )
    job.world.settle()
    job.run()
    for patch in (job.world.decide("DIJob", NAME).status or {},):
        assert not patch.keys() & {"allocation", "profilings"}
    assert job.status["allocation"] == ["a", "a", "a"]
    assert job.status["profilings"] == {"0": {"speed": 3}}


def test_events_tell_the_way() -> None:
    """Each change of phase creates one Event; it is a Warning if something failed."""
    job = Job()
    job.run()
    job.set(collector_0=("Failed", 1))
    job.run()
    told = [(event.type, event.reason) for event in job.world.events]
    assert told == [
        ("Normal", "JobStarting"), ("Normal", "JobRunning"), ("Warning", "JobRestarting"),
        ("Normal", "JobStarting"), ("Normal", "JobRunning"),
    ]  # fmt: skip


def test_counters_by_task_and_phase() -> None:
    """The status has `taskStatus` as upstream's users read it, and `replicaStatuses` like all kinds."""
    job = Job()
    job.set(learner_0="Running", collector_0="Succeeded")
    assert job.status["taskStatus"] == {
        "learner": {"Running": 1}, "collector": {"Succeeded": 1, "Pending": 1}, "evaluator": {"Pending": 1},
    }  # fmt: skip
    collector = job.status["replicaStatuses"]["collector"]
    assert (collector["desired"], collector["ready"], collector["succeeded"]) == (2, 0, 1)
    assert collector["labelSelector"] == "diengine/job=atari,diengine/task-name=collector"
