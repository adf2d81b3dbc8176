"""Calls of the private Airflow's REST API."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import stamina

from edl_workflows.core.exceptions import UnavailableError
from tests.demo.airflow import Airflow

CALLS = 3


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[Airflow]:
    """One whose services do not run."""
    with stamina.set_testing(True, attempts=CALLS, cap=True):
        airflow = Airflow(tmp_path / "home", tmp_path / "dags", {})
        yield airflow
        airflow.stop()


def answer(airflow: Airflow, monkeypatch: pytest.MonkeyPatch, *statuses: int) -> list[str]:
    """Answer its requests with these statuses; returns the list of the methods that it then sends."""
    sent: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append(request.method)
        return httpx.Response(statuses[len(sent) - 1], json={"dag_run_id": "r"})

    client = httpx.Client(base_url=airflow.url, transport=httpx.MockTransport(handle))
    monkeypatch.setattr(airflow, "_http", client)
    return sent


def test_a_server_error_is_repeated(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """If Airflow answers 500, because its audit log timed out on a lock of SQLite, it has done nothing, and
    the call is repeated."""
    sent = answer(airflow, monkeypatch, 500, 500, 200)

    assert airflow.trigger("train", {}) == "r"
    assert sent == ["POST"] * 3


@pytest.mark.parametrize(("status", "calls"), [(500, CALLS), (404, 1)])
def test_other_errors_are_told(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch, status: int, calls: int
) -> None:
    """A lasting server error is raised after the retries, and a rejected request at once."""
    sent = answer(airflow, monkeypatch, *[status] * CALLS)

    with pytest.raises(UnavailableError, match=f"DELETE /dags/train.*{status}"):
        airflow.call("DELETE", "/dags/train")
    assert len(sent) == calls
