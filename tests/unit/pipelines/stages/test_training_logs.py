"""Training logs: which pods are followed, and that each line is written once and in order."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import structlog

from edl_workflows.airflow.hooks.written_logs import merge_positions, write_line
from edl_workflows.core.exceptions import EdlError, ForbiddenError
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.tf_job.kind import TF_JOB
from edl_workflows.core.jobs.view import JobPhase, JobView, Replicas
from edl_workflows.pipelines.waiting import training_logs
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.training_logs import LogRequest, PodLine, TrainingLogs, choose_pods
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource, RequestRecord
from edl_workflows.runtime.kube.log_stream import MAX_LINE, LogLine, LogPosition, read_line, skip_read_lines
from edl_workflows.runtime.kube.resources import PODS

_RUNNING = JobView(
    "ElasticJob", "mnist", "default", "uid-1", 1, 1, JobPhase.RUNNING, replicas={"worker": Replicas(1, 1)}
)


def _pod(role: str, index: int, rank: str = "", state: str = "running", phase: str = "Running") -> Any:
    labels = dict(zip(ELASTIC_JOB.labels, ("mnist", role, str(index)), strict=True))
    return {
        "metadata": {
            "name": f"mnist-{role}-{index}",
            "labels": labels | ({"elasticjob.dlrover/rank-index": rank} if rank else {}),
        },
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": {state: {}}}]},
    }


CHOICES: dict[str, tuple[list[Any], str, list[str]]] = {
    "a chief before workers": ([_pod("worker", 0), _pod("chief", 1)], "chief", ["mnist-chief-1"]),
    "the worker of rank 0": ([_pod("worker", 0, "1"), _pod("worker", 3, "0")], "chief", ["mnist-worker-3"]),
    "the oldest worker": ([_pod("worker", 2), _pod("worker", 1)], "chief", ["mnist-worker-1"]),
    "no master of an ElasticJob": (
        [_pod("dlrover-master", 0), _pod("worker", 0)],
        "all",
        ["mnist-worker-0"],
    ),
    "one that lives before one that ended": (
        [_pod("worker", 0, phase="Failed"), _pod("worker", 1)],
        "chief",
        ["mnist-worker-1"],
    ),
    "one that ended if none lives": ([_pod("worker", 0, phase="Failed")], "chief", ["mnist-worker-0"]),
    "none that has not started": ([_pod("worker", 0, state="waiting")], "all", []),
    "all, by role": ([_pod("ps", 0), _pod("worker", 0)], "all", ["mnist-worker-0", "mnist-ps-0"]),
}


@pytest.mark.parametrize("row", CHOICES)
def test_which_pods_are_followed(row: str) -> None:
    """The followed pods include the chief, which is the pod whose log shows the training."""
    pods, which, names = CHOICES[row]

    assert [pod["metadata"]["name"] for pod in choose_pods(ELASTIC_JOB, pods, which)] == names  # type: ignore[arg-type]


_LINES = [
    f"2026-01-01T00:00:0{second}.000000000Z line {number}" for number, second in enumerate((1, 1, 1, 2))
]


@pytest.mark.parametrize("read", range(len(_LINES) + 1))
def test_reading_continues_with_the_next_line(read: int) -> None:
    """Reading continues with the next line, even between lines with equal times: the API server is asked for
    whole seconds only."""
    first = list(skip_read_lines(iter(_LINES[:read]), LogPosition()))
    known = first[-1].position if first else LogPosition()

    again = list(skip_read_lines(iter(_LINES), known))

    assert [line.text for line in (*first, *again)] == ["line 0", "line 1", "line 2", "line 3"]


def test_a_position_is_asked_for_in_whole_seconds() -> None:
    """A position is requested in whole seconds, in the time zone in which the node wrote it."""
    since = LogPosition("2026-01-01T08:00:01.999999999+08:00", 1).since

    assert since is not None
    assert since.isoformat() == "2026-01-01T08:00:01+08:00"
    assert LogPosition().since is None


def test_a_long_line_is_cut() -> None:
    """A very long line is cut, since a log is not for data."""
    assert len(read_line(f"2026-01-01T00:00:01Z {'x' * 10**6}", LogPosition()).text) == MAX_LINE + 1


def test_positions_are_found_in_what_was_written() -> None:
    """The position of each pod follows from its newest line in the log. A line that a kill cut off is
    ignored."""
    found: dict[str, LogPosition] = {}

    merge_positions(
        found,
        [
            b'{"event": "[worker-0] a", "loc": "p0 2026-01-01T00:00:01Z 1"}\n',
            b'{"event": "[worker-0] b", "loc": "p0 2026-01-01T00:00:01Z 2"}\n',
            b'{"event": "ElasticJob ns/mnist is Running"}\n',
            b'{"event": "[ps-0] a", "loc": "p1 2026-01-01T00:00:05Z 1"}\n',
            b'{"event": "somebody else", "loc": "x.py:3"}\n',
            b'{"event": "[worker-0] c", "loc": "p0 2026-01-01T00:00:09Z',
        ],
    )

    assert found == {
        "p0": LogPosition("2026-01-01T00:00:01Z", 2),
        "p1": LogPosition("2026-01-01T00:00:05Z", 1),
    }


@pytest.mark.parametrize("text", ["::group::quiet", "loss 0.5 ::endgroup::", "::::group::::group::"])
def test_a_training_program_folds_no_lines_of_others(text: str) -> None:
    """Airflow's page folds the lines after ``::group::``, wherever it stands in a line. A program's output
    can't do so."""
    with structlog.testing.capture_logs() as written:
        write_line(PodLine("mnist-worker-0", "worker-0", text, LogPosition("2026-01-01T00:00:01Z", 1)))

    [event] = written
    assert event["event"].startswith("[worker-0] ")
    assert "::group::" not in event["event"]
    assert "::endgroup::" not in event["event"]


class _FakeStream:
    """A log that the test writes: a connection ends after each call of `cut`."""

    lines: ClassVar[list[str]] = []
    cuts = 0
    opened: ClassVar[list[LogPosition]] = []
    error: EdlError | None = None
    changed = threading.Condition()

    def __init__(
        self, _cluster: Cluster, _pod: str, _ns: str, _container: str, known: LogPosition, _tail: int
    ):
        self._known = known
        self._closed = False
        self._cuts = type(self).cuts
        self.opened.append(self._known)

    def __iter__(self) -> Iterator[LogLine]:
        if self.error is not None:
            raise self.error
        yield from skip_read_lines(self._raw(), self._known)

    def _raw(self) -> Iterator[str]:
        sent = 0
        while True:
            with self.changed:
                while not (self._closed or len(self.lines) > sent or self._cuts != type(self).cuts):
                    self.changed.wait()
                new = self.lines[sent:]
                over = self._closed or (not new and self._cuts != type(self).cuts)
            if over:
                return
            yield from new
            sent += len(new)

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    @classmethod
    def append(cls, *lines: str) -> None:
        with cls.changed:
            cls.lines.extend(lines)
            cls.changed.notify_all()

    @classmethod
    def cut(cls) -> None:
        with cls.changed:
            cls.cuts += 1
            cls.changed.notify_all()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> type[_FakeStream]:
    """The log of the only worker."""
    fresh = type("FreshStream", (_FakeStream,), {"lines": [], "opened": [], "cuts": 0, "error": None})
    monkeypatch.setattr(training_logs, "LogStream", fresh)
    monkeypatch.setattr(training_logs, "LIST_SECONDS", 0.01)
    return fresh


def _start_worker(cluster: Cluster) -> None:
    pod = _pod("worker", 0) | {"apiVersion": "v1", "kind": "Pod"}
    status = pod.pop("status")
    client.create(cluster, pod)
    client.patch_status(cluster, PODS, "mnist-worker-0", status)


def _logs(cluster: Cluster, written: list[PodLine], said: list[str], **more: Any) -> TrainingLogs:
    handle = Handle(kind="ElasticJob", namespace=cluster.namespace, name="mnist", goal=JobGoal())
    source = ClusterSource.of(cluster)
    return TrainingLogs(source, handle, LogRequest(), written.append, said.append, **more)


async def _until(holds: Any) -> None:
    async with asyncio.timeout(240):
        while not holds():  # noqa: ASYNC110 - a thread's doing has no event here
            await asyncio.sleep(0.01)


def test_each_line_once_across_broken_connections(cluster: Cluster, log: type[_FakeStream]) -> None:
    """Each line is written once although connections break, and no request is sent while nothing changes."""
    _start_worker(cluster)
    written: list[PodLine] = []
    records: list[RequestRecord] = []

    async def scenario() -> None:
        logs = _logs(cluster.observed_by(records.append), written, [])
        async with logs.streaming():
            logs.observe(_RUNNING)
            for number, line in enumerate(_LINES):
                log.append(line)
                await _until(lambda count=number: len(written) > count)
                log.cut()
                await _until(lambda count=number: len(log.opened) > count + 1)
            before = len(records)
            for speed in range(5):
                logs.observe(replace(_RUNNING, message=f"step {speed}"))
                await asyncio.sleep(0.05)
            assert len(records) == before

    asyncio.run(scenario())

    assert [line.text for line in written] == ["line 0", "line 1", "line 2", "line 3"]
    assert {(line.pod, line.node) for line in written} == {("mnist-worker-0", "worker-0")}


def test_the_agents_lines_are_readable(cluster: Cluster, log: type[_FakeStream]) -> None:
    """Of the lines in a task's log, those of the agent are rendered; JSON of the program is not."""
    own = {
        "event": "started", "level": "info", "logger": "edl_workflows.services.agent.supervisor", "rank": 0,
        "timestamp": "2026-01-01T00:00:00+00:00", "pod": "mnist-worker-0",
    }  # fmt: skip
    _start_worker(cluster)
    at = "2026-01-01T00:00:00Z"
    log.append(f"{at} {json.dumps(own)}", f"{at} {json.dumps({**own, 'logger': 'train'})}")
    written: list[PodLine] = []

    async def scenario() -> None:
        logs = _logs(cluster, written, [])
        async with logs.streaming():
            logs.observe(_RUNNING)
            await _until(lambda: len(written) == 2)

    asyncio.run(scenario())

    assert [line.text for line in written] == [
        "2026-01-01 00:00:00.000Z edl-agent INFO started rank=0",
        json.dumps({**own, "logger": "train"}),
    ]


def test_another_process_continues_where_the_first_was_killed(
    cluster: Cluster, log: type[_FakeStream]
) -> None:
    """The next process starts after the last line that the killed one had written."""
    _start_worker(cluster)
    log.append(*_LINES)
    written: list[PodLine] = []

    async def scenario() -> None:
        positions = {"mnist-worker-0": LogPosition(_LINES[1].split()[0], 2)}
        async with _logs(cluster, written, [], positions=positions).streaming():
            await _until(lambda: len(written) == 2)

    asyncio.run(scenario())

    assert [line.text for line in written] == ["line 2", "line 3"]


def test_a_line_is_cut_as_it_is_written(cluster: Cluster, log: type[_FakeStream]) -> None:
    """Control characters are written as escapes, which are longer: the limit of a line holds for these."""
    _start_worker(cluster)
    log.append("2026-01-01T00:00:00Z " + "\x01" * 4096)
    written: list[PodLine] = []

    async def scenario() -> None:
        logs = _logs(cluster, written, [])
        async with logs.streaming():
            logs.observe(_RUNNING)
            await _until(lambda: len(written) == 1)

    asyncio.run(scenario())

    assert written[0].text == "\\x01" * (MAX_LINE // 4) + "…"


def test_the_last_lines_of_a_job_that_ended_are_written(cluster: Cluster, log: type[_FakeStream]) -> None:
    """When a job ends, its last lines are written before the wait ends."""
    _start_worker(cluster)
    written: list[PodLine] = []

    async def scenario() -> None:
        logs = _logs(cluster, written, [])
        async with logs.streaming():
            logs.observe(_RUNNING)
            await _until(lambda: log.opened)
            client.patch_status(cluster, PODS, "mnist-worker-0", {"phase": "Succeeded"})
            logs.observe(replace(_RUNNING, phase=JobPhase.SUCCEEDED))
            log.append(*_LINES)
            log.cut()
            threading.Timer(0.5, log.cut).start()

    asyncio.run(scenario())

    assert [line.text for line in written] == ["line 0", "line 1", "line 2", "line 3"]


def test_failures_before_the_end_of_a_job_lose_no_last_lines(
    cluster: Cluster, log: type[_FakeStream]
) -> None:
    """After failures, pods are listed after a minute only. The last lines of a job that ends meanwhile are
    written nevertheless: the wait for them is shorter than that pause."""
    _start_worker(cluster)
    written: list[PodLine] = []

    async def scenario() -> None:
        logs = _logs(cluster, written, [])
        async with logs.streaming():
            logs.observe(_RUNNING)
            await _until(lambda: log.opened)
            logs._pause = training_logs.MAX_LIST_SECONDS
            log.cut()
            await _until(lambda: not logs._followers)
            client.patch_status(cluster, PODS, "mnist-worker-0", {"phase": "Succeeded"})
            log.append(*_LINES)
            await asyncio.sleep(0)  # the pause begins
            logs.observe(replace(_RUNNING, phase=JobPhase.SUCCEEDED))
            threading.Timer(0.5, log.cut).start()

    asyncio.run(scenario())

    assert [line.text for line in written] == ["line 0", "line 1", "line 2", "line 3"]


def test_last_lines_that_cannot_be_read_are_reported(
    cluster: Cluster, log: type[_FakeStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a pod's log does not end in time, the wait ends anyway and says so."""
    monkeypatch.setattr(training_logs, "FINISH_SECONDS", 0.2)
    _start_worker(cluster)
    said: list[str] = []

    async def scenario() -> None:
        logs = _logs(cluster, [], said)
        async with logs.streaming():
            await _until(lambda: log.opened)
            logs.observe(replace(_RUNNING, phase=JobPhase.SUCCEEDED))

    asyncio.run(scenario())

    assert said == [
        f"ElasticJob {cluster.namespace}/mnist: the last lines of its pods could not be read within 0 s"
    ]


def test_without_the_right_to_read_logs_the_wait_goes_on(cluster: Cluster, log: type[_FakeStream]) -> None:
    """If the account may not read logs, the wait writes one line about it and continues."""
    _start_worker(cluster)
    log.error = ForbiddenError("no right")
    said: list[str] = []

    async def scenario() -> None:
        async with _logs(cluster, [], said).streaming():
            await _until(lambda: said)

    asyncio.run(scenario())

    assert said == [f"ElasticJob {cluster.namespace}/mnist: its training logs can't be read: no right"]


def test_kinds_of_kubeflow_have_a_chief_too() -> None:
    """The chief of a Kubeflow job is found by that kind's own labels."""
    job, role, index = TF_JOB.labels
    pods = [_pod("worker", 0), _pod("worker", 1)]
    for number, (pod, name) in enumerate(zip(pods, ("worker", "chief"), strict=True)):
        pod["metadata"]["labels"] = {job: "mnist", role: name, index: str(number)}

    assert choose_pods(TF_JOB, pods, "chief") == [pods[1]]
