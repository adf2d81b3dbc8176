"""Waiting for the goal of a stage: outages, deadlines, the queue."""

import asyncio
import time
from typing import Any
from unittest.mock import Mock

import pytest

from edl_workflows.core.exceptions import (
    JobDisappearedError,
    QueueTimeoutError,
    StageTimeoutError,
    UnavailableError,
)
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.waiting.results import Done, Failed, InProgress
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.stages.stage_runs import begin


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
    """A wait survives an outage of the API server, both while it watches and while it checks whether the job
    was deleted."""
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
    """Both the blocking wait and the one in an event loop end with StageTimeoutError, which has the job's
    phase and step."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    source = ClusterSource.of(cluster)
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Running", "the job runs")

    blocking = driver.wait_for_goal(source, handle, time.time() + 1)
    in_loop = asyncio.run(driver.await_goal(source, handle, time.time() + 1))

    for result in (blocking, in_loop):
        assert isinstance(result, Failed)
        assert isinstance(result.error, StageTimeoutError)
        assert "is Running" in str(result.error)
        assert "step 100" in str(result.error)


def test_a_wait_in_vain_for_a_controller_says_so(cluster: Cluster, stand_in: StandIn) -> None:
    """If no controller has seen the job when one of the two deadlines passes, the error says so instead of
    giving the phase."""
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
    """A single check, as an Argo step that does not wait makes it, shows a new job without a status as
    Pending, and names the missing controller for an old one."""
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
    """The blocking wait, the wait in an event loop and a single check fail with QueueTimeoutError and the
    job's reason. A job that does not exist counts as queued."""
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
    """Once a job has run, the queue deadline no longer applies to it."""
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


def test_a_goal_that_was_reached_in_time_is_no_timeout(cluster: Cluster, stand_in: StandIn) -> None:
    """A goal that is reached before the deadline is no time-out, even if it is checked only after it, for
    example after an outage of the triggerer."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Succeeded", "success")
    source, past = ClusterSource.of(cluster), time.time() - 1

    assert isinstance(driver.wait_for_goal(source, handle, past), Done)
    assert isinstance(asyncio.run(driver.await_goal(source, handle, past)), Done)


def test_a_wait_ends_with_the_state_that_it_waited_for(cluster: Cluster, stand_in: StandIn) -> None:
    """The last line that a wait writes is the state that it waited for, whether it blocks, runs in an event
    loop or checks once. The same holds for a job that is gone."""
    submitted = begin(cluster, "submit", manifest=elastic_job("mnist"))
    source, told = ClusterSource.of(cluster), list[str]()
    reached = begin(cluster, "wait", name="mnist", step=100)

    driver.wait_for_goal(source, reached, notify=told.append)
    asyncio.run(driver.await_goal(source, reached, notify=told.append))
    driver.GoalWait(reached, notify=told.append).check(cluster)
    stand_in.end("mnist")
    driver.wait_for_goal(source, submitted, notify=told.append)
    gone = begin(cluster, "delete", name="mnist")
    driver.wait_for_goal(source, gone, notify=told.append)

    ends = [line.removeprefix(f"{submitted} ") for line in told if "step 100" in line or "gone" in line]
    running = "is Running; ready: worker 1/1; step 100; checkpoint at step 100"
    succeeded = "is Succeeded (TestSaysSo: the test ended it); step 100; checkpoint at step 100"
    assert [line for line in ends if "Running" in line][:3] == [running] * 3
    assert ends[-2:] == [succeeded, "is gone"]
