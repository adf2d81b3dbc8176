"""Requests made to break or to stall the server: each is refused, quickly and never with 500."""

import asyncio
import copy
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.storage.revisions import Object

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DIGITS = "9" * 5000
LONG_SECONDS = 5.0
"""Of processor time: far more than any of these takes, and far less than the old code took for the slow
ones."""


class Http:
    """Requests of the administrator, without sockets; an exception of the server becomes a 500, as for any
    client."""

    def __init__(self, server: ApiServer) -> None:
        self._transport = httpx.ASGITransport(build_app(server), raise_app_exceptions=False)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""

        async def one() -> httpx.Response:
            token = {"Authorization": "Bearer secret"}
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://x", headers=token
            ) as client:
                return await client.request(method, path, **options)

        return asyncio.run(one())


@pytest.fixture
def http(server: ApiServer) -> Http:
    """The server's application."""
    return Http(server)


@pytest.mark.parametrize(
    "query",
    [
        pytest.param({"limit": DIGITS}, id="limit"),
        pytest.param({"timeoutSeconds": DIGITS, "watch": "1"}, id="timeout"),
        pytest.param({"resourceVersion": DIGITS}, id="version"),
        pytest.param({"labelSelector": f"a>{DIGITS}"}, id="label"),
        pytest.param({"labelSelector": "a," * 4000}, id="requirements"),
        pytest.param({"labelSelector": "," * 20_000 + "("}, id="commas and an open bracket"),
        pytest.param({"fieldSelector": "metadata.name=a," * 1500}, id="fields"),
    ],
)
def test_a_query_that_asks_too_much(query: dict[str, str], http: Http) -> None:
    """A query with numbers of thousands of digits or with very long selectors is a BadRequest."""
    began = time.process_time()
    answer = http.send("GET", MAPS, params=query)

    assert answer.status_code == 400, answer.text[:300]
    assert time.process_time() - began < LONG_SECONDS


def nested(depth: int) -> Object:
    """A ConfigMap with an unknown field of this depth."""
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return {"metadata": {"name": "m"}, "data": value}


def pod_of(**fields: Any) -> Object:
    """A pod whose container has these fields."""
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "x", **fields}]}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param(MAPS, nested(150), id="deep"),
        pytest.param(MAPS, nested(600), id="deeper than the stack"),
        pytest.param(PODS, pod_of(env=[{"name": f"A{one}"} for one in range(20_000)]), id="many variables"),
        pytest.param(
            PODS, pod_of(volumeMounts=[{"name": "v", "mountPath": f"/{one}"} for one in range(20_000)]),
            id="many mounts",
        ),
    ],
)  # fmt: skip
def test_an_object_beyond_the_bounds(path: str, body: Object, http: Http) -> None:
    """An object beyond the bounds is rejected before its fields are checked."""
    began = time.process_time()
    answer = http.send("POST", path, json=body)

    assert answer.status_code == 413, answer.text[:300]
    assert time.process_time() - began < LONG_SECONDS


def definition(schema: Any, **spec: Any) -> Object:
    """A definition of Things with this schema."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "kind": "Thing"}
    common = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "things.example.com"}, "spec": {**common, **spec}}


FULL: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["a"],
            "properties": {
                "a": {"type": "string", "pattern": "a+", "enum": ["a"], "default": "a", "minLength": 1},
                "n": {"type": "integer", "minimum": 1, "exclusiveMinimum": True, "multipleOf": 1},
                "l": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "m": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
                "x": {"x-kubernetes-preserve-unknown-fields": True, "anyOf": [{"type": "string"}],
                "not": {"enum": [1]}},
            },
            "x-kubernetes-validations": [{"rule": "self.a != 'x'", "message": "m",
            "messageExpression": "'a'"}],
        }
    },
}  # fmt: skip
"""A schema with most keywords."""
JUNK: tuple[Any, ...] = (0, -1, 1.5, "", "x", "(", [], {}, [1], [[]], [{}], {"a": 1}, True, DIGITS)
THINGS: tuple[Object, ...] = (
    {"spec": {"a": "a", "n": 2, "l": ["a", "a"], "m": {"x": "y"}, "x": 1}},
    {"spec": [1]},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values below."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in steps:
        yield (*path, step)
        yield from places(child, (*path, step))


def with_junk(path: tuple[Any, ...], junk: Any) -> Object:
    """The full schema with one value replaced."""
    schema = copy.deepcopy(FULL)
    at: Any = schema
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = junk
    return schema


def collect(server: ApiServer) -> None:
    """Delete what waits for it."""
    while server.collector.step():
        pass


def test_malformed_definitions(http: Http, server: ApiServer) -> None:
    """A definition with a value of the wrong type anywhere in its schema is rejected with the field, or it
    works. Neither the definition nor an object of its kind gets a 500."""
    wrong = []
    for path in places(FULL):
        for junk in JUNK:
            answer = http.send("POST", CRDS, json=definition(with_junk(path, junk)))
            codes = [answer.status_code]
            if answer.status_code == 201:
                things = "/apis/example.com/v1/namespaces/default/things"
                codes += [
                    http.send("POST", things, json={"metadata": {"generateName": "t"}, **one}).status_code
                    for one in THINGS
                ]
                http.send("DELETE", f"{CRDS}/things.example.com")
                collect(server)
            wrong += [(path, junk, code) for code in codes if code >= 500]

    assert wrong == []


@pytest.mark.parametrize("pattern", ["(", "(?=a)b", r"(a)\1"])
def test_a_pattern_that_is_none(pattern: str, http: Http) -> None:
    """A pattern that RE2 does not accept is Invalid at its field, as in Kubernetes."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    answer = http.send("POST", CRDS, json=definition(schema))

    assert answer.status_code == 422
    path = "spec.versions[0].schema.openAPIV3Schema.properties[a].pattern"
    assert [cause["field"] for cause in answer.json()["details"]["causes"]] == [path]


def test_patterns_take_linear_time(http: Http) -> None:
    """A pattern that would make backtracking take for ever is answered at once."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|aa)+$"}}}
    http.send("POST", CRDS, json=definition(schema)).raise_for_status()
    began = time.process_time()
    answer = http.send(
        "POST",
        "/apis/example.com/v1/namespaces/default/things",
        json={"metadata": {"name": "t"}, "a": "a" * 60 + "b"},
    )

    assert answer.status_code == 422
    assert time.process_time() - began < LONG_SECONDS
