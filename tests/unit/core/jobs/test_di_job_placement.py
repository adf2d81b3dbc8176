"""A preemptible DIJob follows its allocation: `edl_workflows.core.jobs.di_job.reconcile`."""

from typing import Any

import pytest

from tests.cases.kinds.di_job import make_di_job, task
from tests.unit.core.jobs.di_jobs import NAME, Job, node_asked_for


def test_without_an_allocation_a_preemptible_job_waits() -> None:
    """A preemptible job without an allocation, or with an impossible one, is Pending and has no pods. Without
    an allocation, it says so."""
    job = Job(preemptible=True)
    assert (job.phase, job.status["reason"], job.pods) == ("Pending", "Unallocated", [])
    job.allocate("a")
    assert (job.phase, job.pods) == ("Pending", []), (
        "two tasks of one replica each and a collector need three"
    )


def test_a_templates_own_affinity_holds_beside_the_allocation() -> None:
    """Terms of a pod's affinity are alternatives, so each of them also requires the allocated node."""
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
    """Replicas get the nodes of the allocation in the order of their ranks, collectors last. The scheduler
    still binds the pods."""
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
    """Under another allocation, all pods get time to save and are deleted; the pods of the new generation are
    created only when all are gone."""
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
    """Failures of pods that are being deleted for another allocation do not count, since they may be caused
    by lost peers or a lost node."""
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
    """A pod of an old template that fails does not count as failed, since it is about to be replaced."""
    job = Job(backoffLimit=0)
    job.run()
    tasks = make_di_job()["spec"]["tasks"]
    tasks[2]["template"]["spec"]["containers"][0]["image"] = "ding:2"
    job.world.edit("DIJob", NAME, {"spec": {"tasks": tasks}})
    job.set(evaluator_0=("Failed", 1))
    job.settle()
    job.run()
    assert (job.phase, job.count()) == ("Running", (0, 1, 0))


def test_a_preempted_job_waits_for_nodes() -> None:
    """An empty allocation removes all pods of a job; a new one starts the job again."""
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
    """An allocation reduces the job to replicas that had succeeded. The work of the removed ones is not done,
    so the remaining replicas start again, and the job ends when they succeed again."""
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
    """If the last running replica succeeds while an allocation would move it, the job has succeeded."""
    job = Job(task("collector", 2), preemptible=True)
    job.allocate("a", "b")
    job.run()
    job.set(collector_0="Succeeded")
    job.world.set_pod(f"{NAME}-collector-1", "Succeeded", 0)
    job.allocate("a", "c")
    assert job.phase == "Succeeded"


def test_an_allocation_beyond_the_bounds_is_used_up_to_them() -> None:
    """Of an allocation with more nodes than maxReplicas, only maxReplicas nodes are used."""
    job = Job(task("collector", 1, maxReplicas=2), preemptible=True)
    job.allocate("a", "b", "c")
    assert job.pods == ["collector-0", "collector-1"]


# Obstacles.
