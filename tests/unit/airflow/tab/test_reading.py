"""How the tab reads jobs: bounded by what one request may cost Airflow's API server."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import yaml

from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.airflow.tab import reading
from edl_workflows.airflow.tab.document import TaskReference
from edl_workflows.airflow.tab.reading import DOCUMENT_SECONDS, Clusters, JobReader, Rights
from edl_workflows.airflow.tab.task_jobs import MAX_TASKS, TaskWork
from edl_workflows.core.exceptions import UnavailableError


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
