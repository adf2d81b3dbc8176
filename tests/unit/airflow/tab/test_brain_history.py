"""What Brain answers about a job."""

import httpx
import pytest

from edl_workflows.airflow.tab.brain_history import MAX_ANSWER, read_history
from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError

JOB = {"uid": "u", "kind": "ElasticJob", "namespace": "n", "name": "j", "phase": "Running", "seen": 2.0}


def ask(status: int, **body: object) -> object:
    """What is read from an answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.headers["authorization"]) == ("/v1/jobs/u", "Bearer secret")
        return httpx.Response(status, **body)  # type: ignore[arg-type]

    return read_history("http://brain:8082/", "secret", "u", httpx.MockTransport(answer))


def test_a_job_that_brain_knows() -> None:
    """The answer has the job's row, points and plans, and is None for a job that Brain does not know."""
    known = ask(200, json={"now": 3.0, "job": JOB, "points": [], "plans": []})

    assert known is not None
    assert ask(404) is None


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, {}, ForbiddenError),
        (403, {}, ForbiddenError),
        (500, {}, UnavailableError),
        (200, {"text": "<html>"}, UnavailableError),
        (200, {"json": {"now": 3.0}}, UnavailableError),
        (200, {"content": b" " * (MAX_ANSWER + 1)}, UnavailableError),
    ],
    ids=["no token", "no right", "broken", "no JSON", "another document", "too large"],
)
def test_what_is_no_answer(status: int, body: dict[str, object], error: type[EdlError]) -> None:
    """Each invalid answer raises an error of ours with Brain's address."""
    with pytest.raises(error, match="Brain at http://brain:8082/"):
        ask(status, **body)


def test_a_uid_of_an_xcom_leads_to_no_other_path() -> None:
    """The author of an XCom can't use the connection's token for other requests of Brain."""
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(404)

    read_history("http://brain:8082", "secret", "../../metrics?a=#b", httpx.MockTransport(answer))

    assert asked == [b"/v1/jobs/..%2F..%2Fmetrics%3Fa%3D%23b"]
