"""No request keeps the event loop, and with it all other requests, longer than a tenth of a second."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.storage.revisions import Object

pytestmark = pytest.mark.slow

MAPS = "/api/v1/namespaces/default/configmaps"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/namespaces/default/things"
MOST_CPU_SECONDS = 0.1
"""Of one callback."""


class Client:
    """Requests of the administrator, all in one event loop."""

    def __init__(self, server: ApiServer, longest: list[float]) -> None:
        self._transport = httpx.ASGITransport(build_app(server), raise_app_exceptions=False)
        self._longest = longest

    def run(self, work: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        """What `work` returns."""

        async def whole() -> Any:
            token = {"Authorization": "Bearer secret"}
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://x", headers=token
            ) as client:
                return await work(client)

        return asyncio.run(whole())

    def send(self, method: str, path: str, body: bytes, kind: str = "application/json") -> httpx.Response:
        """One request, and only its callbacks in `longest`."""

        async def one(client: httpx.AsyncClient) -> httpx.Response:
            self._longest.clear()
            return await client.request(method, path, content=body, headers={"Content-Type": kind})

        answer: httpx.Response = self.run(one)
        return answer


@pytest.fixture
def client(server: ApiServer, longest: list[float]) -> Client:
    """Of the server's application."""
    return Client(server, longest)


def definition(spec: Object) -> Object:
    """A definition of Things with this schema of their spec."""
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": spec,
    }


def list_of(items: Object, **keywords: Any) -> Object:
    """A spec with a list."""
    return {"type": "object", "properties": {"l": {"type": "array", "items": items, **keywords}}}


def thing(values: list[Any], name: str = "t") -> bytes:
    """A Thing with this list."""
    return json.dumps({"metadata": {"name": name}, "spec": {"l": values}}).encode()


LARGE = {
    "type": "object",
    "properties": {
        f"f{one}": {
            "type": "object",
            "properties": {f"p{two}": {"type": "string", "pattern": "^a+$"} for two in range(50)},
        }
        for one in range(450)
    },
}
"""A schema of 22,500 fields: about what fits into an object."""


def test_an_object_of_thousands_of_wrong_values(client: Client, longest: list[float]) -> None:
    """The object is refused with all its errors, and other requests are served meanwhile."""
    strict = list_of({"type": "string", "pattern": "^a+$", "maxLength": 5})
    client.send("POST", CRDS, json.dumps(definition(strict)).encode()).raise_for_status()
    answer = client.send("POST", THINGS, thing(["b"] * 9_900))

    assert answer.status_code == 422
    assert len(answer.json()["details"]["causes"]) == 9_900
    assert longest[0] < MOST_CPU_SECONDS


def test_a_large_definition(client: Client, longest: list[float]) -> None:
    """A large definition and its OpenAPI documents are created while other requests are served."""
    created = client.send("POST", CRDS, json.dumps(definition(LARGE)).encode())

    assert created.status_code == 201, created.text[:300]
    assert longest[0] < MOST_CPU_SECONDS
    for path in ("/openapi/v2", "/openapi/v3/apis/example.com/v1"):
        assert client.send("GET", path, b"").status_code == 200
        assert longest[0] < MOST_CPU_SECONDS, path


def test_a_rule_in_a_rule(client: Client, longest: list[float]) -> None:
    """A rule that compares each entry of a list with each other stops at its budget and is rejected with a
    message that says so."""
    rule = "self.l.all(x, self.l.exists(y, y == x + 1) || true)"
    spec = list_of({"type": "integer"}) | {"x-kubernetes-validations": [{"rule": rule}]}
    client.send("POST", CRDS, json.dumps(definition(spec)).encode()).raise_for_status()

    assert client.send("POST", THINGS, thing([1, 2, 3])).status_code == 201
    answer = client.send("POST", THINGS, thing([1] * 1_000, "u"))
    assert answer.status_code == 422
    assert "running out of cost budget" in answer.text
    assert longest[0] < MOST_CPU_SECONDS


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param("application/yaml", b"data:\n" + b"".join(b"  k%d: v\n" % one for one in range(9_000)),
        id="yaml"),
        pytest.param("application/yaml", b"data: [" + b"1," * 150_000 + b"1]", id="a yaml list"),
        pytest.param("application/json", b"[" + b"[]," * 1_000_000 + b"1]", id="json of a million lists"),
        pytest.param("application/json", b"[" + b'"a",' * 700_000 + b"1]", id="json of many strings"),
    ],
)  # fmt: skip
def test_a_long_body(kind: str, body: bytes, client: Client, longest: list[float]) -> None:
    """A long body is read, or refused for its number of values, while other requests are served."""
    answer = client.send("POST", MAPS, body, kind)

    assert 400 <= answer.status_code < 500
    assert longest[0] < MOST_CPU_SECONDS


def test_text_with_many_commas_is_one_value(client: Client) -> None:
    """A table of 250,000 cells in a ConfigMap counts as one value."""
    table = json.dumps({"metadata": {"name": "table"}, "data": {"csv": 'a,"b",\n' * 125_000}}).encode()

    assert client.send("POST", MAPS, table).status_code == 201


def test_writes_that_meet_are_not_lost(client: Client) -> None:
    """Concurrent patches of one large object all take effect."""
    big = {"metadata": {"name": "big"}, "data": {f"k{one}": "v" for one in range(5_000)}}
    client.send("POST", MAPS, json.dumps(big).encode()).raise_for_status()

    async def together(session: httpx.AsyncClient) -> list[httpx.Response]:
        headers = {"Content-Type": "application/merge-patch+json"}
        patches = (
            session.patch(f"{MAPS}/big", json={"data": {f"new{one}": "v"}}, headers=headers)
            for one in range(8)
        )
        return await asyncio.gather(*patches)

    assert [answer.status_code for answer in client.run(together)] == [200] * 8

    async def read(session: httpx.AsyncClient) -> Object:
        found: Object = (await session.get(f"{MAPS}/big")).json()["data"]
        return found

    assert client.run(read).keys() >= {f"new{one}" for one in range(8)}
