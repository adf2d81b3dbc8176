"""``edl top`` and ``edl get --live``, with an API server that stands between the command and masters."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import pytest
from rich.console import Console
from urllib3.response import HTTPResponse

from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.protocol.training import LiveFigures
from edl_workflows.pipelines import live
from edl_workflows.pipelines.cli.jobs.top import render_table
from edl_workflows.pipelines.cli.output import Table
from edl_workflows.runtime.kube import client, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import elastic_job
from tests.unit.pipelines.cli.edl_command import Edl

FIGURES = {
    "time": 1_800_000_000.0,
    "step": 500,
    "speed": 12.5,
    "records": 4000,
    "records_per_second": 100.0,
    "records_total": 10_000,
    "goodput": 0.93,
    "memory": 2048.0,
    "metrics": {"loss": 0.25, "accuracy": 0.5},
    "added_by_a_later_version": 1,
}
FORBIDDEN = {
    "kind": "Status",
    "message": 'services "elasticjob-a-dlrover-master:50001" is forbidden: User "bob" cannot get resource '
    '"services/proxy" in API group "" in the namespace "x"',
}
UNREACHABLE = {"kind": "Status", "message": "error trying to reach service: connection refused"}

Answer = tuple[int, Mapping[str, Any]]
Masters = Callable[[Answer], list[str]]


@pytest.fixture
def masters(monkeypatch: pytest.MonkeyPatch) -> Masters:
    """Lets the API server's service proxy answer this to all; returns the list of the paths asked for."""

    def answer_all(answer: Answer) -> list[str]:
        paths: list[str] = []

        def answer_proxied(_cluster: Cluster, request: transport.ApiRequest) -> HTTPResponse:
            paths.append(request.path)
            code, document = answer
            return HTTPResponse(BytesIO(json.dumps(document).encode()), status=code, preload_content=False)

        monkeypatch.setattr(transport, "open_foreign", answer_proxied)
        return paths

    return answer_all


def _create(cluster: Cluster, name: str, phase: str, days: float | None = 90, step: int = 40) -> None:
    """Make a job whose status has figures that are so many days old."""
    client.create(cluster, elastic_job(name))
    status: dict[str, Any] = {"phase": phase}
    if days is not None:
        measured = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        status["progress"] = {"step": step, "speed": 1.0, "time": measured, "metrics": {"loss": 7.0}}
        status["goodput"] = {"ratio": 0.5}
    client.patch_status(cluster, ELASTIC_JOBS, name, status)


def test_figures_come_from_the_masters(edl_alone: Edl, cluster: Cluster, masters: Masters) -> None:
    """All jobs that run are listed with what their masters answer; those that have ended or are suspended
    have no master to ask."""
    for name, phase in (("a", "Running"), ("b", "Running"), ("idle", "Suspended"), ("over", "Succeeded")):
        _create(cluster, name, phase)
    paths = masters((200, FIGURES))
    code, out, err = edl_alone("top", "--once")
    assert code == 0, err
    header, *rows = [line.split() for line in out.splitlines()]
    assert header == ["JOB", "PHASE", "STEP", "STEPS/S", "LOSS", "ETA", "GOODPUT", "MEMORY", "FIGURES"]
    figures = ["Running", "500", "12.5", "0.25", "60s", "93%", "2.0", "GiB", "live"]
    assert rows == [["a", *figures], ["b", *figures]]
    assert sorted(paths) == [
        f"/api/v1/namespaces/{cluster.namespace}/services/elasticjob-{name}-dlrover-master:50001/proxy/v1/live"
        for name in ("a", "b")
    ]


def test_json_has_the_numbers(edl_alone: Edl, cluster: Cluster, masters: Masters) -> None:
    """For programs there is one document: a list of jobs, or the job that was named."""
    _create(cluster, "a", "Running")
    masters((200, FIGURES))
    shown = json.loads(edl_alone("top", "-o", "json")[1])
    assert shown == [json.loads(edl_alone("top", "a", "-o", "json")[1])]
    assert shown[0]["live"]
    assert shown[0]["figures"]["metrics"] == {"loss": 0.25, "accuracy": 0.5}
    assert shown[0]["figures"]["secondsLeft"] == 60.0
    assert shown[0]["figures"]["recordsPerSecond"] == 100.0
    assert not [name for name in shown[0]["figures"] if "_" in name]


@pytest.mark.parametrize(
    "answer",
    [(503, UNREACHABLE), (401, {"error": "the job's token is missing"}), (404, {}), (200, {"step": "x"})],
    ids=["unreachable", "older master", "no such route", "nonsense"],
)
def test_the_status_stands_in_for_a_master(
    edl_alone: Edl, cluster: Cluster, masters: Masters, answer: Answer
) -> None:
    """If the master can't be reached, or is of a version without live figures, those of the status are shown
    with their age."""
    _create(cluster, "a", "Running")
    _create(cluster, "young", "Running", days=None)
    masters(answer)
    code, out, err = edl_alone("top", "--once")
    assert code == 0, err
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["a", "Running", "40", "1.0", "7", "50%", "90d", "old"],
        ["young", "Running", "none", "yet"],
    ]
    assert "live figures" in json.loads(edl_alone("top", "a", "-o", "json")[1])["obstacle"]


def test_an_ended_job_has_its_last_figures(edl_alone: Edl, cluster: Cluster, masters: Masters) -> None:
    """Nobody is asked about it."""
    _create(cluster, "over", "Succeeded")
    assert masters((200, FIGURES)) == []
    code, out, err = edl_alone("top", "over", "--once")
    assert (code, out.splitlines()[1].split()[:3]) == (0, ["over", "Succeeded", "40"]), err


@pytest.mark.parametrize("command", [["top", "--once"], ["top", "a"], ["get", "--live"]], ids=" ".join)
def test_a_user_without_the_right_is_refused(
    edl_alone: Edl, cluster: Cluster, masters: Masters, command: list[str]
) -> None:
    """The refusal is the API server's: it names the missing right, and says what to do."""
    _create(cluster, "a", "Running")
    masters((403, FORBIDDEN))
    code, out, err = edl_alone(*command)
    assert (code, out) == (5, "")
    for text in (
        "live figures of ElasticJob",
        '"services/proxy"',
        "ask for a Role that allows it",
        "edl get",
    ):
        assert text in err


def test_get_shows_the_progress_of_the_master(edl_alone: Edl, cluster: Cluster, masters: Masters) -> None:
    """`edl get --live` is `edl get` with newer progress, also in the documents."""
    _create(cluster, "a", "Running")
    _create(cluster, "over", "Succeeded")
    masters((200, FIGURES))
    header, job, over = (line.split() for line in edl_alone("get", "--live")[1].splitlines())
    assert "MEASURED" in header
    assert job[job.index("500") + 1] == "12.5"
    assert over[over.index("40") + 1] == "1.0"
    progress = json.loads(edl_alone("get", "a", "--live", "-o", "json")[1])["status"]["progress"]
    assert (progress["step"], progress["recordsTotal"]) == (500, 10_000)
    assert json.loads(edl_alone("get", "a", "-o", "json")[1])["status"]["progress"]["step"] == 40


def test_few_masters_are_asked_at_once(
    cluster: Cluster, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters that don't answer cost a bounded time for all together, and then the status counts."""
    released, asked = threading.Event(), list[str]()

    def hang(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        asked.append(address.service)
        released.wait(60)
        return b"{}"

    monkeypatch.setattr(client, "read_service", hang)
    monkeypatch.setattr(live, "BATCH_SECONDS", 0.3)
    jobs = [ElasticJob.parse(elastic_job(f"job-{n}")) for n in range(3 * live.AT_ONCE)]
    try:
        measured = live.measure_jobs(cluster, jobs)
    finally:
        released.set()
    assert len(measured) == len(jobs)
    assert all(m.obstacle and m.figures is None for m in measured)
    assert len(asked) <= live.AT_ONCE


def test_a_master_that_does_not_answer_is_asked_less_and_less(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh does not wait again for a master that has just been silent, and others are asked each time.
    A master that answers, or whose job has another phase, is asked at once."""
    asked, now, silent = list[str](), [0.0], {"a"}

    def answer(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        name = address.service.removeprefix("elasticjob-").removesuffix("-dlrover-master")
        asked.append(name)
        if name in silent:
            raise UnavailableError("no answer")
        return json.dumps(FIGURES).encode()

    monkeypatch.setattr(client, "read_service", answer)
    jobs = [ElasticJob.parse(elastic_job(name)) for name in ("a", "b")]
    reader = live.FigureReader(clock=lambda: now[0])

    def refresh(seconds: int) -> dict[str, list[int]]:
        """Which masters are asked at which second."""
        asked_at: dict[str, list[int]] = {"a": [], "b": []}
        for second in range(seconds):
            now[0] = float(second)
            first, other = reader.measure(cluster, jobs)
            assert (first.live, other.live, first.obstacle) == (False, True, "no answer")
            for name in asked:
                asked_at[name].append(second)
            asked.clear()
        return asked_at

    assert refresh(30) == {"a": [0, 4, 12, 28], "b": list(range(30))}
    running = jobs[0].model_copy(update={"status": jobs[0].status.model_copy(update={"phase": "Running"})})
    reader.measure(cluster, [running])
    assert asked.pop() == "a"
    silent.clear()
    now[0] = 60.0
    for _ in range(2):
        assert [measured.live for measured in reader.measure(cluster, jobs)] == [True, True]
    assert sorted(asked) == ["a", "a", "b", "b"]


def test_a_refusal_is_remembered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may ask no master is refused each time, though the API server is asked only once."""
    asked = list[str]()

    def refuse(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        asked.append(address.service)
        raise ForbiddenError("not yours")

    monkeypatch.setattr(client, "read_service", refuse)
    reader = live.FigureReader(clock=lambda: 0.0)
    jobs = [ElasticJob.parse(elastic_job("a"))]
    for _ in range(3):
        with pytest.raises(ForbiddenError):
            reader.measure(cluster, jobs)
    assert len(asked) == 1


def test_a_refusal_holds_for_its_caller(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that share a reader may have different rights: one of them has the figures that another
    one may not have, and does not see whose account was refused."""
    entitled = replace(cluster, key="entitled")

    def answer(asking: Cluster, _address: client.ServiceAddress, _action: str) -> bytes:
        if asking.key != entitled.key:
            raise ForbiddenError("system:serviceaccount:a:airflow may not")
        return json.dumps(FIGURES).encode()

    monkeypatch.setattr(client, "read_service", answer)
    reader = live.FigureReader(clock=lambda: 0.0)
    jobs = [ElasticJob.parse(elastic_job("a"))]
    with pytest.raises(ForbiddenError):
        reader.measure(cluster, jobs)
    assert reader.measure(entitled, jobs)[0].live


def test_a_silent_master_that_is_not_asked_keeps_its_pause(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If others use up the time of a refresh, a master that has often been silent is not asked more often."""
    asked, now, late = list[float](), [0.0], [False]

    def ask(_cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[LiveFigures | EdlError]:
        asked.extend(now[0] for _ in jobs)
        return [live._NotAskedError("late") if late[0] else UnavailableError("no answer") for _ in jobs]

    monkeypatch.setattr(live, "_ask_masters", ask)
    reader = live.FigureReader(clock=lambda: now[0])
    jobs = [ElasticJob.parse(elastic_job("a"))]
    for second in (0.0, 4.0, 12.0):
        now[0] = second
        reader.measure(cluster, jobs)
    late[0], now[0] = True, 28.0
    reader.measure(cluster, jobs)
    late[0], now[0] = False, 29.0
    reader.measure(cluster, jobs)
    now[0] = 50.0
    reader.measure(cluster, jobs)
    assert asked == [0.0, 4.0, 12.0, 28.0, 29.0]


def test_masters_that_were_not_asked_in_time_get_no_pause(
    cluster: Cluster, masters: Masters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masters that hang use up the time for all. The others are asked at the next refresh."""
    released, hang = threading.Event(), {f"job-{n}" for n in range(live.AT_ONCE)}

    def answer(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        if address.service.removeprefix("elasticjob-").removesuffix("-dlrover-master") in hang:
            released.wait(60)
        return json.dumps(FIGURES).encode()

    monkeypatch.setattr(client, "read_service", answer)
    monkeypatch.setattr(live, "BATCH_SECONDS", 0.3)
    jobs = [ElasticJob.parse(elastic_job(f"job-{n}")) for n in range(live.AT_ONCE + 3)]
    reader = live.FigureReader(clock=lambda: 0.0)
    try:
        assert not any(measured.live for measured in reader.measure(cluster, jobs))
        monkeypatch.setattr(live, "BATCH_SECONDS", 60.0)
        second = reader.measure(cluster, jobs)
    finally:
        released.set()
    assert [measured.live for measured in second] == [False] * live.AT_ONCE + [True] * 3


def test_masters_that_may_be_asked_are_asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Role may name the masters of some jobs, and a program behind a Service may answer as an API server
    that refuses the request: of other jobs there are live figures all the same."""

    def answer(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        if "-theirs-" in address.service:
            raise ForbiddenError("not theirs")
        return json.dumps(FIGURES).encode()

    monkeypatch.setattr(client, "read_service", answer)
    jobs = [ElasticJob.parse(elastic_job(name)) for name in ("theirs", "mine")]
    theirs, mine = live.measure_jobs(cluster, jobs)
    assert "not theirs" in theirs.obstacle
    assert not mine.obstacle
    with pytest.raises(ForbiddenError):
        live.measure_jobs(cluster, jobs[:1])


@pytest.mark.parametrize(
    ("total", "speed", "left"),
    [(10, 2.0, 3.0), (4, 0.0, 0.0), (10, 0.0, None), (10**400, 2.0, None), (9, 1e-320, None), (3, 2.0, None)],
    ids=["some", "none", "stands still", "too many", "too slow", "more than all"],
)
def test_the_remaining_time_is_a_number_or_unknown(total: int, speed: float, left: float | None) -> None:
    """No figures of a job keep the others from being shown."""
    figures = LiveFigures(time=1.0, records=4, records_total=total, records_per_second=speed)
    assert figures.seconds_left == left


def test_the_screen_shows_what_fits() -> None:
    """A terminal gets the same table, texts of others escaped, and the number of jobs that have no room."""
    console = Console(width=60, force_terminal=False)
    with console.capture() as capture:
        console.print(render_table(Table(("job", "step"), [("a\x1b[31m", 5)]), further=7))
    lines = capture.get().splitlines()
    assert lines[0].split() == ["JOB", "STEP"]
    assert lines[1].split() == [r"a\x1b[31m", "5"]
    assert lines[2].startswith("and 7 more")
