"""What the master's HTTP API refuses: callers without the token, wrong and hostile messages."""

from typing import Any

import pytest

from edl_workflows.services.master.app import MAX_BODY
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.served_master import TOKEN, WORKER, Served, with_master


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/v1/status", "", 401),
        ("/v1/status", "Bearer wrong", 401),
        ("/v1/status", f"Bearer {TOKEN}", 200),
        ("/openapi.json", "", 401),
        ("/healthz", "", 200),
        ("/metrics", "", 200),
        ("/v1/live", "", 200),
    ],
)
def test_only_the_token_opens_the_api(path: str, token: str, status: int) -> None:
    """Everything but health, metrics and the figures of `edl top` needs the job's token."""

    async def test(it: Served) -> None:
        answer = await it.client.get(path, headers={"Authorization": token})
        assert answer.status_code == status

    with_master(test)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/nodes", {"node": WORKER}, 422, "rank"),
        ("/v1/nodes", {"node": {"type": "worker", "id": 9}, "rank": 0, "incarnation": "a"}, 404, "worker-9"),
        ("/v1/datasets/none/lease", {"node": WORKER}, 404, "none"),
        ("/v1/datasets/none/lease", {"node": 1}, 400, "LeaseRequest"),
        ("/v1/datasets/a%20b/lease", {"node": WORKER}, 422, "name"),
        ("/v1/datasets/a%20b/ack", {"node": WORKER}, 422, "name"),
        ("/v1/datasets", {"name": "train", "size": 1}, 422, "shard_size"),
    ],
)
def test_errors_name_what_is_wrong(path: str, body: dict[str, Any], status: int, says: str) -> None:
    """Each error has its status code and one message that names the field or the object."""

    async def test(it: Served) -> None:
        await it.train()
        answer = await it.client.post(path, json=body)
        assert answer.status_code == status
        assert says in answer.json()["error"]

    with_master(test)


def test_a_body_that_is_too_large_is_refused() -> None:
    """A request is rejected by its Content-Length, before its body is read."""

    async def test(it: Served) -> None:
        answer = await it.client.post("/v1/nodes", content=b"x" * (MAX_BODY + 1))
        assert answer.status_code == 413

    with_master(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/nodes", b"{"),
        ("/v1/nodes", b'{"node": {"type": "worker", "id": -1}, "rank": 0, "incarnation": "a"}'),
        ("/v1/nodes", b'{"node": {"type": "../ps", "id": 0}, "rank": 0, "incarnation": "a"}'),
        ("/v1/nodes", b"[" * 100_000),
        (
            "/v1/steps",
            b'{"node":{"type":"worker","id":0},"version":1,"step":2,"time":NaN,"first_step_time":1}',
        ),
        (
            "/v1/steps",
            b'{"node":{"type":"worker","id":0},"version":1,"step":2,"time":1e999,"first_step_time":1}',
        ),
        (
            "/v1/steps",
            b'{"node":{"type":"worker","id":0},"version":1,"step":1'
            + b"0" * 30
            + b',"time":1,"first_step_time":1}',
        ),
        (
            "/v1/nodes/heartbeat",
            b'{"node":{"type":"worker","id":0},"incarnation":"a","usage":{"cpu":NaN,"memory":1}}',
        ),
        ("/v1/datasets/train/lease", b'{"node":{"type":"worker","id":0},"max_shards":1000000000}'),
        ("/v1/datasets/..%2f..%2fnodes/lease", b'{"node":{"type":"worker","id":0}}'),
        ("/v1/datasets/a b/lease", b'{"node":{"type":"worker","id":0}}'),
        ("/v1/sync/a b", b'{"node":{"type":"worker","id":0}}'),
    ],
)
def test_a_hostile_message_is_refused_and_leaves_the_state_as_it_was(path: str, body: bytes) -> None:
    """Numbers that can't be stored, names with path segments, and bodies that are too deep or too large are
    rejected without a change of the job's state."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        before = it.store.document
        response = await it.client.post(path, content=body, headers={"content-type": "application/json"})
        assert 400 <= response.status_code < 500, response.text
        assert it.store.document == before
        assert before is not None
        StoredState.from_json(before)

    with_master(test)


def test_a_data_set_that_does_not_fit_into_the_state_is_refused() -> None:
    """A data set that does not fit into the stored state of a job is rejected, so that it can't break the
    master."""

    async def test(it: Served) -> None:
        await it.train()
        partitions = {f"partition-{n:05d}": {"start": 0, "end": 1} for n in range(2000)}
        message = {"name": "stream", "splitter": "streaming", "shard_size": 1, "partitions": partitions}
        response = await it.client.post("/v1/datasets", json=message)
        assert response.status_code == 400
        assert "more than fit into memory" in response.json()["error"]
        few = dict(list(partitions.items())[:100])
        assert (await it.post("/v1/datasets", **(message | {"partitions": few})))["state"] == "ok"

    with_master(test)


def test_impossible_uses_and_steps_are_refused() -> None:
    """Numbers that are not finite or not plausible are refused before they reach the statistics; the job
    continues."""

    async def test(it: Served) -> None:
        await it.train()
        node = '"node": {"type": "worker", "id": 0}'
        beats = [f'{{"cpu": {cpu}, "memory": 1}}' for cpu in ("NaN", "-1", "Infinity", "1e999", '"much"')]
        bodies = [
            ("/v1/nodes/heartbeat", f'{{{node}, "incarnation": "a", "usage": {usage}}}') for usage in beats
        ]
        for step, moment in (("-1", "5"), ("1e30", "5"), ("7", "NaN"), ("7", "-Infinity"), ("7", "1e300")):
            times = f'"time": {moment}, "first_step_time": 1'
            bodies.append(("/v1/steps", f'{{{node}, "version": 1, "step": {step}, {times}}}'))
        for path, body in bodies:
            headers = {"Content-Type": "application/json"}
            response = await it.client.post(path, content=body, headers=headers)
            assert response.status_code in (400, 422), (body, response.text)
        status = (await it.client.get("/v1/status")).raise_for_status().json()
        assert status["progress"]["step"] == 1
        assert status["nodes"][0]["usage"] is None

    with_master(test)


@pytest.mark.parametrize(
    "uri",
    [
        "/volume/'; touch owned; '",
        "/volume/$(touch owned)",
        "/volume/{{workflow.name}}",
        "/volume/\x1b[2J",
        "--rm",
    ],
)
def test_a_hostile_checkpoint_does_not_reach_the_status(uri: str) -> None:
    """The URI is rejected with 422 and the name of the field. A valid one is accepted afterwards."""

    async def test(it: Served) -> None:
        await it.train()
        ticket = await it.post("/v1/checkpoints", node=WORKER, version=1)
        place = f"/v1/checkpoints/{ticket['id']}"
        answer = await it.client.post(place, json={"node": WORKER, "uri": uri, "step": 1})
        assert answer.status_code == 422, answer.text
        assert "uri" in answer.json()["error"]
        assert "checkpoint" not in (await it.client.get("/v1/status")).json()
        assert (await it.post(place, node=WORKER, uri="/volume/step-1", step=1))["uri"] == "/volume/step-1"

    with_master(test)


def test_a_program_s_words_stand_in_the_status_without_what_acts() -> None:
    """Control characters and Argo tags in a program's error are escaped in the status."""

    async def test(it: Served) -> None:
        await it.train()
        words = "\x1b]0;owned\x07 {{workflow.name}}"
        body = {"node": WORKER, "version": 1, "uri": "/volume/step-1", "error": words}
        await it.post("/v1/checkpoints/damaged", **body, instead={"uri": "/volume/step-0", "step": 0})
        text = "".join((await it.client.get("/v1/status")).json()["warnings"])
        assert "\\x1b]0;owned\\x07 { {workflow.name}}" in text

    with_master(test)
