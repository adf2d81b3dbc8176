"""A wait for a step is registered on its job, so that the job's master tells of it; waits don't disturb each
other, and none depends on the registration.
"""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from edl_workflows.core.exceptions import ConflictError, EdlError, ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.awaited_steps import MAX_WAITERS, annotation_of, read_waiters
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.wait import WAIT, WaitRequest
from edl_workflows.pipelines.waiting import step_waiters
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.results import Done, Failed, InProgress
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import elastic_job, eventually


def _handle(cluster: Cluster, owner: str, step: int) -> Handle:
    request = WaitRequest(name="mnist", step=step)
    return WAIT.begin(cluster, request, StageIdentity(owner=owner))


def _waiters(cluster: Cluster) -> dict[str, int]:
    job = client.get(cluster, ELASTIC_JOBS, "mnist")
    return read_waiters(job["metadata"].get("annotations") or {})


def _annotate(cluster: Cluster, annotations: Mapping[str, str]) -> None:
    client.patch(cluster, ELASTIC_JOBS, "mnist", {"metadata": {"annotations": dict(annotations)}})


def _make_step(cluster: Cluster, step: int) -> None:
    status = {"phase": "Running", "observedGeneration": 1, "progress": {"step": step}}
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)


def _wait(cluster: Cluster, handle: Handle, results: list[Any], *, in_loop: bool = False) -> threading.Thread:
    source, deadline = ClusterSource.of(cluster), time.time() + 60

    def wait() -> None:
        if in_loop:
            results.append(asyncio.run(driver.await_goal(source, handle, deadline)))
        else:
            results.append(driver.wait_for_goal(source, handle, deadline))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_two_pipelines_wait_for_their_steps(cluster: Cluster) -> None:
    """Each has its own annotation from when the job exists until its wait ends, however it waits."""
    results: list[Any] = []
    handles = {owner: _handle(cluster, owner, step) for owner, step in (("one", 10), ("two", 20))}
    threads = [_wait(cluster, handle, results, in_loop=owner == "two") for owner, handle in handles.items()]
    client.create(cluster, elastic_job("mnist"))
    both = {annotation_of("one"): 10, annotation_of("two"): 20}
    eventually(lambda: _waiters(cluster) == both, "both are registered")
    _make_step(cluster, 10)
    eventually(lambda: _waiters(cluster) == {annotation_of("two"): 20}, "the first has ended")
    _make_step(cluster, 25)
    for thread in threads:
        thread.join(60)
    assert [type(result) for result in results] == [Done, Done]
    assert _waiters(cluster) == {}


def test_a_sensor_registers_once_however_often_it_looks(cluster: Cluster) -> None:
    """A sensor that is started anew for each look keeps one annotation, and the look that sees the end
    removes it. A single look registers nothing."""
    client.create(cluster, elastic_job("mnist"))
    _make_step(cluster, 1)
    handle = _handle(cluster, "one", 10)
    driver.check_now(cluster, handle)
    assert _waiters(cluster) == {}
    versions = set()
    for _ in range(3):
        assert isinstance(driver.GoalWait(handle).check(cluster), InProgress)
        assert _waiters(cluster) == {annotation_of("one"): 10}
        versions.add(client.get(cluster, ELASTIC_JOBS, "mnist")["metadata"]["resourceVersion"])
    assert len(versions) == 1
    _make_step(cluster, 10)
    assert isinstance(driver.GoalWait(handle).check(cluster), Done)


def test_a_result_does_not_wait_for_the_withdrawal(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an event loop, the wait ends while the annotation is still being removed."""
    withdraw, over = step_waiters.StepWaiter.withdraw, threading.Event()

    def withdraw_late(waiter: step_waiters.StepWaiter, source: ClusterSource) -> None:
        assert over.wait(60)
        withdraw(waiter, source)

    monkeypatch.setattr(step_waiters.StepWaiter, "withdraw", withdraw_late)
    client.create(cluster, elastic_job("mnist"))
    handle, source = _handle(cluster, "one", 10), ClusterSource.of(cluster)

    async def wait() -> Any:
        waiting = asyncio.create_task(driver.await_goal(source, handle, time.time() + 60))
        await asyncio.to_thread(eventually, lambda: _waiters(cluster), "it is registered")
        _make_step(cluster, 10)
        result = await waiting
        over.set()
        return result

    assert isinstance(asyncio.run(wait()), Done)
    eventually(lambda: _waiters(cluster) == {}, "it is withdrawn")


def test_a_wait_that_is_out_of_time_withdraws(cluster: Cluster) -> None:
    """A wait that fails leaves nothing on the job."""
    client.create(cluster, elastic_job("mnist"))
    _make_step(cluster, 1)
    source, handle = ClusterSource.of(cluster), _handle(cluster, "one", 10)
    assert isinstance(driver.wait_for_goal(source, handle, time.time() + 2), Failed)
    assert _waiters(cluster) == {}


def test_waiters_that_have_died_are_removed(cluster: Cluster) -> None:
    """A waiter removes those whose step has been made, and leaves those that may still wait."""
    client.create(cluster, elastic_job("mnist"))
    _annotate(cluster, {annotation_of("dead"): "5", annotation_of("alive"): "100", "note": "5"})
    _make_step(cluster, 7)
    driver.GoalWait(_handle(cluster, "one", 10)).check(cluster)
    assert _waiters(cluster) == {annotation_of("alive"): 100, annotation_of("one"): 10}
    assert client.get(cluster, ELASTIC_JOBS, "mnist")["metadata"]["annotations"]["note"] == "5"


def test_waiters_are_bounded(cluster: Cluster) -> None:
    """If too many wait already, another one waits without the annotation."""
    client.create(cluster, elastic_job("mnist"))
    _annotate(cluster, {annotation_of(str(number)): "100" for number in range(MAX_WAITERS)})
    _make_step(cluster, 7)
    driver.GoalWait(_handle(cluster, "one", 10)).check(cluster)
    assert annotation_of("one") not in _waiters(cluster)


@pytest.mark.parametrize(("error", "tries"), [(ForbiddenError("no right"), 1), (UnavailableError("away"), 2)])
def test_a_wait_does_not_depend_on_its_registration(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: EdlError, tries: int
) -> None:
    """A wait goes on without the right to annotate the job. If the API server was away, it registers at the
    next change."""
    client.create(cluster, elastic_job("mnist"))
    tried = []

    def refuse(*_arguments: Any) -> None:
        tried.append(time.time())
        raise error

    monkeypatch.setattr(client, "patch", refuse)
    wait = driver.GoalWait(_handle(cluster, "one", 10))
    assert [type(wait.check(cluster)) for _ in range(2)] == [InProgress] * 2
    assert len(tried) == tries


@pytest.mark.parametrize("in_loop", [True, False])
@pytest.mark.parametrize("error", [UnavailableError("slow"), ConflictError("many at once")])
def test_a_registration_that_failed_is_repeated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: EdlError, in_loop: bool
) -> None:
    """Many waits that begin at once may be too much for the API server. Their jobs need not change until they
    register again."""
    client.create(cluster, elastic_job("mnist"))
    _make_step(cluster, 1)
    tried, patch = [], client.patch

    def refuse_once(*arguments: Any) -> Any:
        tried.append(arguments)
        if len(tried) == 1:
            raise error
        return patch(*arguments)

    monkeypatch.setattr(client, "patch", refuse_once)
    monkeypatch.setattr(step_waiters, "RETRY_SECONDS", 0.1)
    results: list[Any] = []
    thread = _wait(cluster, _handle(cluster, "one", 10), results, in_loop=in_loop)
    eventually(lambda: _waiters(cluster) == {annotation_of("one"): 10}, "it is registered")
    _make_step(cluster, 10)
    thread.join(60)
    assert isinstance(results[0], Done)


@pytest.mark.parametrize("request_fields", [{"phases": ("Running",)}, {"step": 0}])
def test_only_a_step_is_registered(cluster: Cluster, request_fields: dict[str, Any]) -> None:
    """Phases and conditions are written at once in any case."""
    client.create(cluster, elastic_job("mnist"))
    request = WaitRequest(name="mnist", **request_fields)
    driver.GoalWait(WAIT.begin(cluster, request, StageIdentity(owner="one"))).check(cluster)
    assert _waiters(cluster) == {}


def test_an_interrupted_wait_withdraws(cluster: Cluster) -> None:
    """A wait that its caller interrupts, as by Ctrl-C, leaves nothing on the job: the step may never come."""
    client.create(cluster, elastic_job("mnist"))
    _make_step(cluster, 1)

    def interrupt(_seen: object) -> None:
        if _waiters(cluster):
            raise KeyboardInterrupt

    source, handle = ClusterSource.of(cluster), _handle(cluster, "one", 10)
    with pytest.raises(KeyboardInterrupt):
        driver.wait_for_goal(source, handle, time.time() + 60, observe=interrupt)
    assert _waiters(cluster) == {}
