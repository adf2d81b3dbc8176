"""What failures of a DIJob's pods entail: `edl_workflows.core.jobs.di_job.reconcile`."""

from typing import Any

import pytest

from tests.unit.core.jobs.di_jobs import NAME, Job

ALL = ["collector-0", "collector-1", "evaluator-0", "learner-0"]


# What a pod's end means: phase, exit code, reason -> counted as (restarts, reschedules).
ENDS: list[Any] = [
    pytest.param(("Failed", 1), (1, 0), id="a failed program"),
    pytest.param(("Failed", 137), (1, 0), id="killed, or out of memory"),
    pytest.param(("Failed", 143), (1, 0), id="a SIGTERM that nobody who runs the job sent"),
    pytest.param(("Failed", 143, "Evicted"), (0, 1), id="told to end by an eviction"),
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
    """A failure counts as a restart, and any other end of a pod as a rescheduling. In both cases only that
    pod is replaced, with its rank."""
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


def test_the_message_names_why_a_replica_could_not_run() -> None:
    """If a node rejects a pod for a reason that holds on any node, the job fails, and its message gives the
    reason. A pod that this node has no room for is replaced."""
    job = Job()
    job.run()
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    full = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: no room"}
    job.world.edit("Pod", f"{NAME}-collector-1", {"status": full})
    job.world.settle()
    assert job.phase == "Rescheduling"
    assert f"{NAME}-collector-1 (OutOfcpu, without an exit code: Pod was rejected" in job.status["message"]
    refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
    job.world.edit("Pod", f"{NAME}-collector-1", {"status": refused})
    job.world.settle()
    assert job.phase == "Failed"
    assert f"{NAME}-collector-1 (Unsupported, without an exit code: {said}" in job.status["message"]


def test_a_deleted_pod_comes_back() -> None:
    """A deleted pod is a reschedule, which is counted while the pod is still ending. Its name is used again
    only when it is free."""
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
    """The exit code of a pod that is being deleted does not count."""
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
    """If an init container fails, the other containers have no exit code, but the pod counts as failed."""
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
    """Without backoffLimit, the limit is upstream's default of three restarts."""
    job = Job()
    for _ in range(4):
        job.run()
        job.world.tick(1000)
        job.set(learner_0=("Failed", 1))
        job.world.tick(1000)
        job.settle()
    assert (job.phase, job.status["restarts"]) == ("Failed", 3)


def test_failures_at_once_are_one_restart() -> None:
    """If a learner fails and its collectors with it, all failures before every replica has a pod again count
    as one restart."""
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
    """If the new pod of a replica fails before its restart is over, this counts as another failure, so that
    the job does not restart for ever."""
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
    """A failed pod is deleted only after its restart is counted in the status, so that a controller that dies
    in between counts it once."""
    job = Job()
    job.run()
    job.world.set_pod(f"{NAME}-learner-0", "Failed", 1)
    actions = job.world.decide("DIJob", NAME)
    assert not actions.delete
    assert actions.status is not None
    assert actions.status["restarts"] == 1


def test_a_crash_loop_slows_down() -> None:
    """A pod is replaced at once after its first failure, 10 s after the second and 20 s after the third.
    After 10 minutes without a failure, the delays start again."""
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
    """A pod that the kubelet rejects is replaced after a delay; otherwise it would be created in an endless
    loop."""
    job = Job()
    before = job.uid("learner-0")
    job.set(learner_0=("Failed", None, "OutOfcpu"))
    assert job.uid("learner-0") == before
    assert job.world.decide("DIJob", NAME).requeue_after == 10
    job.world.tick(10)
    job.settle()
    assert job.uid("learner-0") != before
