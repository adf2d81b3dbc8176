"""Who is let in, how often and with how much; and that every answer is the envelope."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.rate_limit import RateLimit, TokenBuckets
from edl_workflows.services.di_server.guard import Admission
from tests.unit.services.di_server.support import ADMIN, HTTP, Api, create, data, refusal, replicas

pytestmark = pytest.mark.slow


def test_a_job_s_token_lets_in_to_that_job_only(api: Api, cluster: Cluster) -> None:
    """Tokens of other jobs, wrong and missing tokens get the same response, whether or not the job exists."""
    create(cluster, token="ours")
    create(cluster, name="other", token="theirs")
    create(cluster, name="young")
    for name in ("walk", "other", "young"):
        api.seen(name)
    assert data(api.as_("ours").ask("POST", api.path(), json={"replicas": 1})) is None
    for token in ("theirs", "wrong", "our", "\u00fc", ""):
        for name in ("walk", "gone", "young"):
            headers = {b"Authorization": b"Bearer " + token.encode() if token else b"Basic b3VyczpvdXJz"}
            url = f"{api.url}/v2alpha1/{api.path(name=name)}"
            answer = HTTP.post(url, json={"replicas": 1}, headers=headers)
            refusal(answer, 401)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    refusal(api.as_("").ask("GET", api.path()), 401)
    assert replicas(cluster)["collector"] == 3
    assert replicas(cluster, "other")["collector"] == 2


def test_an_answer_does_not_repeat_a_token(api: Api, cluster: Cluster) -> None:
    """A rejection does not contain the token that was sent."""
    assert "secret-7" not in api.as_("secret-7").ask("GET", api.path()).text


class TestWithoutTokens:
    """Where tokens aren't required upstream's own clients work."""

    @pytest.fixture
    def admission(self) -> Admission:
        return Admission(require_token=False)

    def test_anybody_may(self, api: Api, cluster: Cluster) -> None:
        """Without tokens no header is needed, and bodies are read whatever their Content-Type is."""
        create(cluster)
        anonymous = api.as_("")
        anonymous.seen()
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = HTTP.post(f"{api.url}/v2alpha1/{api.path()}", content=b'{"replicas": 1}', headers=form)
        assert data(answer) is None


class TestSmall:
    """With small limits."""

    @pytest.fixture
    def admission(self) -> Admission:
        return Admission(
            admin_token=ADMIN, per_job=RateLimit(0.001, 3), per_client=RateLimit(0.001, 1000), max_body=100
        )

    def test_a_job_that_asks_too_often_waits(self, api: Api, cluster: Cluster) -> None:
        """The job gets 429 with Retry-After; requests of other jobs are served."""
        create(cluster)
        create(cluster, name="other")
        answers = [api.ask("GET", api.path()) for _ in range(4)]
        message = refusal(answers[-1], 429)
        assert "too many requests of DIJob" in message
        assert int(answers[-1].headers["Retry-After"]) > 900
        api.seen("other")

    def test_wrong_tokens_don_t_use_up_a_job_s_rate(self, api: Api, cluster: Cluster) -> None:
        """Requests with a wrong token can't lock out the job's own programs."""
        for _ in range(9):
            refusal(api.as_("wrong").ask("GET", api.path()), 401)
        refusal(api.ask("GET", api.path()), 404)

    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_large_body_is_refused(self, api: Api, chunked: bool) -> None:
        """A large body gets 413, either by its Content-Length or while it is read."""
        body = b"x" * 101
        content: Any = iter([body[:50], body[50:]]) if chunked else body
        url = f"{api.url}/v2alpha1/{api.path('profilings')}"
        headers = {"Authorization": f"Bearer {ADMIN}"}
        assert "more than 100 bytes" in refusal(HTTP.post(url, content=content, headers=headers), 413)


class TestOneClient:
    """With a small limit for each address."""

    @pytest.fixture
    def admission(self) -> Admission:
        return Admission(admin_token=ADMIN, per_client=RateLimit(0.001, 3))

    def test_an_address_that_asks_too_often_waits(self, api: Api) -> None:
        """The limit by address applies to all paths, with and without a token."""
        for path in ("nowhere", api.path(), "a/b/c"):
            assert api.as_("").ask("GET", path).status_code in (401, 404)
        answer = api.ask("GET", api.path())
        assert "this address" in refusal(answer, 429)
        assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 404),
        ("GET", "walk", 404),
        ("GET", "a.b/replicas/", 404),
        ("GET", "a.b/replicas%0A", 404),
        ("GET", "job/a.b/c/replicas", 404),
        ("GET", "job/a.b/nodes", 404),
        ("PUT", "job/a.b/replicas", 405),
        ("OPTIONS", "a.b/replicas", 405),
        ("GET", "a.b/profilings", 405),
        ("DELETE", "a.b/profilings", 405),
        ("GET", "%2e%2e/replicas", 400),
        ("GET", "\u00fc.b/replicas", 400),
        ("GET", "a.b%00/replicas", 400),
        ("GET", "a.b/replicas?timeout=61", 422),
        ("GET", "a.b/replicas?timeout=-1", 422),
        ("GET", "a.b/replicas?timeout=nan", 422),
        ("GET", "a.b/replicas?timeout=soon", 422),
    ],
)
def test_wrong_paths_and_methods_are_told(api: Api, method: str, path: str, status: int) -> None:
    """Unknown paths and methods are answered in the same envelope as other errors."""
    assert refusal(api.ask(method, path), status)


def test_the_openapi_document_is_open(api: Api) -> None:
    """The document is served without a token, and describes each error response with its envelope."""
    answer = httpx.get(f"{api.url}/openapi.json")
    document = answer.json()
    assert answer.status_code == 200
    assert set(document["paths"]) == {
        f"/v2alpha1/{form}{call}"
        for form in ("job/{job_id}/", "{job_id}/")
        for call in ("replicas", "profilings")
    }
    for path in document["paths"].values():
        for operation in path.values():
            assert {"200", "400", "401", "404", "408", "413", "422", "429", "500", "503"} <= set(
                operation["responses"]
            )
            assert "Envelope" in json.dumps(operation["responses"]["404"])


def test_buckets() -> None:
    """A bucket allows a burst and then the rate. A key that was dropped starts with a full bucket."""
    now = [0.0]
    buckets = TokenBuckets(RateLimit(per_second=2.0, burst=3.0), lambda: now[0], memory=2)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now[0] = 0.5
    assert [buckets.take("a") for _ in range(2)] == [0.0, 0.5]
    assert buckets.take("b") == buckets.take("c") == 0.0
    assert buckets.take("a") == 0.0


def test_a_slow_body_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, api: Api) -> None:
    """A client that does not send the body it announced gets 408."""
    monkeypatch.setattr("edl_workflows.services.di_server.guard.BODY_SECONDS", 0.2)

    async def send_half() -> bytes:
        reader, writer = await asyncio.open_connection(*api.url.removeprefix("http://").split(":"))
        head = f"POST /v2alpha1/{api.path()} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n"
        writer.write(head.encode() + b"Content-Length: 50\r\n\r\n{")
        answer = await reader.readuntil(b"\r\n")
        writer.close()
        return answer

    assert b" 408 " in asyncio.run(send_half())
