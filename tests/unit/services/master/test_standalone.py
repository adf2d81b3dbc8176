"""ScalePlans by HTTP, for a master without a Kubernetes API: whatever is sent is answered, and none of it is
a defect.
"""

import asyncio
import json
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import pytest
from fastapi import FastAPI

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.routes import STANDALONE_ROUTES
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.standalone import StandaloneBackend, add_plan_routes, parse_nodes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.stores.file import FileStore


def plan(**changed: object) -> bytes:
    """A valid plan with other fields."""
    head = {"apiVersion": names.API_VERSION, "kind": "ScalePlan", "metadata": {"name": "more"}}
    spec = {"ownerJob": "job", "replicaResourceSpecs": {"worker": {"replicas": 2}}}
    return json.dumps({**head, "spec": spec, **changed}).encode()


BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "null": b"null",
    "a number without end": b'{"metadata": ' + b"9" * 5_000 + b"}",
    "no number": plan(more=float("nan")),
    "half a surrogate pair": plan(metadata={"name": "more", "annotations": {"a": "\ud800"}}),
    "nested without end": b'{"a":' * 100_000,
    "a list as metadata": plan(metadata=["name"]),
    "a text as metadata": plan(metadata="more"),
    "no metadata": plan(metadata=None),
    "no name": plan(metadata={}),
    "a map as a name": plan(metadata={"name": {}}),
    "a list as a name": plan(metadata={"name": []}),
    "no spec": plan(spec=None),
    "a list as a spec": plan(spec=[]),
    "another kind": plan(kind="Pod"),
    "a negative count": plan(spec={"ownerJob": "job", "replicaResourceSpecs": {"worker": {"replicas": -1}}}),
    "an endless count": plan(
        spec={"ownerJob": "job", "replicaResourceSpecs": {"worker": {"replicas": 10**400}}}
    ),
}


def asked(folder: Path, method: str, path: str, body: bytes = b"", times: int = 1) -> list[int]:
    """The statuses of the same request, sent so often; the plans are looked at after each, as the master
    does.
    """

    async def main() -> list[int]:
        settings = JobSettings("job", "default", parse_nodes("worker=1"))
        master = Master(JobState(settings), FileStore(folder / "state"))
        app = create_app(master, "secret")
        add_plan_routes(app, master, StandaloneBackend(folder / "plans.json", settings))
        headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://m", headers=headers) as http:
            return [(await http.request(method, path, content=body)).status_code for _ in range(times)]

    return asyncio.run(main())


def test_the_routes_are_those_of_the_table() -> None:
    """A standalone master adds the routes of its table, and no others."""
    app = FastAPI()
    add_plan_routes(app, MagicMock(), MagicMock())
    served = [(method.upper(), path) for path, each in app.openapi()["paths"].items() for method in each]

    assert sorted(served) == sorted((route.method, route.path) for route in STANDALONE_ROUTES)


@pytest.mark.parametrize("row", BODIES)
def test_a_bad_plan_is_refused(row: str, tmp_path: Path) -> None:
    """A bad plan is rejected with status 400 or 422, and nothing is stored."""
    (status,) = asked(tmp_path, "POST", "/v1/scaleplans", BODIES[row])
    assert status in (400, 422)
    assert not (tmp_path / "plans.json").exists()


def test_a_plan_is_taken_once(tmp_path: Path) -> None:
    """A second plan of the same name is a conflict."""
    assert asked(tmp_path, "POST", "/v1/scaleplans", plan(), times=2) == [200, 409]


def test_what_the_server_sets_is_not_the_client_s(tmp_path: Path) -> None:
    """A client can't set the deletionTimestamp, generation, uid or finalizers of a plan that it posts."""
    times = {
        "deletionTimestamp": "2020-01-01T00:00:00Z",
        "generation": 7,
        "uid": "mine",
        "finalizers": ["a/b"],
    }
    assert asked(tmp_path, "POST", "/v1/scaleplans", plan(metadata={"name": "more", **times})) == [200]
    stored = json.loads((tmp_path / "plans.json").read_text())["more"]["metadata"]
    assert stored.keys() == {"name", "uid", "labels", "creationTimestamp"}
    assert stored["uid"] != "mine"


@pytest.mark.parametrize("name", ["missing", "a%00b", "%ff", "..%2f..", "a" * 5_000])
@pytest.mark.parametrize(("method", "statuses"), [("GET", (404,)), ("DELETE", (200, 404))])
def test_a_plan_that_is_not_there(method: str, statuses: tuple[int, ...], name: str, tmp_path: Path) -> None:
    """A plan that does not exist gets 404 on GET, whatever its name, and no server error on DELETE."""
    assert asked(tmp_path, method, f"/v1/scaleplans/{name}")[0] in statuses
