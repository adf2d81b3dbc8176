"""A DIJob's life, row by row: `edl_workflows.jobs.di_job.reconcile`."""

from typing import Any

import pytest

from edl_workflows.jobs.actions import Refusal
from edl_workflows.jobs.testing import World
from tests.unit.jobs.di_jobs import NAME, Job, make, node_asked_for, task

ALL = ["collector-0", "collector-1", "evaluator-0", "learner-0"]


def test_pods_and_one_service() -> None:
    """A pod a replica by upstream's names, one headless service with the port that upstream's has, everything owned."""
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
    pytest.param(dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Running"), "Running", id="all are ready"),
    pytest.param(
        {"learner_0": "Running", "collector_0": "Succeeded", "collector_1": "Running", "evaluator_0": "Running"},
        "Running",
        id="one has succeeded, the rest are ready",
    ),
    pytest.param(dict.fromkeys(("learner_0", "collector_0", "collector_1"), "Succeeded"), "Starting", id="all but one have succeeded"),
    pytest.param(
        dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Succeeded"), "Succeeded", id="all have succeeded"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pods", "phase"), PHASES)
def test_phases_of_a_job_that_goes_well(pods: dict[str, str], phase: str) -> None:
    """Starting until all run, Running until all have succeeded; the phase's condition is the only one that is True."""
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
    """Ready replicas are pods, not containers."""
    one = task("learner")
    one["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "logs:1"})
    job = Job(one)
    job.run()
    assert (job.phase, job.status["readyReplicas"]) == ("Running", 1)
    assert all("DI_RANK" in {v["name"] for v in c["env"]} for c in job.pod("learner-0")["spec"]["containers"])


# What a pod's end means: phase, exit code, reason -> counted as (restarts, reschedules).
ENDS: list[Any] = [
    pytest.param(("Failed", 1), (1, 0), id="a failed program"),
    pytest.param(("Failed", 137), (1, 0), id="killed, or out of memory"),
    pytest.param(("Failed", 143), (0, 1), id="told to end"),
    pytest.param(("Failed", None, "UnexpectedAdmissionError"), (0, 1), id="not admitted"),
    pytest.param(("Failed", None, "OutOfcpu"), (0, 1), id="the node was full, as kubelet spells it"),
    pytest.param(("Failed", None, "OutOfnvidia.com/gpu"), (0, 1), id="no device left"),
    pytest.param(("Failed", None, "Evicted"), (0, 1), id="evicted"),
    pytest.param(("Failed", 1, "Preempting"), (0, 1), id="preempted"),
    pytest.param(("Failed", None, "DeadlineExceeded"), (1, 0), id="the pod's own deadline"),
    pytest.param(("Unknown", None), (0, 1), id="its machine is lost"),
]


@pytest.mark.parametrize("preemptible", [False, True])
@pytest.mark.parametrize(("end", "counted"), ENDS)
def test_what_counts_as_a_failure(end: tuple[Any, ...], counted: tuple[int, int], preemptible: bool) -> None:
    """Failures restart, whatever else ended a pod reschedules; in both cases the pod alone is replaced, with its rank."""
    job = Job(preemptible=preemptible)
    if preemptible:
        job.allocate("a", "a", "b", "b")
    job.run()
    before = {short: (job.uid(short), job.rank(short)) for short in ALL}
    job.world.tick(60)
    job.set(collector_1=end)
    job.settle()
    assert job.count()[:2] == counted
    assert job.uid("collector-1") != before["collector-1"][0]
    assert {s: job.rank(s) for s in ALL} == {s: rank for s, (_, rank) in before.items()}
    assert [s for s in ALL if job.uid(s) == before[s][0]] == ["collector-0", "evaluator-0", "learner-0"]
    job.run()
    assert job.phase == "Running"
    assert job.count() == (*counted, 0)


def test_a_deleted_pod_comes_back() -> None:
    """A deletion is a reschedule, counted while the pod is still ending; the name is used again only when it is free."""
    job = Job()
    job.run()
    before = job.uid("learner-0")
    job.delete("learner-0")
    assert (job.phase, job.count()) == ("Rescheduling", (0, 1, 0))
    assert job.uid("learner-0") == before
    job.settle()
    assert job.uid("learner-0") != before
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 0))


def test_a_pod_that_is_deleted_has_neither_failed_nor_succeeded() -> None:
    """However its program ends when it is told to."""
    for code in (0, 1, 137, 143):
        job = Job()
        job.run()
        job.world.delete("Pod", f"{NAME}-collector-0")
        job.set(collector_0=("Failed" if code else "Succeeded", code))
        job.settle()
        assert job.count() == (0, 1, 0)
        assert job.status["replicaStatuses"]["collector"]["succeeded"] == 0
        assert job.pods == ALL


def test_a_failed_preparation_is_a_failure() -> None:
    """An init container that ends badly leaves the others without an exit code; the pod has failed none the less."""
    job = Job()
    job.run()
    ended = {"name": "fetch", "state": {"terminated": {"exitCode": 2}}}
    job.pod("learner-0")["status"] = {"phase": "Failed", "initContainerStatuses": [ended]}
    job.world.settle()
    assert job.count()[:2] == (1, 0)


# backoffLimit, failures one after another -> the job's end.
LIMITS: list[Any] = [
    pytest.param(0, 1, "Failed", id="0: the first failure"),
    pytest.param(1, 1, "Starting", id="1: one restart"),
    pytest.param(1, 2, "Failed", id="1: not two"),
    pytest.param(3, 3, "Starting", id="3: three restarts"),
    pytest.param(3, 4, "Failed", id="3: not four"),
    pytest.param(None, 8, "Starting", id="null: any number"),
]


@pytest.mark.parametrize(("limit", "failures", "phase"), LIMITS)
def test_back_off_limit(limit: int | None, failures: int, phase: str) -> None:
    """A job survives as many restarts as its backoffLimit says."""
    job = Job(backoffLimit=limit)
    for _ in range(failures):
        job.run()
        job.world.tick(1000)
        job.set(collector_0=("Failed", 1))
        job.world.tick(1000)
        job.settle()
    assert job.phase == phase
    if phase == "Failed":
        assert "atari-collector-0 (exit code 1)" in job.status["message"]
        assert job.status["restarts"] == limit


def test_the_default_is_three_restarts() -> None:
    """A manifest that doesn't say has upstream's limit."""
    job = Job()
    for _ in range(4):
        job.run()
        job.world.tick(1000)
        job.set(learner_0=("Failed", 1))
        job.world.tick(1000)
        job.settle()
    assert (job.phase, job.status["restarts"]) == ("Failed", 3)


def test_failures_at_once_are_one_restart() -> None:
    """A learner that falls takes its collectors along: one restart for all that fail before every replica has a pod again."""
    job = Job(backoffLimit=1)
    job.run()
    job.world.set_pod(f"{NAME}-learner-0", "Failed", 1)
    job.world.reconcile()
    assert (job.phase, job.status["restarts"]) == ("Restarting", 1)
    job.world.set_pod(f"{NAME}-collector-0", "Failed", 1)
    job.world.set_pod(f"{NAME}-collector-1", "Failed", 1)
    job.settle()
    assert (job.phase, job.status["restarts"]) == ("Starting", 1)


def test_a_pod_made_for_a_restart_that_fails_is_another_failure() -> None:
    """So two replicas that fail in turn can't go on for ever as one restart."""
    job = Job(backoffLimit=2)
    job.run()
    job.set(learner_0=("Failed", 1))
    job.world.delete("Pod", f"{NAME}-collector-0")  # still ending: the restart is not over
    job.set(learner_0=("Failed", 1))
    assert job.status["restarts"] == 2
    job.world.tick(1000)
    job.settle()
    job.set(learner_0=("Failed", 1))
    assert job.phase == "Failed"


def test_a_restart_is_counted_before_anything_is_deleted() -> None:
    """Whoever dies in between: the failed pod is there until its restart stands in the status."""
    job = Job()
    job.run()
    job.world.set_pod(f"{NAME}-learner-0", "Failed", 1)
    actions = job.world.decide("DIJob", NAME)
    assert not actions.delete
    assert actions.status is not None
    assert actions.status["restarts"] == 1


def test_a_crash_loop_slows_down() -> None:
    """After the first failure a pod is replaced at once, after the second in 10 s, the third 20 s; from anew after 10 min."""
    job = Job(backoffLimit=None)
    for wait in (0, 10, 20, 40):
        job.run()
        before = job.uid("learner-0")
        job.world.tick(5)
        job.set(learner_0=("Failed", 1))
        if wait:
            assert job.uid("learner-0") == before
            assert job.world.decide("DIJob", NAME).requeue_after == wait
            job.world.tick(wait)
        job.settle()
        assert job.uid("learner-0") != before
    job.run()
    before = job.uid("learner-0")
    job.world.tick(601)
    job.set(learner_0=("Failed", 1))
    assert job.uid("learner-0") != before


def test_a_pod_that_no_node_takes_is_not_made_again_at_once() -> None:
    """What kubelet refuses at once would otherwise be a loop without an end."""
    job = Job()
    before = job.uid("learner-0")
    job.set(learner_0=("Failed", None, "OutOfcpu"))
    assert job.uid("learner-0") == before
    assert job.world.decide("DIJob", NAME).requeue_after == 10
    job.world.tick(10)
    job.settle()
    assert job.uid("learner-0") != before


# Scaling a job that runs: edit -> pods, who is made anew, reschedules.
SCALES: list[Any] = [
    pytest.param({"collector": 4}, ["collector-2", "collector-3"], id="out: nobody is restarted"),
    pytest.param({"collector": 1}, [], id="in: the highest rank goes"),
    pytest.param({"evaluator": 2}, ["collector-0", "collector-1", "evaluator-1"], id="another task moves ranks behind it"),
]  # fmt: skip


@pytest.mark.parametrize(("replicas", "new"), SCALES)
def test_scaled_by_the_spec(replicas: dict[str, int], new: list[str]) -> None:
    """Ranks are 0 … N-1 after each change, a pod's place among DI_NODES is its rank, and only who must is made anew."""
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


def test_ranks_of_the_collector_come_last() -> None:
    """Whatever the order of the tasks, so that other collectors move nobody."""
    job = Job()
    assert {short: job.rank(short) for short in ALL} == {
        "learner-0": 0, "evaluator-0": 1, "collector-0": 2, "collector-1": 3,
    }  # fmt: skip


def test_another_template_replaces_its_task_only() -> None:
    """An edit of a task's template reaches its pods."""
    job = Job()
    job.run()
    before = {short: job.uid(short) for short in ALL}
    tasks = make()["spec"]["tasks"]
    tasks[2]["template"]["spec"]["containers"][0]["image"] = "ding:2"
    job.edit(tasks=tasks)
    job.settle()
    assert [short for short in ALL if job.uid(short) != before[short]] == ["evaluator-0"]
    assert job.pod("evaluator-0")["spec"]["containers"][0]["image"] == "ding:2"


CLEAN: list[Any] = [
    pytest.param("Running", ["collector-0", "learner-0"], id="Running: what has ended stays"),
    pytest.param("All", [], id="All"),
    pytest.param("None", ["collector-0", "collector-1", "evaluator-0", "learner-0"], id="None"),
]


@pytest.mark.parametrize(("policy", "left"), CLEAN)
def test_clean_up(policy: str, left: list[str]) -> None:
    """CleanPodPolicy says which pods stay; the service goes under each; counters say that nothing runs."""
    job = Job(cleanPodPolicy=policy, backoffLimit=0)
    job.run()
    job.set(collector_0="Succeeded")
    job.set(learner_0=("Failed", 1))
    job.settle()
    assert (job.phase, job.pods) == ("Failed", left)
    assert not any(kind == "Service" for kind, _ in job.world.objects)
    assert job.status["readyReplicas"] == 0
    assert "taskStatus" not in job.status
    assert job.status["completionTimestamp"] == job.status["completionTime"]
    assert job.status["replicaStatuses"]["learner"]["failed"] == 1


ALL_SUCCEED = dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Succeeded")


@pytest.mark.parametrize("ends", [ALL_SUCCEED, {"learner_0": ("Failed", 1)}], ids=["Succeeded", "Failed"])
def test_an_end_is_written_before_anything_is_deleted(ends: dict[str, Any]) -> None:
    """Whoever dies in between: a job that has ended does not run again for want of its pods."""
    job = Job(cleanPodPolicy="All", backoffLimit=0)
    job.run()
    for short, end in ends.items():
        phase, code = end if isinstance(end, tuple) else (end, 0)
        job.world.set_pod(f"{NAME}-{short.replace('_', '-')}", phase, code)
    actions = job.world.decide("DIJob", NAME)
    assert not actions.delete
    assert (actions.status or {})["phase"] == ("Failed" if len(ends) == 1 else "Succeeded")
    job.settle()
    assert job.pods == []


def test_an_end_is_an_end() -> None:
    """Nothing that happens to the pods, and no edit, changes a final phase."""
    job = Job(cleanPodPolicy="None")
    job.set(**dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Succeeded"))
    job.delete("learner-0")
    job.resize(collector=5)
    job.edit(suspend=True)
    job.settle()
    assert (job.phase, len(job.pods)) == ("Succeeded", 3)


def test_what_has_succeeded_is_not_run_again() -> None:
    """Also when its pod is deleted."""
    job = Job()
    job.run()
    job.set(collector_0="Succeeded")
    job.delete("collector-0")
    assert "collector-0" not in job.pods
    assert job.status["replicaStatuses"]["collector"]["completed"] == [0]
    job.set(collector_1="Succeeded", learner_0="Succeeded", evaluator_0="Succeeded")
    assert job.phase == "Succeeded"


def test_suspend_and_resume() -> None:
    """Suspended: no pods; resumed: all anew, of another generation, so that nobody of before is taken for one of now."""
    job = Job()
    job.run()
    job.edit(suspend=True)
    assert (job.phase, job.status["reason"]) == ("Running", "Suspending")
    job.settle()
    assert (job.phase, job.pods, job.count()) == ("Suspended", [], (0, 0, 1))
    job.edit(suspend=False)
    assert (job.phase, job.pods) == ("Starting", ALL)
    assert job.env("learner-0")["DI_JOB_GENERATION"] == "1"
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 0, 1))


def test_a_failure_while_the_job_is_suspended_is_none() -> None:
    """The controller died between two deletions: who was left alone may fail for want of the others."""
    job = Job(backoffLimit=0)
    job.run()
    job.world.edit("DIJob", NAME, {"spec": {"suspend": True}})
    job.world.reconcile(1)
    job.set(collector_1=("Failed", 1))
    job.settle()
    assert (job.phase, job.count()) == ("Suspended", (0, 0, 1))


# Preemptible jobs: replicas and nodes are the allocation's.


def test_without_an_allocation_a_preemptible_job_waits() -> None:
    """Pending, and it says why; not even one that nobody could place has pods."""
    job = Job(preemptible=True)
    assert (job.phase, job.status["reason"], job.pods) == ("Pending", "Unallocated", [])
    job.allocate("a")
    assert (job.phase, job.pods) == ("Pending", []), (
        "two tasks of one replica each and a collector need three"
    )


def test_a_templates_own_affinity_holds_beside_the_allocation() -> None:
    """A pod goes where one of the terms holds, so each of them asks for the node, too."""
    ssd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
    fast = {"matchExpressions": [{"key": "fast", "operator": "Exists"}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own = {"nodeAffinity": {required: {"nodeSelectorTerms": [ssd, fast]}}, "podAntiAffinity": {"kept": True}}
    learner = task("learner")
    learner["template"]["spec"]["affinity"] = own
    job = Job(learner, preemptible=True)
    job.allocate("a")

    name = [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
    assert job.pod("learner-0")["spec"]["affinity"] == {
        "nodeAffinity": {
            required: {"nodeSelectorTerms": [ssd | {"matchFields": name}, fast | {"matchFields": name}]}
        },
        "podAntiAffinity": {"kept": True},
    }


def test_an_allocation_says_how_many_and_where() -> None:
    """In the order of ranks; the collectors get what the others leave. The scheduler places them, by the node's name."""
    job = Job(preemptible=True)
    job.allocate("a", "b", "b", "c", "c")
    assert job.pods == ["collector-0", "collector-1", "collector-2", "evaluator-0", "learner-0"]
    nodes = {short: node_asked_for(job.pod(short)) for short in job.pods}
    assert nodes == {
        "learner-0": "a",
        "evaluator-0": "b",
        "collector-0": "b",
        "collector-1": "c",
        "collector-2": "c",
    }
    assert "nodeName" not in job.pod("learner-0")["spec"]
    assert job.pod("learner-0")["metadata"]["annotations"]["diengine/node"] == "a"
    resources = job.pod("learner-0")["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "1", "memory": "2Gi"}}
    job.run()
    assert (job.phase, job.status["replicas"]) == ("Running", 5)


ALLOCATIONS: list[Any] = [
    pytest.param(("a", "b", "b", "c"), ("a", "b", "b", "d"), id="another node"),
    pytest.param(("a", "b", "b", "c"), ("a", "b", "b", "c", "c"), id="more"),
    pytest.param(("a", "b", "b", "c"), ("a", "b", "b"), id="fewer"),
]


@pytest.mark.parametrize(("before", "after"), ALLOCATIONS)
def test_another_allocation_is_another_generation(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Rescheduling: all pods get time to save, all of them go, and only then those of the new generation are made."""
    job = Job(preemptible=True)
    job.allocate(*before)
    job.run()
    job.allocate(*after)
    assert (job.phase, job.count()) == ("Rescheduling", (0, 1, 1))
    assert all("deletionTimestamp" in job.pod(short)["metadata"] for short in job.pods)
    job.world.delete("Pod", f"{NAME}-learner-0")
    del job.world.objects["Pod", f"{NAME}-learner-0"]
    job.world.settle()
    assert "learner-0" not in job.pods, "the others are not gone yet"
    job.settle()
    assert len(job.pods) == len(after)
    assert {job.env(short)["DI_JOB_GENERATION"] for short in job.pods} == {"1"}
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 1))


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not yet counted"])
def test_a_failure_of_an_earlier_allocation_is_none(counted: bool) -> None:
    """Pods that are to go for another allocation fail for want of those that went before them, or of a lost node."""
    job = Job(preemptible=True, backoffLimit=0)
    job.allocate("a", "a", "b")
    job.run()
    job.world.edit("DIJob", NAME, {"status": {"allocation": ["a", "a", "c"]}})
    if counted:
        job.world.reconcile()
        job.world.reconcile(1)
    job.set(collector_0=("Failed", 1))
    job.settle()
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 1))


def test_a_failure_of_an_old_template_is_none() -> None:
    """The pod is about to be replaced anyway, as a reschedule."""
    job = Job(backoffLimit=0)
    job.run()
    tasks = make()["spec"]["tasks"]
    tasks[2]["template"]["spec"]["containers"][0]["image"] = "ding:2"
    job.world.edit("DIJob", NAME, {"spec": {"tasks": tasks}})
    job.set(evaluator_0=("Failed", 1))
    job.settle()
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 0))


def test_a_preempted_job_waits_for_nodes() -> None:
    """An empty allocation takes all pods; a new one starts the job again."""
    job = Job(preemptible=True)
    job.allocate("a", "a", "a")
    job.run()
    job.allocate()
    job.settle()
    assert (job.phase, job.status["reason"], job.pods, job.count()) == (
        "Pending",
        "Unallocated",
        [],
        (0, 1, 1),
    )
    job.allocate("b", "b", "b")
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 1))


BOTH = ["collector-0", "collector-1"]
CUTS: list[Any] = [
    pytest.param(["ab"], False, BOTH, id="fewer nodes"),
    pytest.param(["ab"], True, BOTH, id="fewer nodes, when another has just succeeded"),
    pytest.param(["", "ab"], False, BOTH, id="none, and then fewer"),
    pytest.param(
        ["", "ab"], True, ["collector-1"], id="none when another has just succeeded, which nobody saw"
    ),
]


@pytest.mark.parametrize(("allocations", "fresh", "again"), CUTS)
def test_a_job_that_is_cut_to_its_successful_replicas_goes_on(
    allocations: list[str], fresh: bool, again: list[str]
) -> None:
    """The others' work is not done: those that are left begin anew, and the job ends when they have succeeded again."""
    job = Job(task("collector", 3, minReplicas=1), preemptible=True)
    job.allocate("a", "b", "c")
    job.run()
    job.set(collector_0="Succeeded")
    job.world.set_pod(f"{NAME}-collector-1", "Succeeded", 0)
    if not fresh:
        job.world.settle()
    for nodes in allocations:
        job.allocate(*nodes)
        job.settle()
    assert (job.phase, job.pods) == ("Starting", again)
    job.run()
    assert job.phase == "Running"
    job.set(**{short.replace("-", "_"): "Succeeded" for short in again})
    assert job.phase == "Succeeded"


def test_a_job_whose_last_replica_succeeds_while_it_is_moved_has_succeeded() -> None:
    """Another node for nobody who still works changes nothing about that."""
    job = Job(task("collector", 2), preemptible=True)
    job.allocate("a", "b")
    job.run()
    job.set(collector_0="Succeeded")
    job.world.set_pod(f"{NAME}-collector-1", "Succeeded", 0)
    job.allocate("a", "c")
    assert job.phase == "Succeeded"


def test_an_allocation_beyond_the_bounds_is_used_up_to_them() -> None:
    """More nodes than maxReplicas allows are left alone."""
    job = Job(task("collector", 1, maxReplicas=2), preemptible=True)
    job.allocate("a", "b", "c")
    assert job.pods == ["collector-0", "collector-1"]


# Obstacles.


def test_a_foreign_pod_is_told() -> None:
    """A pod of a replica's name that is not the job's: NameConflict, and nothing else is made."""
    world = World()
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "atari-learner-0", "labels": {}}}
    world.add(pod | {"spec": {"containers": [{"name": "x", "image": "y"}]}})
    world.add(make())
    world.settle()
    status = world.objects["DIJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "NameConflict")
    assert "atari-learner-0" in status["message"]
    assert sum(kind == "Pod" for kind, _ in world.objects) == 1


@pytest.mark.parametrize(("name", "kind"), [("di-atari", "Service"), ("atari-di-token", "Secret")])
def test_a_foreign_service_or_secret_is_told(name: str, kind: str) -> None:
    """The other names that the job needs."""
    world = World()
    world.add({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": {}}, "spec": {}})
    world.add(make())
    world.settle()
    assert world.objects["DIJob", NAME]["status"]["reason"] == "NameConflict"
    assert not any(kind == "Pod" for kind, _ in world.objects)


def test_a_refused_pod_is_told_and_tried_again() -> None:
    """A quota: the job stays Pending with the server's words, and goes on when it is lifted."""
    world = World()
    world.refuse["atari-collector-1"] = Refusal(
        "Pod", "atari-collector-1", invalid=False, message="exceeded quota"
    )
    world.add(make())
    world.reconcile()
    status = world.objects["DIJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "CreateRefused")
    assert "exceeded quota" in status["message"]
    assert world.decide("DIJob", NAME).requeue_after == 30
    world.refuse.clear()
    world.settle()
    assert world.objects["DIJob", NAME]["status"]["phase"] == "Starting"


def test_why_a_pod_waits_is_told() -> None:
    """A pod that can't be placed: the scheduler's words stand in the job's message."""
    job = Job()
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no volume"}
    job.pod("learner-0")["status"] = {"phase": "Pending", "conditions": [told]}
    job.world.settle()
    assert "atari-learner-0: Unschedulable: no volume" in job.status["message"]


def test_a_lost_service_comes_back() -> None:
    """Without leaving the phase."""
    job = Job()
    job.run()
    del job.world.objects["Service", "di-atari"]
    job.world.settle()
    assert ("Service", "di-atari") in job.world.objects
    assert (job.phase, job.count()) == ("Running", (0, 0, 0))


def test_what_others_write_stays() -> None:
    """The allocation and the profilings of the status are not the controller's."""
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
    """One for each phase, a Warning where something was lost."""
    job = Job()
    job.run()
    job.set(collector_0=("Failed", 1))
    job.run()
    told = [(event.type, event.reason) for event in job.world.events]
    assert told == [
        ("Normal", "JobStarting"), ("Normal", "JobRunning"), ("Warning", "JobRestarting"), ("Normal", "JobStarting"),
        ("Normal", "JobRunning"),
    ]  # fmt: skip


def test_counters_by_task_and_phase() -> None:
    """`taskStatus` as upstream's users read it, replicaStatuses as all kinds have it."""
    job = Job()
    job.set(learner_0="Running", collector_0="Succeeded")
    assert job.status["taskStatus"] == {
        "learner": {"Running": 1}, "collector": {"Succeeded": 1, "Pending": 1}, "evaluator": {"Pending": 1},
    }  # fmt: skip
    collector = job.status["replicaStatuses"]["collector"]
    assert (collector["desired"], collector["ready"], collector["succeeded"]) == (2, 0, 1)
    assert collector["labelSelector"] == "diengine/job=atari,diengine/task-name=collector"
