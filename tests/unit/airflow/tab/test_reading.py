"""How the tab reads jobs: bounded by what one request may cost Airflow's API server."""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import yaml

from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.airflow.tab import reading
from edl_workflows.airflow.tab.document import TaskReference
from edl_workflows.airflow.tab.reading import (
    DOCUMENT_SECONDS,
    MASTERS_SECONDS,
    MAX_JOBS,
    Clusters,
    FoundJob,
    JobReader,
    Rights,
)
from edl_workflows.airflow.tab.task_jobs import MAX_TASKS, TaskWork
from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.pipelines.live import FigureReader, Measurement
from edl_workflows.runtime.kube.connect import Cluster
from tests.airflow.support import elastic_job


def test_a_cluster_that_does_not_answer_holds_no_request_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may have many tasks, and each call to an unavailable cluster waits for its time-out. The page
    stops after a total time and says so."""
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


def test_masters_that_hang_take_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with many jobs whose masters are silent is shown whole, with the figures of the statuses."""
    now, asked = [0.0], list[str]()

    class SilentMasters(FigureReader):
        def measure(self, cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[Measurement]:
            asked.extend(job.metadata.name for job in jobs)
            now[0] += MASTERS_SECONDS / 2
            return [Measurement(None, "no answer") for _ in jobs]

    def find_job(_reader: JobReader, work: TaskWork) -> FoundJob:
        name = work.target.name
        manifest = elastic_job(name) | {"status": {"phase": "Running"}}
        hook = SimpleNamespace(brain=("", ""), installation="", link=lambda *_: "")
        return FoundJob(
            work, cast("Any", hook), cast("Any", None), kind_of("ElasticJob"), "team", name, "dag", manifest
        )

    clusters = Clusters()
    clusters.figures = SilentMasters()
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    monkeypatch.setattr(JobReader, "find_job", find_job)
    monkeypatch.setattr(reading, "_try_plans", lambda *_: [])
    names = [f"job-{number}" for number in range(MAX_JOBS)]
    work = [
        TaskWork(
            "dag",
            "run",
            TaskReference(task_id=name),
            TaskObject(kind="ElasticJob", namespace="team", name=name),
        )
        for name in names
    ]
    everybody = Rights(lambda _: True, lambda _: True, lambda _: True)

    jobs, notes = JobReader(clusters, everybody).read_jobs(work, with_logs=False)

    assert ([job.name for job in jobs], notes) == (names, [])
    assert asked == names[:2]
    assert [job.figures.obstacle for job in jobs if job.figures][1:3] == [
        "no answer",
        "not read: other masters took the time for it",
    ]


def test_a_task_cannot_choose_a_kubeconfig_for_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubeconfig may name a program to run, and DAG authors may run code in workers only. So the API server
    does not load a file that a task wrote to a shared folder."""
    ran = tmp_path / "ran"
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(ran)]}}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv(
        "AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": {}})
    )
    target = TaskObject(kind="ElasticJob", namespace="team", name="mnist")
    arguments = {"name": "mnist", "config_file": str(file)}
    work = TaskWork("dag", "run", TaskReference(task_id="t"), target, arguments)
    everybody = Rights(lambda _: True, lambda _: True, lambda _: True)

    jobs, notes = JobReader(Clusters(), everybody).read_jobs([work], with_logs=False)

    assert not ran.exists()
    assert jobs == []
    assert "config_file" in notes[0]
