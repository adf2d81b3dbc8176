"""The logs of a job's workers in one stream."""

from collections.abc import Iterator
from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.client import worker_logs
from edl_workflows.pipelines.client.worker_logs import WorkerLogs
from tests.unit.runtime.kube.support import Answer, ScriptedApi

FIRST, SECOND = "2026-01-01T00:00:01.5Z", "2026-01-01T00:00:02.5Z"


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    api = ScriptedApi()
    yield api
    api.close()


def list_workers(count: int) -> Answer:
    """The pods of a job's workers, all running."""
    return Answer(body={"metadata": {"resourceVersion": "1"}, "items": [worker(i) for i in range(count)]})


def worker(index: int) -> dict[str, Any]:
    labels = {
        names.REPLICA_TYPE_LABEL: "worker",
        names.REPLICA_INDEX_LABEL: str(index),
        names.RANK_INDEX_LABEL: str(index),
    }
    return {
        "metadata": {"name": f"job-worker-{index}", "namespace": "ns", "uid": str(index), "labels": labels},
        "spec": {"containers": [{"name": "main"}, {"name": "sidecar"}]},
        "status": {"phase": "Running"},
    }


def test_a_broken_connection_loses_and_repeats_no_line(
    api: ScriptedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a broken connection, the log is read again from the second of its newest line, and continues
    behind that line."""
    monkeypatch.setattr(worker_logs, "RETRY_SECONDS", 0.0)
    api.answers = [
        list_workers(1),
        Answer(body=f"{FIRST} one\n{FIRST} two\n".encode(), unfinished=True),
        Answer(body=f"{FIRST} one\n{FIRST} two\n{SECOND} three\n".encode()),
    ]
    logs = WorkerLogs(api.cluster(), "job", prefixed=True)

    logs.end(timeout=240)

    assert list(logs.lines()) == ["worker-0 | one", "worker-0 | two", "worker-0 | three"]
    whole, rest = (path for _, path in api.requests[1:])
    assert "sinceTime" not in whole
    assert "tailLines" not in whole
    assert "sinceTime=2026-01-01T00%3A00%3A01" in rest


def test_a_log_that_cannot_be_read_says_so(api: ScriptedApi) -> None:
    """If a log can't be read, a line with the server's message stands in its place."""
    refusal = Answer(403, {"kind": "Status", "message": "pods/log is forbidden", "reason": "Forbidden"})
    api.answers = [list_workers(1), refusal]
    logs = WorkerLogs(api.cluster(), "job", prefixed=False)

    logs.end(timeout=240)

    (line,) = logs.lines()
    assert line.startswith("edl: the log can't be read: ")
    assert "pods/log is forbidden" in line


def test_lines_name_their_node_from_the_second_one_on(api: ScriptedApi) -> None:
    """The lines of a job's only worker stand alone; when it has grown, each line names its node."""
    api.answers = [
        Answer(body=f"{FIRST} one\n".encode()),
        Answer(body=f"{SECOND} two\n".encode()),
        list_workers(2),
    ]
    logs = WorkerLogs(api.cluster(), "job", prefixed=False)

    for index in range(2):
        logs._begin(worker(index))
        logs._threads[index].join(240)
    logs.end(timeout=240)

    assert list(logs.lines()) == ["one", "worker-1 | two"]
