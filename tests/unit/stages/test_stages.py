"""Stages against a real API server: they may begin any number of times, and touch only what is theirs."""

import asyncio
import time
from typing import Any
from unittest.mock import Mock

import pytest

from edl_workflows.exceptions import (
    ConflictError,
    InvalidError,
    JobDisappearedError,
    JobFailedError,
    ManifestError,
    NotFoundError,
    PlanFailedError,
    QueueTimeoutError,
    StageTimeoutError,
    UnavailableError,
)
from edl_workflows.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster, ClusterSource
from edl_workflows.kube.resources import ELASTIC_JOBS, SCALE_PLANS
from edl_workflows.stages import driver, ownership
from edl_workflows.stages.catalog import STAGES, stage_of
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import StageIdentity
from edl_workflows.stages.outputs import Outputs
from edl_workflows.stages.results import Done, Failed, InProgress, Skipped
from tests.airflow.support import StandIn, create_ps_pod, elastic_job, eventually, jobs, plans

ME = StageIdentity("airflow/dag/run/task/-1")
RETRY = StageIdentity(ME.owner, attempt="2")
CLEARED = StageIdentity(ME.owner, attempt="2", rerun=True)


def run(
    cluster: Cluster, stage: str, who: StageIdentity = ME, seconds: float = 30, **request: Any
) -> Outputs:
    """One stage from its beginning to its goal."""
    found = stage_of(stage)
    return driver.run_stage(cluster, found, found.request.of(request), who, time.time() + seconds)


def begin(cluster: Cluster, stage: str, who: StageIdentity = ME, **request: Any) -> Handle:
    """Only its beginning."""
    found = stage_of(stage)
    return found.begin(cluster, found.request.of(request), who)


def test_submit_waits_until_the_job_has_succeeded(cluster: Cluster, stand_in: StandIn) -> None:
    """Outputs say where the job ended and what it left."""
    outputs = run(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))

    assert (outputs.name, outputs.phase, outputs.step) == ("mnist", "Succeeded", 100)
    assert outputs.checkpoint is not None
    assert outputs.checkpoint.uri == "/ck/100"


def test_a_job_without_a_name_is_named_after_the_task(cluster: Cluster) -> None:
    """The name is the same however often the stage begins, and so is the job."""
    handles = [
        begin(cluster, "submit", who, manifest=elastic_job(None), hint="dag-task")
        for who in (ME, RETRY, RETRY)
    ]

    assert len({handle.uid for handle in handles}) == len(jobs(cluster)) == 1
    assert handles[0].name.startswith("dag-task-")


def test_a_foreign_job_of_that_name_is_an_error(cluster: Cluster) -> None:
    """Neither what users made by hand nor what another run made is adopted."""
    client.create(cluster, elastic_job("mnist"))
    begin(cluster, "submit", StageIdentity("airflow/dag/other/task/-1"), manifest=elastic_job("other"))

    with pytest.raises(ConflictError, match="was not created by a pipeline; choose another name"):
        begin(cluster, "submit", manifest=elastic_job("mnist"))
    with pytest.raises(ConflictError, match="belongs to airflow/dag/other/task/-1"):
        begin(cluster, "submit", manifest=elastic_job("other"))


def test_a_wrong_manifest_makes_nothing(cluster: Cluster) -> None:
    """The message names the field; the cluster stays as it was."""
    manifest = elastic_job("mnist")
    manifest["spec"]["replicaSpec"] = manifest["spec"]["replicaSpecs"]

    with pytest.raises(ManifestError, match=r"spec\.replicaSpec: unknown field; did you mean 'replicaSpecs'"):
        begin(cluster, "submit", manifest=manifest)
    assert not jobs(cluster)


@pytest.mark.parametrize(
    ("ended", "who", "same"),
    [
        ("Failed", ME, True),  # this attempt's own result
        ("Failed", RETRY, False),
        ("Succeeded", RETRY, True),  # the attempt before died before it could say so
        ("Succeeded", CLEARED, False),
    ],
)
def test_what_a_later_attempt_does_with_a_finished_job(
    cluster: Cluster, stand_in: StandIn, ended: str, who: StageIdentity, same: bool
) -> None:
    """A failed job is replaced, a result that was never delivered is used, one that was is history."""
    first = begin(cluster, "submit", manifest=elastic_job("mnist", ends=ended))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == ended, ended)

    second = begin(cluster, "submit", who, manifest=elastic_job("mnist"))

    assert (second.uid == first.uid) is same


def test_a_failed_job_fails_the_stage(cluster: Cluster, stand_in: StandIn) -> None:
    """The error has the controller's reason."""
    with pytest.raises(JobFailedError, match="TestSaysSo"):
        run(cluster, "submit", manifest=elastic_job("mnist", ends="Failed"))


def test_a_job_deleted_by_somebody_else_fails_the_stage(cluster: Cluster) -> None:
    """The stage fails whether or not there is a new job of the same name."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.delete(cluster, ELASTIC_JOBS, "mnist")

    result = driver.wait_for_goal(ClusterSource.of(cluster), handle, time.time() + 30)

    assert isinstance(result, Failed)
    assert isinstance(result.error, JobDisappearedError)


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_outage_does_not_end_a_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, in_loop: bool
) -> None:
    """Neither while it watches nor while it makes sure that a job is gone."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    outage, find = iter(range(3)), client.find

    def look(*args: Any) -> Any:
        if next(outage, None) is not None:
            raise UnavailableError("the server does not answer")
        return find(*args)

    monkeypatch.setattr(client, "find", look)
    monkeypatch.setattr(driver, "RETRY_SECONDS", 0.01)
    source, deadline = ClusterSource.of(cluster), time.time() + 30
    if in_loop:
        result: Any = asyncio.run(driver.await_goal(source, handle, deadline))
    else:
        result = driver.wait_for_goal(source, handle, deadline)

    assert isinstance(result.error, JobDisappearedError)
    assert next(outage, None) is None


def test_a_deadline_ends_the_wait_and_says_where_the_job_stood(cluster: Cluster, stand_in: StandIn) -> None:
    """Blocking and in an event loop alike."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    source = ClusterSource.of(cluster)

    blocking = driver.wait_for_goal(source, handle, time.time() + 1)
    in_loop = asyncio.run(driver.await_goal(source, handle, time.time() + 1))

    for result in (blocking, in_loop):
        assert isinstance(result, Failed)
        assert isinstance(result.error, StageTimeoutError)
        assert "is Running" in str(result.error)


def test_a_wait_in_vain_for_a_controller_says_so(cluster: Cluster, stand_in: StandIn) -> None:
    """A job that no controller has looked at when the time is over: the error names the controller, not the
    phase, whichever of the two deadlines has passed."""
    stand_in.idle = True
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    source, now = ClusterSource.of(cluster), time.time()

    results: list[Any] = [
        driver.wait_for_goal(source, handle, now + 1),
        driver.wait_for_goal(source, handle, queue_deadline=now + 1),
        driver.check_now(cluster, handle, now - 1),
    ]

    assert [type(one.error) for one in results] == [StageTimeoutError, QueueTimeoutError, QueueTimeoutError]
    assert all("it has no status: no controller has observed it" in str(one.error) for one in results)


def test_a_single_look_names_the_controller_that_does_not_answer(
    cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an Argo step that does not wait: an old job without a status is told as such, a new one is
    Pending."""
    stand_in.idle = True
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))

    new = driver.check_now(cluster, handle)
    monkeypatch.setattr(driver, "PROGRESS_SECONDS", -60.0)
    old = driver.check_now(cluster, handle)

    assert isinstance(new, InProgress)
    assert isinstance(old, InProgress)
    assert new.message == "is Pending"
    assert old.message.startswith("has no status: no controller has observed it in ")


def test_a_job_that_stays_queued_is_failed_with_what_it_waits_for(
    cluster: Cluster, stand_in: StandIn
) -> None:
    """Blocking, in an event loop and by a single look; a job that does not exist yet has not run either."""
    stand_in.idle = True
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    absent = begin(cluster, "wait", name="absent")
    reason = {
        "phase": "Running",
        "reason": "JobRunning",
        "message": "mnist-edljob-worker-0: Unschedulable: no cpu",
    }
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", reason)
    source, now = ClusterSource.of(cluster), time.time()

    results = [
        driver.wait_for_goal(source, handle, queue_deadline=now),
        asyncio.run(driver.await_goal(source, handle, queue_deadline=now)),
        driver.check_now(cluster, handle, queue_deadline=now),
    ]
    missing = driver.wait_for_goal(source, absent, queue_deadline=now)

    for result in results:
        assert isinstance(result, Failed)
        assert isinstance(result.error, QueueTimeoutError)
        assert "worker-0: Unschedulable: no cpu" in str(result.error)
    assert isinstance(missing, Failed)
    assert "does not exist yet" in str(missing.error)


def test_a_job_that_has_run_has_left_the_queue(cluster: Cluster, stand_in: StandIn) -> None:
    """Its time in the queue is not limited any more, whatever becomes of it."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("progress"), "that the job runs")
    source, queue_deadline = ClusterSource.of(cluster), time.time() - 1

    assert isinstance(driver.check_now(cluster, handle, queue_deadline), InProgress)
    blocking = driver.wait_for_goal(
        source, handle, notify=lambda _line: stand_in.end("mnist"), queue_deadline=queue_deadline
    )
    in_loop = asyncio.run(driver.await_goal(source, handle, queue_deadline=queue_deadline))

    assert isinstance(blocking, Done)
    assert isinstance(in_loop, Done)


def test_an_outage_does_not_end_the_time_in_the_queue(
    cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an outage it is unknown whether the job runs; the answer after the outage decides."""
    stand_in.idle = True
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    wait = driver.GoalWait(handle, queue_deadline=time.time())
    unavailable = UnavailableError("the server does not answer")
    with monkeypatch.context() as outage:
        outage.setattr(client, "find", Mock(side_effect=unavailable))
        assert wait.overdue(ClusterSource.of(cluster), unavailable) is None
        assert wait.seconds_left
    monkeypatch.setattr(wait, "_queue_end", time.time())

    assert isinstance(wait.overdue(ClusterSource.of(cluster), None), Failed)


def test_the_event_loop_and_the_thread_reach_the_same_goal(cluster: Cluster, stand_in: StandIn) -> None:
    """The driver in a thread and the one in an event loop end with the same result."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))
    source = ClusterSource.of(cluster)

    in_loop = asyncio.run(driver.await_goal(source, handle, time.time() + 30))

    assert isinstance(in_loop, Done)
    assert in_loop == driver.wait_for_goal(source, handle, time.time() + 30)


@pytest.mark.parametrize(
    "wanted",
    [{"phases": ["Running"]}, {"step": "100"}, {"condition": "Ready"}, {"phases": ["Running"], "step": 100}],
    ids="+".join,
)
def test_wait_for_a_job_that_comes_later(cluster: Cluster, stand_in: StandIn, wanted: dict[str, Any]) -> None:
    """A phase, a step or a condition of a job that somebody else makes."""
    handle = begin(cluster, "wait", name="mnist", **wanted)
    assert isinstance(driver.check_now(cluster, handle), InProgress)
    client.create(cluster, elastic_job("mnist"))

    result = driver.wait_for_goal(ClusterSource.of(cluster), handle, time.time() + 30)

    assert isinstance(result, Done)
    assert result.outputs.step == 100


def test_suspend_and_resume(cluster: Cluster, stand_in: StandIn) -> None:
    """Each waits until the controller has seen the change."""
    client.create(cluster, elastic_job("mnist"))

    assert run(cluster, "suspend", name="mnist").phase == "Suspended"
    assert run(cluster, "suspend", name="mnist").phase == "Suspended"
    assert run(cluster, "resume", name="mnist").phase == "Running"


CHANGES: dict[str, dict[str, Any]] = {
    "suspend": {"name": "mnist"},
    "resume": {"name": "mnist"},
    "autoscale": {"name": "mnist"},
    "plan-scale": {"name": "mnist"},
    "scale": {"job": "mnist", "replicas": {"worker": {"replicas": 3}}},
    "migrate-ps": {"job": "mnist", "replicas": 3},
    "checkpoint": {"job": "mnist"},
    "apply-plan": {"job": "mnist", "plan": {"replicas": {"worker": {"replicas": 3}}}},
}
"""Each stage that changes a job, or asks for its plan."""


def test_a_finished_job_is_neither_suspended_nor_changed(cluster: Cluster, stand_in: StandIn) -> None:
    """No change creates or edits anything; the caller chooses what it comes to."""
    run(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))

    before = jobs(cluster)["mnist"]

    for stage, values in CHANGES.items():
        for choice, expected in (("skip", Skipped), ("succeed", Done), ("fail", Failed)):
            handle = begin(cluster, stage, **values, if_finished=choice)
            result = driver.check_now(cluster, handle)
            assert type(result) is expected, (stage, choice, result)
    assert not plans(cluster)
    assert jobs(cluster)["mnist"] == before


def test_scale_makes_one_manual_plan_owned_by_the_job(cluster: Cluster, stand_in: StandIn) -> None:
    """However often it begins; with the job the plan goes."""
    job = client.create(cluster, elastic_job("mnist"))
    request: dict[str, Any] = {
        "job": "mnist",
        "replicas": {"worker": {"replicas": "3", "resource": {"cpu": 2}}},
    }

    outputs = [run(cluster, "scale", who, **request) for who in (ME, RETRY)]

    assert outputs[0] == outputs[1]
    assert (outputs[0].job, outputs[0].phase) == ("mnist", "Succeeded")
    (plan,) = plans(cluster).values()
    assert plan["metadata"]["labels"] == {"elasticjob.dlrover/name": "mnist", "scale-type": "manual"}
    assert plan["spec"]["replicaResourceSpecs"] == {"worker": {"replicas": 3, "resource": {"cpu": "2"}}}
    assert plan["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_checkpoint_says_where_it_is(cluster: Cluster, stand_in: StandIn) -> None:
    """A plan that asks for nothing but a checkpoint."""
    client.create(cluster, elastic_job("mnist"))

    outputs = run(cluster, "checkpoint", job="mnist")

    assert outputs.checkpoint is not None
    assert (outputs.checkpoint.uri, outputs.checkpoint.step) == ("/ck/120", 120)


def test_migration_names_the_pods_that_hold_the_ranks(cluster: Cluster, stand_in: StandIn) -> None:
    """Users speak of ranks; plans of pods."""
    client.create(cluster, elastic_job("mnist"))
    create_ps_pod(cluster, "mnist", node_id=7, rank=0)

    outputs = run(cluster, "migrate-ps", job="mnist", replicas=3, migrate={"0": {"cpu": "2"}})

    assert (outputs.resumed_step, outputs.stall_seconds) == (121, 0.5)
    (plan,) = plans(cluster).values()
    assert plan["spec"]["migratePods"][0]["name"] == "mnist-edljob-ps-7"
    assert plan["spec"]["replicaResourceSpecs"]["ps"]["replicas"] == 3


def test_migration_can_be_followed_in_two_steps(cluster: Cluster, stand_in: StandIn) -> None:
    """One wait ends when the new servers are ready, the next when training continues on them."""
    client.create(cluster, elastic_job("mnist"))
    stand_in.hold = ScalePlanPhase.RESTARTING

    begun = run(cluster, "migrate-ps", job="mnist", replicas=3, until="Restarting")
    stand_in.hold = ScalePlanPhase.SUCCEEDED
    done = run(cluster, "wait-plan", name=begun.name)

    assert (begun.phase, done.phase) == ("Restarting", "Succeeded")


def test_a_plan_that_fails_fails_the_stage_and_a_retry_makes_another(
    cluster: Cluster, stand_in: StandIn
) -> None:
    """The job went on with its old servers; the next attempt tries anew."""
    client.create(cluster, elastic_job("mnist"))
    stand_in.fail = True
    with pytest.raises(PlanFailedError, match="StepTimeout: rolled back; the job goes on as before"):
        run(cluster, "migrate-ps", job="mnist", replicas=3)

    stand_in.fail = False
    assert run(cluster, "migrate-ps", RETRY, job="mnist", replicas=3).phase == "Succeeded"


@pytest.mark.parametrize(
    ("stage", "request_", "error", "says"),
    [
        ("scale", {"job": "absent", "replicas": {"worker": {"replicas": 1}}}, NotFoundError, "absent"),
        (
            "scale",
            {"job": "mnist", "replicas": {"chief": {"replicas": 1}}},
            ManifestError,
            "replicas.chief: the job has no such role",
        ),
        (
            "scale",
            {"job": "mnist", "replicas": {"worker": {"replica": 1}}},
            ManifestError,
            "replicas.worker.replica",
        ),
        (
            "migrate-ps",
            {"job": "mnist", "migrate": {5: {"cpu": "1"}}},
            ManifestError,
            "migrate.5: no parameter server of this rank",
        ),
        ("migrate-ps", {"job": "mnist"}, ManifestError, "there is nothing to do"),
        ("suspend", {"name": "absent"}, NotFoundError, "absent"),
        ("wait", {"name": ""}, ManifestError, "name"),
        ("submit", {"manifest": {"kind": "Elasticjob"}}, InvalidError, "no kind of this package"),
        (
            "submit",
            {"manifest": {"kind": "ScalePlan", "metadata": {"name": "x"}}},
            InvalidError,
            "is not a job",
        ),
    ],
)
def test_wrong_requests_get_one_clear_error(
    cluster: Cluster, stage: str, request_: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error names the argument, and nothing is created."""
    client.create(cluster, elastic_job("mnist"))

    with pytest.raises(error, match=says):
        begin(cluster, stage, **request_)
    assert not plans(cluster)
    assert len(jobs(cluster)) == 1


def test_delete_waits_until_the_job_is_gone(cluster: Cluster) -> None:
    """A job that does not exist counts as deleted."""
    client.create(cluster, elastic_job("mnist"))

    run(cluster, "delete", name="mnist")
    run(cluster, "delete", name="mnist")

    assert not jobs(cluster)


def test_collect_tells_what_is(cluster: Cluster, stand_in: StandIn) -> None:
    """`collect` returns the job's present state without waiting."""
    client.create(cluster, elastic_job("mnist"))
    eventually(lambda: jobs(cluster)["mnist"].get("status"), "a status")

    assert run(cluster, "collect", name="mnist").phase == "Running"


def test_cancel_deletes_what_the_stage_made(cluster: Cluster) -> None:
    """Once; the second time there is nothing to do."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert ownership.cancel_object(cluster, handle)
    assert not ownership.cancel_object(cluster, handle)
    assert not jobs(cluster)


def test_cancel_can_suspend_instead(cluster: Cluster) -> None:
    """The data position and the checkpoints stay."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert ownership.cancel_object(cluster, handle, "suspend")
    assert jobs(cluster)["mnist"]["spec"]["suspend"] is True


def test_a_retry_resumes_what_a_cancellation_suspended(cluster: Cluster) -> None:
    """Else it would wait for a job that has no pods; what somebody else suspended stays suspended."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    ownership.cancel_object(cluster, handle, "suspend")
    begin(cluster, "submit", RETRY, manifest=elastic_job("mnist"))
    assert jobs(cluster)["mnist"]["spec"]["suspend"] is False

    handle = begin(cluster, "submit", manifest=elastic_job("other"))
    client.patch(cluster, ELASTIC_JOBS, "other", {"spec": {"suspend": True}})
    ownership.cancel_object(cluster, handle, "suspend")
    begin(cluster, "submit", RETRY, manifest=elastic_job("other"))
    assert jobs(cluster)["other"]["spec"]["suspend"] is True


def test_a_goal_that_was_reached_in_time_is_no_timeout(cluster: Cluster, stand_in: StandIn) -> None:
    """Also where nobody looked until the deadline had passed, as after a triggerer that was down."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Succeeded", "success")
    source, past = ClusterSource.of(cluster), time.time() - 1

    assert isinstance(driver.wait_for_goal(source, handle, past), Done)
    assert isinstance(asyncio.run(driver.await_goal(source, handle, past)), Done)


def test_a_plan_is_no_job_to_wait_for(cluster: Cluster) -> None:
    """The error names the stage that waits for plans."""
    with pytest.raises(InvalidError, match="wait-plan"):
        begin(cluster, "wait", name="mnist", kind="ScalePlan")


def test_a_late_cancel_of_an_earlier_attempt_touches_nothing(cluster: Cluster) -> None:
    """Airflow kills the trigger of a cleared task after its next attempt may have begun."""
    first = begin(cluster, "submit", manifest=elastic_job("mnist"))
    begin(cluster, "submit", RETRY, manifest=elastic_job("mnist"))

    assert not ownership.cancel_object(cluster, first)
    assert "mnist" in jobs(cluster)


def test_cancel_leaves_a_finished_job_and_a_successor_alone(cluster: Cluster, stand_in: StandIn) -> None:
    """A result is nothing to cancel, and neither is what came later under the name."""
    finished = begin(cluster, "submit", manifest=elastic_job("done", ends="Succeeded"))
    eventually(lambda: jobs(cluster)["done"].get("status", {}).get("phase") == "Succeeded", "success")
    old = begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert not ownership.cancel_object(cluster, finished)
    assert not ownership.cancel_object(cluster, old)
    assert set(jobs(cluster)) == {"done", "mnist"}


def test_a_plan_is_withdrawn_only_before_its_first_step(cluster: Cluster) -> None:
    """A migration under way ends by itself, in the new cluster or the old."""
    client.create(cluster, elastic_job("mnist"))
    pending = begin(cluster, "migrate-ps", job="mnist", replicas=3)
    under_way = begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    client.patch_status(cluster, SCALE_PLANS, under_way.name, {"phase": "Scaling"})

    assert ownership.cancel_object(cluster, pending)
    assert not ownership.cancel_object(cluster, under_way)
    assert set(plans(cluster)) == {under_way.name}


def test_a_plan_can_only_be_withdrawn(cluster: Cluster) -> None:
    """A killed task that suspends what it made withdraws a pending plan: a plan has nothing to suspend."""
    client.create(cluster, elastic_job("mnist"))
    pending = begin(cluster, "migrate-ps", job="mnist", replicas=3)

    assert ownership.cancel_object(cluster, pending, "suspend")
    assert plans(cluster) == {}


def test_every_stage_is_found_by_its_name() -> None:
    """An unknown name is an error that lists the stages."""
    assert all(stage_of(stage.name) is stage for stage in STAGES)
    with pytest.raises(InvalidError, match="stages are submit, wait"):
        stage_of("submitt")


MINE = "argo/default/train/1f0e/"


def _submitted_by(cluster: Cluster, owner: str) -> Handle:
    return begin(cluster, "submit", StageIdentity(f"{owner}train.submit"), manifest=elastic_job("mnist"))


@pytest.mark.parametrize("action", ["delete", "suspend"])
def test_cancel_ends_a_job_of_its_own_pipeline(cluster: Cluster, stand_in: StandIn, action: str) -> None:
    """And waits until it has ended; once more it does nothing."""
    _submitted_by(cluster, MINE)

    for _ in range(2):
        run(cluster, "cancel", name="mnist", owner=MINE, action=action)

        left = client.find(cluster, ELASTIC_JOBS, "mnist")
        assert (left is None) == (action == "delete")
        assert left is None or left["status"]["phase"] == "Suspended"


@pytest.mark.parametrize(("owner", "action"), [("argo/default/train/other/", "delete"), (MINE, "keep")])
def test_cancel_leaves_what_is_not_to_be_touched(
    cluster: Cluster, stand_in: StandIn, owner: str, action: str
) -> None:
    """A job of another workflow, of which only the uid differs; and any job where the policy says so."""
    before = _submitted_by(cluster, MINE)

    run(cluster, "cancel", name="mnist", owner=owner, action=action)

    job = client.get(cluster, ELASTIC_JOBS, "mnist")
    assert (job["metadata"]["uid"], job["spec"].get("suspend", False)) == (before.uid, False)


def test_cancel_leaves_what_has_ended_or_is_absent(cluster: Cluster, stand_in: StandIn) -> None:
    """A job that has ended can still be looked at; there is no error where there is none."""
    run(cluster, "submit", StageIdentity(f"{MINE}a"), manifest=elastic_job("mnist", ends="Succeeded"))

    assert run(cluster, "cancel", name="mnist", owner=MINE).phase == "Succeeded"
    assert run(cluster, "cancel", name="absent", owner=MINE).phase == ""
