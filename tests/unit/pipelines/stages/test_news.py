"""Which events of an object a wait evaluates."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.awaited_steps import annotation_of
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.waiting import job_log
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.news import is_news
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.results import Done
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import StandIn, elastic_job, eventually
from tests.unit.pipelines.stages.stage_runs import begin

WRITES = 60


def _await(source: ClusterSource, handle: Handle, deadline: float, notify: Any = None) -> Any:
    return asyncio.run(driver.await_goal(source, handle, deadline, notify or (lambda _line: None)))


def _write_step(cluster: Cluster, step: int) -> None:
    progress = {"step": step, "speed": 9.5 + step, "records": 32 * step, "clusterVersion": 1}
    status = {"progress": progress, "goodput": {"ratio": 0.5, "elapsedSeconds": step}, "history": []}
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)


@pytest.mark.parametrize("wait", [driver.wait_for_goal, _await], ids=["in a thread", "in a loop"])
def test_progress_before_the_step_is_not_evaluated(
    cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, wait: Callable[..., Any]
) -> None:
    """A wait for step 1000, as of an operator, a trigger or Argo's agent, evaluates the first state, the
    beginning of training and the step that it waits for, and none of 60 writes of progress between them."""
    stand_in.idle = True
    begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Running", "observedGeneration": 1})
    handle = begin(cluster, "wait", name="mnist", step=1000)
    evaluated: list[Any] = []

    def count(kind: str, state: Any) -> Any:
        evaluated.append(state)
        return read_object(kind, state)

    monkeypatch.setattr(driver, "read_object", count)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(wait, ClusterSource.of(cluster), handle, time.time() + 120)
        eventually(lambda: len(evaluated) > 0, "the wait begins")
        for step in range(1, WRITES + 1):
            _write_step(cluster, step)
        _write_step(cluster, 1000)
        result = end.result()

    assert isinstance(result, Done)
    assert result.outputs.step == 1000
    assert len(evaluated) <= 3


def test_reminder_has_the_newest_progress(
    cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that a wait writes now and then shows the newest step, which is no news by itself."""
    stand_in.idle = True
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Running", "observedGeneration": 1})
    monkeypatch.setattr(job_log, "PROGRESS_SECONDS", 0.2)
    lines: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(
            driver.wait_for_goal, ClusterSource.of(cluster), handle, time.time() + 120, lines.append
        )
        eventually(lambda: len(lines) > 0, "the wait begins")
        for step in (1, 2, 3):
            _write_step(cluster, step)
        eventually(lambda: any("step 3" in line for line in lines), "a line with step 3")
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Succeeded"})

        assert isinstance(end.result(), Done)


def _job(version: int = 7, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "resourceVersion": str(version)}, "status": status}


RUNNING: dict[str, Any] = {"phase": "Running", "progress": {"step": 5, "speed": 1.0}}


@pytest.mark.parametrize(
    ("new", "old", "news"),
    [
        pytest.param(RUNNING | {"progress": {"step": 6}}, RUNNING, False, id="a step"),
        pytest.param(RUNNING | {"progress": {"step": 10}}, RUNNING, True, id="the step"),
        pytest.param(RUNNING | {"progress": {"step": 11}}, {"progress": {"step": 10}}, True, id="later"),
        pytest.param(RUNNING | {"goodput": {"ratio": 0.5}}, RUNNING, False, id="goodput"),
        pytest.param(RUNNING | {"checkpoint": {"step": 5}}, RUNNING, False, id="a checkpoint"),
        pytest.param(RUNNING | {"phase": "Scaling"}, RUNNING, True, id="a phase"),
        pytest.param(RUNNING | {"warnings": ["slow"]}, RUNNING, True, id="a warning"),
        pytest.param(RUNNING, {"phase": "Running"}, True, id="the first step"),
    ],
)
def test_news(new: dict[str, Any], old: dict[str, Any], news: bool) -> None:
    """Progress is no news before the step that is waited for, but everything else of a job is."""
    goal = JobGoal(step=10)
    handle = Handle(kind="ElasticJob", namespace="default", name="a", goal=goal)

    assert is_news(handle, _job(8, **new), _job(**old)) is news


def test_first_state_that_a_wait_may_use_is_news() -> None:
    """A wait ignores what is older than its beginning. So the first state that is not is evaluated, even if
    only progress tells it from the ignored one."""
    handle = Handle(kind="ElasticJob", namespace="default", name="a", goal=JobGoal(), version=8)

    assert is_news(handle, _job(9, **RUNNING), _job(7, **RUNNING))
    assert not is_news(handle, _job(9, **RUNNING), _job(8, **RUNNING))


def test_other_waits_for_steps_are_no_news() -> None:
    """That somebody begins or ceases to wait for a step of the job is no news, but other annotations are."""
    handle = Handle(kind="ElasticJob", namespace="default", name="a", goal=JobGoal(step=10))
    annotated = _job(8, **RUNNING)
    annotated["metadata"]["annotations"] = {annotation_of("somebody"): "100"}
    noted = _job(9, **RUNNING)
    noted["metadata"]["annotations"] = {"note": "100"}

    assert not is_news(handle, annotated, _job(**RUNNING))
    assert not is_news(handle, _job(9, **RUNNING), annotated)
    assert is_news(handle, noted, annotated)
