"""The parts together, in process: the client of the neighbours, logs, tokens, collection."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from edl_workflows.local.apiserver import auth, discovery, errors, requests, views
from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects import garbage
from edl_workflows.local.apiserver.objects.deletion import DeletionOptions
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.subresources import LogRequest


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "a", "image": "i"}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": containers, **spec}}


def test_scheduler_and_runner_path(server: ApiServer) -> None:
    """A component can create, bind, report on, mark and finish a pod, and a watch shows all of it."""
    client = server.client
    start = client.revision
    client.create("pods", _pod("p"))
    client.bind("p", "default", "n1")
    client.patch("pods", "p", {"status": {"phase": "Running"}}, "default", subresource="status")
    client.delete("pods", "p", "default")
    marked = client.get("pods", "p", "default")
    client.delete("pods", "p", "default", grace=0, uid=marked["metadata"]["uid"])

    async def events() -> list[str]:
        seen: list[str] = []
        async for kind, _ in client.watch("pods", since=start):
            seen.append(kind)
            if kind == "DELETED":
                break
        return seen

    assert asyncio.run(events()) == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert client.find("pods", "p", "default") is None


def test_a_pod_of_500_containers_reports_its_status(server: ApiServer) -> None:
    """A pod that was accepted reports the status of each of its containers, and its metadata changes later,
    although it then has more fields than an object may be created with."""
    client, names = server.client, [f"c{number}" for number in range(500)]
    client.create("pods", _pod("p", containers=[{"name": name, "image": "i"} for name in names]))
    terminated = {"terminated": {"exitCode": 1, "reason": "Error", "message": "m", "finishedAt": None}}
    fields = {"image": "i", "imageID": "", "ready": False, "restartCount": 1}
    states = {"state": terminated, "lastState": terminated}
    statuses = [{"name": name, **fields, **states} for name in names]
    client.patch("pods", "p", {"status": {"containerStatuses": statuses}}, "default", subresource="status")
    client.patch("pods", "p", {"metadata": {"labels": {"a": "b"}}}, "default")

    stored = client.get("pods", "p", "default")
    assert (len(stored["status"]["containerStatuses"]), stored["metadata"]["labels"]) == (500, {"a": "b"})
    with pytest.raises(ApiError, match="more than 10000 fields"):
        client.create("pods", {**stored, "metadata": {"name": "q", "namespace": "default"}})


def test_client_selects(server: ApiServer) -> None:
    """The client within the process lists by field selector and by namespace."""
    server.client.create("pods", _pod("p"))
    server.client.bind("p", "default", "n1")

    assert len(server.client.list_objects("pods", field_selector="spec.nodeName=n1")) == 1
    assert server.client.list_objects("pods", "kube-system") == []


def test_client_conflict(server: ApiServer) -> None:
    """An update based on an older version than the current one is a Conflict."""
    stale = server.client.create("configmaps", {"metadata": {"name": "c", "namespace": "default"}})
    server.client.patch("configmaps", "c", {"data": {"n": "1"}}, "default")
    with pytest.raises(ApiError) as refused:
        server.client.update("configmaps", stale)

    assert refused.value.reason == "Conflict"


def test_collector_finishes_a_tree(server: ApiServer) -> None:
    """All dependents of a deleted owner are deleted, whatever the depth."""
    client = server.client
    owner = client.create("configmaps", {"metadata": {"name": "c0", "namespace": "default"}})
    for depth in range(1, 20):
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        metadata = {"name": f"c{depth}", "namespace": "default", "ownerReferences": [reference]}
        owner = client.create("configmaps", {"metadata": metadata})
    client.delete("configmaps", "c0", "default")
    while server.collector.step():
        pass

    assert client.list_objects("configmaps", "default") == []


def test_events_end(server: ApiServer) -> None:
    """An Event is removed an hour after it was last seen, however old it is."""
    now = datetime(2030, 1, 1, 12, tzinfo=UTC)
    for name, seen in (("old", "2030-01-01T10:59:00Z"), ("repeated", "2030-01-01T11:30:00Z")):
        involved = {"kind": "Pod", "namespace": "default", "name": "p"}
        metadata = {"name": name, "namespace": "default"}
        server.client.create(
            "events", {"metadata": metadata, "involvedObject": involved, "lastTimestamp": seen}
        )
    asyncio.run(garbage.expire_events_once(server.registry, now))

    assert [one["metadata"]["name"] for one in server.client.list_objects("events")] == ["repeated"]


def test_yaml_bombs_are_refused(server: ApiServer) -> None:
    """A YAML body may not use aliases, which would make a small body a huge object."""
    with pytest.raises(ApiError, match="aliases") as refused:
        requests.parse_body(b"a: &a [x, x]\nb: [*a, *a]\n", "application/yaml")

    assert refused.value.code == 400


def _get(server: ApiServer, path: str, **headers: str) -> httpx.Response:
    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
            return await client.get(path, headers={"authorization": "Bearer secret", **headers})

    return asyncio.run(get())


def test_logs_come_from_the_provider(server: ApiServer) -> None:
    """The registered provider gets the whole request for a log, and its chunks are the response."""
    asked: list[LogRequest] = []

    async def provide(request: LogRequest) -> AsyncIterator[bytes]:
        asked.append(request)
        yield b"one\n"
        yield b"two\n"

    made = server.client.create("pods", _pod("p"))
    server.logs = provide
    answer = _get(
        server, "/api/v1/namespaces/default/pods/p/log?tailLines=5&follow=true&previous=true&timestamps=1"
    )

    assert answer.text == "one\ntwo\n"
    expected = LogRequest("default", "p", made["metadata"]["uid"], "a", True, True, 5, None, None, True)
    assert asked == [expected]


def test_openapi_v2_as_protobuf(server: ApiServer) -> None:
    """A client that accepts only protobuf, as kubectl does for a list or an unknown kind, gets a document of
    the OpenAPI version 2; one that accepts JSON gets JSON, and one that accepts neither a 406."""
    protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    document = _get(server, "/openapi/v2", accept=protobuf)

    assert document.headers["content-type"] == "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    version = discovery.SERVER_VERSION["gitVersion"].encode()
    info = b"\n\nKubernetes\x12" + bytes([len(version)]) + version
    assert document.content == b"\n\x032.0\x12" + bytes([len(info)]) + info
    assert _get(server, "/openapi/v2", accept=f"{protobuf},application/json").json()["swagger"] == "2.0"
    assert _get(server, "/openapi/v2", accept="text/html").status_code == 406
    assert _get(server, "/api/v1/pods", accept=protobuf).status_code == 406


def test_refused_log(server: ApiServer) -> None:
    """If the provider of logs rejects a request, the response has its status. Without a provider it is
    503."""

    async def refuse(request: LogRequest) -> AsyncIterator[bytes]:
        if request.container == "a":
            raise errors.bad_request('container "a" is waiting to start: ContainerCreating')
        yield b"unreached"

    server.client.create("pods", _pod("p"))
    path = "/api/v1/namespaces/default/pods/p/log"
    without = _get(server, path)
    server.logs = refuse
    refused = _get(server, path)

    assert (without.status_code, refused.status_code) == (503, 400)
    assert "ContainerCreating" in refused.json()["message"]


def test_unexpected_errors_are_a_status(server: ApiServer) -> None:
    """A defect of the server gives a 500 with a Status, not a broken connection."""

    def explode(request: LogRequest) -> AsyncIterator[bytes]:
        raise RuntimeError("boom")

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(server), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
            headers = {"authorization": "Bearer secret"}
            return await client.get("/api/v1/namespaces/default/pods/p/log", headers=headers)

    server.client.create("pods", _pod("p"))
    server.logs = explode
    answer = asyncio.run(get())

    assert (answer.status_code, answer.json()["reason"]) == (500, "InternalError")


def test_tokens_end(server: ApiServer) -> None:
    """A service account's token is valid until its expiry, and not if its text was changed. It names the
    account's namespace."""
    clock = [1000.0]
    authenticator = auth.Authenticator({}, "key", server.registry.store, lambda: clock[0])
    token, expires = authenticator.issue("default", "default", 600)
    identity = authenticator.identify(f"Bearer {token}")
    for bad in (token[:-2] + "xx", f"x{token}", token.replace(".", "")):
        with pytest.raises(ApiError, match="Unauthorized"):
            authenticator.identify(f"Bearer {bad}")
    clock[0] = expires + 1
    with pytest.raises(ApiError, match="Unauthorized"):
        authenticator.identify(f"Bearer {token}")

    assert (identity.name, identity.namespace) == ("system:serviceaccount:default:default", "default")


def test_account_made_anew_does_not_inherit_tokens(server: ApiServer) -> None:
    """A token belongs to one account object, not to its name."""
    token, _ = server.authenticator.issue("default", "default", 600)
    accounts = server.registry.catalog.by_id("serviceaccounts")
    assert accounts is not None
    server.registry.delete(accounts, "default", "default", DeletionOptions())
    server.client.create("serviceaccounts", {"metadata": {"name": "default", "namespace": "default"}})
    with pytest.raises(ApiError) as refused:
        server.authenticator.identify(f"Bearer {token}")

    assert refused.value.code == 401


SIZES: dict[str, tuple[str, dict[str, Any], int]] = {
    "config map that fits": ("configmaps", {"data": {"a": "x" * 2**20}}, 201),
    "config map": ("configmaps", {"data": {"a": "x" * 2**19, "b": "é" * 2**18 + "x"}}, 422),
    "binary data that fit": ("configmaps", {"binaryData": {"a": "A" * (2**20 // 3 * 4)}}, 201),
    "binary data": ("configmaps", {"data": {"b": "xx"}, "binaryData": {"a": "A" * (2**20 // 3 * 4)}}, 422),
    "secret that fits": ("secrets", {"stringData": {"a": "x" * 2**20}}, 201),
    "secret": ("secrets", {"stringData": {"a": "x" * 2**20, "b": "x"}}, 422),
    "object": ("services", {"spec": {"ports": [{"port": 1}]}, "metadata": {"annotations": {}}}, 413),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_of_objects(server: ApiServer, case: str) -> None:
    """ConfigMaps and Secrets hold at most 1 MiB of data, and no object may be larger than etcd allows by
    default."""
    resource, obj, expected = SIZES[case]
    if expected == 413:
        obj = {**obj, "spec": {"ports": [{"port": 1, "name": "a" * 15}], "externalName": "x" * 1_600_000}}
    body = {**obj, "metadata": {"name": "large"}}

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
            return await client.post(
                f"/api/v1/namespaces/default/{resource}",
                json=body,
                headers={"authorization": "Bearer secret"},
            )

    reply = asyncio.run(post())

    assert reply.status_code == expected, reply.text[:300]


FORMS = {
    "whole": "application/json",
    "table": "application/json;as=Table;v=v1;g=meta.k8s.io",
    "metadata": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
}


@pytest.mark.parametrize("form", FORMS)
def test_long_lists_let_others_go_on(server: ApiServer, form: str) -> None:
    """While a long list is written, the event loop serves others. The list is complete and of one version."""
    for index in range(10 * views.PORTION):
        server.client.create("configmaps", {"metadata": {"name": f"c{index:05}", "namespace": "default"}})
    turns = 0

    async def get() -> httpx.Response:
        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1
                if turns == 5:
                    server.client.delete("configmaps", "c00999", "default")

        transport = httpx.ASGITransport(build_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
            headers = {"authorization": "Bearer secret", "accept": FORMS[form]}
            counting = asyncio.create_task(count())
            reply = await client.get("/api/v1/namespaces/default/configmaps", headers=headers)
            counting.cancel()
            return reply

    listed = asyncio.run(get()).json()

    assert len(listed.get("items") or listed["rows"]) == 10 * views.PORTION
    assert turns >= 8
