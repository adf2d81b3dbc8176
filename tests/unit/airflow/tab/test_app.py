"""The tab's endpoints without Airflow's database: what is refused before anything is asked."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import NoReturn

import httpx
import pytest

from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.airflow.tab import app
from edl_workflows.airflow.tab.app import make_app
from edl_workflows.airflow.tab.decisions import Decision
from edl_workflows.airflow.tab.document import TaskReference
from edl_workflows.airflow.tab.reading import DOCUMENT_SECONDS, Clusters, JobReader, Rights
from edl_workflows.airflow.tab.task_jobs import MAX_TASKS, TaskSelection, TaskWork
from edl_workflows.core.exceptions import UnavailableError


@pytest.mark.parametrize("declared", ["", "text/plain", "application/x-www-form-urlencoded", "text/json"])
def test_a_decision_must_be_declared_as_json(declared: str) -> None:
    """A page of any origin can make the browser send a form, a text or a body without a type together with
    the user's cookie, so these are refused; FastAPI before 0.132 reads a body without a type as JSON."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(make_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.post(
                "/dags/training/decisions?run_id=run",
                content=b'{"action": "approve", "kind": "ElasticJob", "namespace": "n", "name": "j"}',
                headers={"Content-Type": declared} if declared else {},
            )

    assert asyncio.run(send()).status_code == 415


def test_a_decision_holds_no_thread_while_a_cluster_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision looks for its job among the tasks of the run, and each call to an unavailable cluster waits
    for its time-out. The search stops after a total time and says so."""
    clock = itertools.count(0.0, DOCUMENT_SECONDS / 2.5)
    asked: list[str] = []

    def find_job(_reader: JobReader, work: TaskWork) -> NoReturn:
        asked.append(work.task.task_id)
        raise UnavailableError("no answer")

    target = TaskObject(kind="ElasticJob", namespace="team", name="mnist")
    work = [TaskWork("dag", "run", TaskReference(task_id=f"t{n}"), target) for n in range(MAX_TASKS)]
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(app, "find_work", lambda _selection: work)
    monkeypatch.setattr(JobReader, "find_job", find_job)
    reader = JobReader(Clusters(), Rights(*[lambda _: True] * 3))
    decision = Decision(action="approve", kind="ElasticJob", namespace="team", name="mnist")

    with pytest.raises(UnavailableError, match="answers slowly"):
        app._find_decided(reader, TaskSelection("dag", "run"), decision)

    assert asked == ["t0", "t1"]
