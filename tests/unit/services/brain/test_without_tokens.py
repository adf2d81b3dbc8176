"""A Brain without tokens rejects requests of foreign web pages."""

from collections.abc import Iterator

import httpx
import pytest

from edl_workflows.services.brain.server import BrainOptions, BrainServer
from tests.unit.services.brain import support
from tests.unit.services.brain.support import Api

api = support.api

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a Brain that requires no token."""
    folder = tmp_path_factory.mktemp("open-brain")
    server = BrainServer(
        BrainOptions(f"sqlite:///{folder}/brain.db", port=0, allowed_hosts=("Brain.corp.example",))
    )
    with server.serving() as url, httpx.Client(base_url=url, timeout=240) as client:
        yield client


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "svc.evil.example", ""]
)
def test_a_name_of_somebody_else_s_is_refused(http: httpx.Client, host: str) -> None:
    """A page whose host name resolves to this address (DNS rebinding) can neither read nor write."""
    for method in ("GET", "POST"):
        answer = http.request(method, "/v1/jobs", headers={"Host": host, **JSON})
        assert answer.status_code in (400, 421), answer.text


@pytest.mark.parametrize(
    "host",
    [
        "localhost:1",
        "127.0.0.1",
        "[::1]:8080",
        "10.0.0.7:80",
        "edl-brain",
        "edl-brain.edl.svc",
        "b.edl.svc.cluster.local.",
        "brain.corp.example:8443",
    ],
)
def test_addresses_and_services_are_answered(http: httpx.Client, host: str) -> None:
    """Requests by IP address or by a Service's name are answered, since masters and people use these."""
    assert http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a", None]
)
@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/optimize"])
def test_a_form_of_another_page_is_refused(http: httpx.Client, path: str, kind: str | None) -> None:
    """Request bodies that a browser sends to other sites without a preflight are rejected."""
    headers = {"Content-Type": kind} if kind else {}
    assert http.post(path, content=b"{}", headers=headers).status_code == 415


def test_json_is_read(http: httpx.Client) -> None:
    """JSON bodies are read with and without a charset in the content type."""
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        answer: httpx.Response = http.post("/v1/optimize", content=b"{}", headers={"Content-Type": kind})
        assert answer.status_code == 422


def test_where_tokens_are_required_the_token_counts(api: Api) -> None:
    """With tokens, any host name is allowed, since a foreign page does not have the token."""
    headers = {"Authorization": f"Bearer {api.token}", "Host": "brain.example"}
    assert api.http.get(f"{api.url}/v1/jobs", headers=headers).status_code == 200
