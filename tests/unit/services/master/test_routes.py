"""The master's API is the one of the table of routes: paths, models, durability and openness."""

import asyncio
import re
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import edl_workflows
from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.routes import ROUTES, Route
from edl_workflows.services.master.app import create_app
from tests.unit.core.protocol.route_examples import REQUESTS
from tests.unit.services.master.served_master import Served, with_master

PATHS: dict[str, dict[str, Any]] = create_app(MagicMock(), "token").openapi()["paths"]
RAW = (routes.LEASE, routes.ACKNOWLEDGE)
"""The server parses and renders their messages without OpenAPI."""


def test_the_server_has_the_routes_of_the_table() -> None:
    """The server answers each route of the table, and no others."""
    served = [(method.upper(), path) for path, methods in PATHS.items() for method in methods]

    assert sorted(served) == sorted((route.method, route.path) for route in ROUTES)


@pytest.mark.parametrize("route", [r for r in ROUTES if r not in RAW], ids=lambda r: f"{r.method} {r.path}")
def test_a_route_has_the_models_of_the_table(route: Route[Any, Any]) -> None:
    """The server reads the request's model from the body, or from the query of a GET, and answers with the
    answer's model."""
    operation = PATHS[route.path][route.method.lower()]
    parameters = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    model = route.request.__name__ if route.request is not None and route.method == "POST" else ""

    assert body.get("schema", {}).get("$ref", "").rpartition("/")[2] == model
    assert tuple(parameter["name"] for parameter in parameters) == route.query
    if issubclass(route.answer, Message):
        assert answer["$ref"].rpartition("/")[2] == route.answer.__name__


def test_only_open_routes_need_no_token() -> None:
    """Without the token, the server answers exactly the routes that the table calls open."""

    async def test(it: Served) -> None:
        for route in ROUTES:
            response = await it.client.request(route.method, route.path, headers={"Authorization": ""})
            assert (response.status_code == 200) == route.open, route
            assert response.status_code in (200, 401)

    with_master(test)


def test_durable_routes_wait_for_the_store() -> None:
    """While the store rejects writes, the durable routes of the table are not answered, and the others are.
    All are answered once it accepts them."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        stream = {"splitter": "streaming", "shard_size": 1, "partitions": {"p": {"end": 1}}}
        await it.post("/v1/datasets", name="stream", **stream)
        ticket = (await it.post("/v1/checkpoints", node=REQUESTS[routes.RESULT]["node"], version=1))["id"]
        assert {route for route in ROUTES if route.method == "POST"} <= {*REQUESTS, routes.OPEN_BARRIER}

        def call(route: Route[Any, Any]) -> Any:
            name = "stream" if route is routes.OFFSETS else "train"
            path = route.path.format(name=name, ticket=ticket)
            message = REQUESTS.get(route, {})
            return (
                it.client.get(path, params=message)
                if route.method == "GET"
                else it.client.post(path, json=message)
            )

        it.store.open = False
        blocked = asyncio.create_task(it.post("/v1/datasets", name="other", size=1, shard_size=1))
        waiting = {asyncio.create_task(call(route)): route for route in ROUTES if route.durable}
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not [waiting[task] for task in done]
        for route in ROUTES:
            if not route.durable:
                assert (await call(route)).status_code == 200, route
        it.store.open = True
        await blocked
        for task, route in waiting.items():
            assert (await task).status_code == 200, (route, (await task).text)

    with_master(test)


def test_docstrings_name_routes_of_the_table() -> None:
    """A route that a docstring of the messages names is in the table."""
    folder = Path(edl_workflows.__file__).parent / "core" / "protocol"
    files = [folder / f"{name}.py" for name in ("nodes", "datasets", "training", "sync")]
    named = re.findall(r"`(GET|POST) (/v1/[^`?]*)", "".join(file.read_text() for file in files))
    assert len(named) > 15

    known = {(route.method, re.sub(r"{\w+}", "{}", route.path)) for route in ROUTES}
    assert {(method, re.sub(r"{\w+}", "{}", path)) for method, path in named} <= known
