"""How the tab reads jobs: bounded by what one request may cost Airflow's API server."""

import itertools
from types import SimpleNamespace
from typing import NoReturn

import pytest

from edl_workflows.exceptions import UnavailableError
from edl_workflows.hooks.task_object import TaskObject
from edl_workflows.tab import reading
from edl_workflows.tab.document import TaskReference
from edl_workflows.tab.reading import DOCUMENT_SECONDS, Clusters, JobReader, Rights
from edl_workflows.tab.task_jobs import MAX_TASKS, TaskWork


def test_a_cluster_that_does_not_answer_holds_no_request_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may have many tasks, and each call waits for its time-out: the page says so instead of waiting
    for all of them."""
    clock = itertools.count(0.0, DOCUMENT_SECONDS / 2.5)
    asked: list[str] = []

    def find_job(_reader: JobReader, work: TaskWork) -> NoReturn:
        asked.append(work.task.task_id)
        raise UnavailableError("no answer")

    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(JobReader, "find_job", find_job)
    target = TaskObject(kind="ElasticJob", namespace="team", name="mnist")
    work = [TaskWork("dag", "run", TaskReference(task_id=f"t{n}"), target) for n in range(MAX_TASKS)]
    nobody = Rights(lambda _: False, lambda _: False, lambda _: False)

    jobs, notes = JobReader(Clusters(), nobody).read_jobs(work, with_logs=False)

    assert (jobs, asked) == ([], ["t0", "t1"])
    assert notes == ["t0: no answer", "t1: no answer", notes[-1]]
    assert "answers slowly" in notes[-1]
