"""How a TrainingJob ends and what it survives, row by row: `edl_workflows.core.jobs.training_job.verdict`."""

from typing import Any

import pytest

from tests.unit.core.jobs.training_jobs import FINAL, NAME, Job

ENDS: list[Any] = [
    pytest.param(
        True, {"trainer_0": "Succeeded"}, "succeeded", id="fault-tolerant: one succeeds, none is active"
    ),
    pytest.param(
        True,
        {"trainer_1": "Running", "trainer_0": "Succeeded"},
        "running",
        id="fault-tolerant: another is at work",
    ),
    pytest.param(
        True,
        {"trainer_1": "Running", "trainer_0": "Succeeded", "trainer_1_": ("Failed", 1)},
        "succeeded",
        id="fault-tolerant: the other fails after the end",
    ),
    pytest.param(
        True, {"trainer_0": "Running", "trainer_1": ("Failed", 1)}, "running", id="fault-tolerant: one fails"
    ),
    pytest.param(False, {"trainer_0": "Succeeded"}, "creating", id="fixed: one of two succeeds"),
    pytest.param(
        False, {"trainer_0": "Succeeded", "trainer_1": "Succeeded"}, "succeeded", id="fixed: all succeed"
    ),
    pytest.param(
        False, {"trainer_0": "Running", "trainer_1": ("Failed", 1)}, "failed", id="fixed: one fails"
    ),
    pytest.param(
        False,
        {"trainer_0": "Succeeded", "trainer_1": ("Failed", 139)},
        "failed",
        id="fixed: one fails after another",
    ),
    pytest.param(False, {"trainer_0": ("Failed", None)}, "failed", id="fixed: one is lost with its node"),
]


@pytest.mark.parametrize(("ft", "phases", "end"), ENDS)
def test_how_a_job_ends(ft: bool, phases: dict[str, Any], end: str) -> None:
    """A fault-tolerant job succeeds when one trainer has succeeded and none is active. Any other job ends
    when all have succeeded, or with the first failure."""
    job = Job(ft=ft, master=False, pservers=0, trainers=(2, 2))
    if ft:
        job.set(master_0="Running")
    for short, phase in phases.items():
        job.set(**{short.rstrip("_"): phase})
    assert job.phase == end


@pytest.mark.parametrize("end", [("Succeeded", None), ("Failed", 1)])
def test_a_final_phase_is_final(end: tuple[str, int | None]) -> None:
    """Later changes of the pods, the spec or the clock change neither the phase nor the reason."""
    job = Job.running(ft=False, trainers=(1, 1))
    job.set(trainer_0=end)
    before = (job.phase, job.status["reason"], job.status["completionTime"])
    assert before[0] in FINAL
    del job.world.objects["Pod", f"{NAME}-trainer-0"]
    job.world.tick(10**5)
    job.edit(trainer={"min-instance": 2, "max-instance": 3}, suspend=True)
    job.settle()
    assert (job.phase, job.status["reason"], job.status["completionTime"]) == before
    assert job.pods == []


def test_the_message_names_who_failed_how_and_with_what_words() -> None:
    """The message explains the exit code as upstream's entry script does, and has the program's last
    words."""
    job = Job.running(ft=False, trainers=(2, 2))
    job.report(trainer_1=("Failed", 139))
    ended = job.pod("trainer-1")["status"]["containerStatuses"][0]["state"]["terminated"]
    ended["message"] = "Traceback: out of range\n"
    job.world.settle()
    assert job.status["reason"] == "TrainerFailed"
    assert (
        "ctr-trainer-1 (exit code 139, segmentation fault: Traceback: out of range)" in job.status["message"]
    )
    assert job.counts("trainer")["failed"] == 1
    assert job.counts("trainer")["state"] == "failed"


def test_the_message_names_why_a_trainer_could_not_run() -> None:
    """If a node rejects a pod, the job's message gives its reason."""
    job = Job.running(ft=False, trainers=(1, 1))
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
    job.world.edit("Pod", f"{NAME}-trainer-0", {"status": refused})
    job.world.settle()
    assert f"{NAME}-trainer-0 (Unsupported, without an exit code: {said})" in job.status["message"]


def test_who_has_not_begun_when_all_is_trained_does_not_begin() -> None:
    """A trainer that can't be scheduled does not keep a job from ending when all data is trained."""
    job = Job.running(pservers=0)
    job.scale(4)
    job.set(trainer_0="Succeeded")
    job.settle()
    assert job.trainers == ["trainer-0", "trainer-1"]
    assert job.status["reason"] == "TrainersEnding"
    job.set(trainer_1="Succeeded")
    assert job.phase == "succeeded"
    assert job.records() == [(2, "True")]


def test_the_container_of_the_role_decides() -> None:
    """The exit of the role's own container decides: if the master ends while an etcd container beside it
    still runs, the master is replaced."""
    job = Job.running(pservers=0)
    before = job.uid("master-0")
    ended = {"name": "master", "state": {"terminated": {"exitCode": 1}}}
    going = {"name": "etcd", "state": {"running": {}}}
    job.pod("master-0")["status"]["containerStatuses"] = [ended, going]
    job.world.settle()
    job.settle()
    assert job.failed() == ["master-0"]
    assert job.uid("master-0") != before


CLEAN: list[Any] = [
    pytest.param(False, "Succeeded", ["trainer-0", "trainer-1"], id="success: logs stay"),
    pytest.param(False, ("Failed", 1), ["trainer-0"], id="failure: what still runs goes"),
    pytest.param(True, "Succeeded", [], id="success with autoclean"),
    pytest.param(True, ("Failed", 1), [], id="failure with autoclean"),
]


@pytest.mark.parametrize(("autoclean", "end", "left"), CLEAN)
def test_clean_up(autoclean: bool, end: Any, left: list[str]) -> None:
    """Servers and services are deleted. Pods of trainers that have ended stay, unless autoclean is set."""
    job = Job.running(ft=False, trainers=(2, 2), autoclean=autoclean)
    job.set(trainer_0=end)
    if end == "Succeeded":
        job.set(trainer_1=end)
    job.settle()
    assert job.phase in FINAL
    assert (job.pods, job.services) == (left, [])


@pytest.mark.parametrize("end", ["Succeeded", ("Failed", 1)])
def test_the_end_is_told_before_anything_goes(end: Any) -> None:
    """The final phase is written before pods are deleted, so that a controller that dies in between does not
    start the job again."""
    job = Job.running(ft=False, trainers=(1, 1), autoclean=True)
    job.report(trainer_0=end)
    actions = job.world.decide("TrainingJob", NAME)
    assert (actions.create, actions.delete) == ((), ())
    job.world.apply("TrainingJob", NAME, actions, steps=1)
    assert job.phase in FINAL
    before = job.phase
    job.settle()
    job.settle()
    assert (job.phase, job.pods, job.services) == (before, [], [])


@pytest.mark.parametrize("code", [1, 137, 139, None])
def test_a_failed_trainer_is_replaced(code: int | None) -> None:
    """In a fault-tolerant job, a failed trainer is replaced under the same name, whatever its exit code."""
    job = Job.running()
    before = job.uid("trainer-1")
    job.set(trainer_1=("Failed", code))
    job.settle()
    assert job.uid("trainer-1") != before
    assert (job.phase, job.failed()) == ("running", ["trainer-1"])


def test_a_failure_stands_in_the_status_before_its_pod_goes() -> None:
    """A failure is in the status before its pod is deleted, so that it counts once even if the controller
    dies in between."""
    job = Job.running()
    job.world.set_pod(f"{NAME}-trainer-1", "Failed", 1)
    actions = job.world.decide("TrainingJob", NAME)
    assert actions.status is not None
    assert [f["uid"] for f in actions.status["failures"]] == [job.uid("trainer-1")]
    assert actions.delete == ()


def test_a_crash_loop_slows_down() -> None:
    """A trainer's second replacement is delayed by 10 s, and its third by 20 s."""
    job = Job.running(trainers=(4, 4))
    for wait in (0, 10, 20):
        before = job.uid("trainer-1")
        job.set(trainer_1=("Failed", 1))
        if wait:
            assert job.uid("trainer-1") == before, "too early"
            assert job.world.decide("TrainingJob", NAME).requeue_after == wait
            job.world.tick(wait)
        job.settle()
        assert job.uid("trainer-1") != before


def fail(job: Job, trainer: int, times: int = 1) -> None:
    """A trainer fails so often."""
    for _ in range(times):
        if job.phase in FINAL:
            return
        job.set(**{f"trainer_{trainer}": ("Failed", 1)})
        if job.phase not in FINAL:
            job.world.tick(400)
            job.settle()
            assert "deletionTimestamp" not in job.pod(f"trainer-{trainer}")["metadata"]


BUDGETS: list[Any] = [
    pytest.param({}, [(0, 1), (1, 1)], "running", id="as many as trainers"),
    pytest.param({}, [(0, 1), (1, 2)], "failed", id="one more"),
    pytest.param({"failurePercent": 50}, [(0, 1)], "running", id="half of them"),
    pytest.param({"failurePercent": 50}, [(0, 1), (1, 1)], "failed", id="more than half"),
    pytest.param({"failurePercent": 0}, [(0, 1)], "failed", id="none allowed"),
    pytest.param({"failureWindowSeconds": 300}, [(0, 1), (1, 3)], "running", id="older ones are forgiven"),
]


@pytest.mark.parametrize(("spec", "failures", "end"), BUDGETS)
def test_budget_of_failures(spec: dict[str, Any], failures: list[tuple[int, int]], end: str) -> None:
    """More failures than failurePercent of the trainers within the window fail the job."""
    job = Job.running(**spec)
    for trainer, times in failures:
        fail(job, trainer, times)
    assert job.phase == end
    if end == "failed":
        assert job.status["reason"] == "TooManyTrainersFailed"


def test_the_budget_follows_the_live_size() -> None:
    """Three failures fail a job of two trainers, but not one that was scaled to four. Upstream compares with
    min-instance instead."""
    job = Job.running()
    job.scale(4)
    job.run_all()
    fail(job, 3, 4)
    assert job.phase == "running"
    job.scale(2)
    job.settle()
    assert job.phase == "running", "to shrink never fails a job"
    fail(job, 0, 2)
    assert job.phase == "running", "failures of trainers that are wanted no more are forgiven"
    fail(job, 1)
    assert job.phase == "failed"


def test_disruptions_count_in_no_budget() -> None:
    """A pod that is evicted or lost with its node is replaced with a delay, and does not count as a
    failure."""
    job = Job.running(failurePercent=0)
    job.world.set_pod(f"{NAME}-trainer-1", "Failed", None, reason="Evicted")
    job.world.settle()
    job.settle()
    assert job.phase == "running"
    assert job.status["failures"][0]["disrupted"] is True


TOLD_TO_END: list[Any] = [
    pytest.param({"reason": "Evicted"}, True, id="evicted"),
    pytest.param({"reason": "Terminated"}, True, id="the machine is shut down"),
    pytest.param({"reason": "Preempting"}, True, id="makes room"),
    pytest.param(
        {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, True, id="its machine is gone"
    ),
    pytest.param({"reason": "DeadlineExceeded"}, False, id="its own deadline"),
]


@pytest.mark.parametrize(("marks", "disrupted"), TOLD_TO_END)
@pytest.mark.parametrize("short", ["master-0", "pserver-1", "trainer-0"])
def test_a_program_that_ends_with_0_when_its_node_ends_it_has_not_done_its_part(
    short: str, marks: dict[str, Any], disrupted: bool
) -> None:
    """A pod that failed with exit code 0 is replaced under its name and does not count as completed. Its
    failure counts as a disruption only if the pod's status says so."""
    job = Job.running(trainers=(1, 1))
    before = job.uid(short)
    job.report(**{short.replace("-", "_"): ("Failed", 0)})
    job.pod(short)["status"] |= marks
    job.world.settle()
    job.settle()
    assert job.uid(short) != before
    assert (job.phase, job.status["reason"], job.failed()) == ("running", "JobRunning", [short])
    assert job.status["failures"][0]["disrupted"] is disrupted
    assert job.counts(short.partition("-")[0])["completed"] == []


@pytest.mark.parametrize(("ft", "percent"), [(False, 100), (True, 0)])
def test_the_message_names_why_a_node_ended_a_pod(ft: bool, percent: int) -> None:
    """The message has the reason why a node ended a pod, since its exit code of 0 alone would be no
    failure."""
    job = Job.running(ft=ft, trainers=(2, 2), failurePercent=percent)
    job.world.set_pod(f"{NAME}-trainer-1", "Failed", 0, reason="DeadlineExceeded")
    job.world.settle()
    assert job.phase == "failed"
    assert "ctr-trainer-1 (DeadlineExceeded, exit code 0)" in job.status["message"]


def test_what_ends_beside_a_program_that_is_done_changes_nothing() -> None:
    """If a container beside the program fails after the program has succeeded, the pod is Failed without a
    reason, but the program counts as done."""
    job = Job.running(ft=False, master=False, pservers=0, trainers=(1, 1))
    job.set(trainer_0=("Failed", 0))
    assert job.phase == "succeeded"


def test_servers_have_a_budget_of_their_own() -> None:
    """Masters and pservers are replaced at most backoffLimit times within the window (upstream replaces them
    without a limit and without a message)."""
    job = Job.running(backoffLimit=1)
    job.set(pserver_0=("Failed", 137))
    job.settle()
    assert (job.phase, job.pods[1]) == ("running", "pserver-0")
    job.set(pserver_0="Running")
    job.set(master_0=("Failed", 1))
    assert (job.phase, job.status["reason"]) == ("failed", "BackoffLimitExceeded")
    assert "ctr-master-0 (exit code 1, general error)" in job.status["message"]


def test_a_lost_pserver_is_ready_before_further_trainers_begin() -> None:
    """A lost pserver must be ready again before further trainers start."""
    job = Job.running()
    del job.world.objects["Pod", f"{NAME}-pserver-0"]
    del job.world.objects["Pod", f"{NAME}-trainer-0"]
    job.settle()
    assert job.pods == ["master-0", "pserver-0", "pserver-1", "trainer-1"]
    job.set(pserver_0="Running")
    assert "trainer-0" in job.pods


def test_deleted_pods_and_services_come_back_uncounted() -> None:
    """Pods and services that disappear while the job runs are created again under the same names, in both
    modes."""
    for ft in (True, False):
        job = Job.running(ft=ft, trainers=(2, 2))
        before = job.uid("trainer-1")
        job.world.delete("Pod", f"{NAME}-trainer-1")
        del job.world.objects["Service", f"{NAME}-pserver-1"]
        job.settle()
        assert job.uid("trainer-1") != before
        assert "pserver-1" in job.services
        assert (job.phase, job.failed()) == ("running", [])


def test_a_trainer_that_ends_with_0_because_it_was_told_to_has_not_succeeded() -> None:
    """A trainer whose pod is being deleted is created again, and the job continues."""
    job = Job.running(trainers=(1, 1))
    job.world.delete("Pod", f"{NAME}-trainer-0")
    pod = job.pod("trainer-0")
    pod["status"] = {"phase": "Succeeded"}
    job.world.settle()
    assert job.phase == "running"
    job.settle()
    assert job.trainers == ["trainer-0"]
