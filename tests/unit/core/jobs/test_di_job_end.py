"""How a DIJob ends, is cleaned up, suspended and resumed: `edl_workflows.core.jobs.di_job.reconcile`."""

from typing import Any

import pytest

from tests.unit.core.jobs.di_jobs import NAME, Job

ALL = ["collector-0", "collector-1", "evaluator-0", "learner-0"]


CLEAN: list[Any] = [
    pytest.param("Running", ["collector-0", "learner-0"], id="Running: what has ended stays"),
    pytest.param("All", [], id="All"),
    pytest.param("None", ["collector-0", "collector-1", "evaluator-0", "learner-0"], id="None"),
]


@pytest.mark.parametrize(("policy", "left"), CLEAN)
def test_clean_up(policy: str, left: list[str]) -> None:
    """The cleanPodPolicy decides which pods stay. The service is deleted under each policy, and the counters
    say that nothing runs."""
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
    """A final phase is written before pods are deleted, so that a controller that dies in between does not
    run the job again."""
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
    """No change of the pods and no edit of the spec changes a final phase."""
    job = Job(cleanPodPolicy="None")
    job.set(**dict.fromkeys(("learner_0", "collector_0", "collector_1", "evaluator_0"), "Succeeded"))
    job.delete("learner-0")
    job.resize(collector=5)
    job.edit(suspend=True)
    job.settle()
    assert (job.phase, len(job.pods)) == ("Succeeded", 3)


def test_what_has_succeeded_is_not_run_again() -> None:
    """A replica that has succeeded is not started again, even if its pod is deleted."""
    job = Job()
    job.run()
    job.set(collector_0="Succeeded")
    job.delete("collector-0")
    assert "collector-0" not in job.pods
    assert job.status["replicaStatuses"]["collector"]["completed"] == [0]
    job.set(collector_1="Succeeded", learner_0="Succeeded", evaluator_0="Succeeded")
    assert job.phase == "Succeeded"


def test_suspend_and_resume() -> None:
    """A suspended job has no pods. A resumed job creates all of them again as the next generation, so that no
    old pod is mistaken for a new one."""
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
    """If the controller dies between two deletions, the remaining pods may fail for lack of the others; this
    counts as no failure."""
    job = Job(backoffLimit=0)
    job.run()
    job.world.edit("DIJob", NAME, {"spec": {"suspend": True}})
    job.world.reconcile(1)
    job.set(collector_1=("Failed", 1))
    job.settle()
    assert (job.phase, job.count()) == ("Suspended", (0, 0, 1))


# Preemptible jobs: replicas and nodes are the allocation's.
