"""The master's HTTP API: answers, durability before answers, long polls, errors, and who is let in."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from edl_workflows.exceptions import UnavailableError
from edl_workflows.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.master.app import MAX_BODY, create_app
from edl_workflows.master.master import Master
from edl_workflows.master.standalone import parse_nodes
from edl_workflows.master.state.checkpoints import Checkpoints, FailedSaves
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.settings import JobSettings, Timeouts
from edl_workflows.master.state.stored_state import StoredState
from edl_workflows.protocol.nodes import Directive, NodeRef
from edl_workflows.protocol.training import StepReport

TOKEN = "secret"
WORKER = {"type": "worker", "id": 0}


class GatedStore:
    """Keeps documents in memory; refuses while its gate is shut."""

    interval = 0.0
    place = "memory"
    capacity = 100_000

    def __init__(self) -> None:
        self.document: bytes | None = None
        self.open = True

    def load(self) -> bytes | None:
        return self.document

    def save(self, document: bytes) -> None:
        if not self.open:
            raise UnavailableError("the gate is shut")
        self.document = document


class Served:
    """A running master and a client with its token."""

    def __init__(self, master: Master, store: GatedStore, client: httpx.AsyncClient) -> None:
        self.master = master
        self.store = store
        self.client = client

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def train(self) -> None:
        """Brings a job of one worker to its first step."""
        await self.post("/v1/nodes", node=WORKER, rank=0, incarnation="a")
        await self.post("/v1/processes", node=WORKER, version=1, state="ready")
        await self.step(1)

    async def step(self, step: int) -> dict[str, Any]:
        now = time.time()
        return await self.post(
            "/v1/steps", node=WORKER, version=1, step=step, time=now, first_step_time=now - 1
        )


@contextlib.asynccontextmanager
async def served(nodes: str = "worker=1") -> AsyncIterator[Served]:
    store = GatedStore()
    settings = JobSettings("job", "default", parse_nodes(nodes), timeouts=Timeouts(verdict=0.2))
    master = Master(JobState(settings), store)
    running = asyncio.create_task(master.run())
    await master.durable(master.changed())
    transport = httpx.ASGITransport(create_app(master, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
        yield Served(master, store, client)
    store.open = True
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def with_master(test: Callable[[Served], Awaitable[None]], nodes: str = "worker=1") -> None:
    async def main() -> None:
        async with asyncio.timeout(240), served(nodes) as master:
            await test(master)

    asyncio.run(main())


def test_a_worker_gets_a_version_leases_and_acknowledges() -> None:
    """Registration leads to an active version; leased shards are acknowledged; progress and status tell of
    it.
    """

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=4, version=1)
        assert [shard["start"] for shard in lease["shards"]] == [0, 10, 20, 30]
        ack = await it.post("/v1/datasets/train/ack", node=WORKER, done=lease["shards"])
        assert ack == {"accepted": 4, "state": "ok"}
        progress = (await it.client.get("/v1/datasets/train")).json()
        assert progress["records_done"] == 40
        status = (await it.client.get("/v1/status")).json()
        assert status["progress"]["step"] == 1
        assert status["nodes"][0]["status"] == "Running"

    with_master(test)


def test_an_acknowledgement_is_answered_when_it_is_stored() -> None:
    """While the store refuses, an acknowledgement waits and a lease does not."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        it.store.open = False
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=2)
        ack = asyncio.create_task(it.post("/v1/datasets/train/ack", node=WORKER, done=lease["shards"]))
        done, _ = await asyncio.wait([ack], timeout=0.3)
        assert not done
        it.store.open = True
        assert (await ack)["accepted"] == 2
        assert it.store.document is not None
        stored = StoredState.from_json(it.store.document)
        assert stored.shards.snapshot().datasets[0].position.records_done == 20

    with_master(test)


def test_a_job_that_is_submitted_again_leases_the_rest() -> None:
    """The position that came with the ticket is what another master takes from the manifest: over HTTP,
    stored before the answer, and the directive names the checkpoint from then on.
    """
    said: dict[str, Any] = {}

    async def save(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10, num_epochs=2)
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=3, version=1)
        done = [{key: shard[key] for key in ("epoch", "ordinal", "lease")} for shard in lease["shards"]]
        begun = {**done[1], "records_done": 7}
        consumed = {"train": {"done": done[:1], "begun": begun}}
        ticket = await it.post("/v1/checkpoints", node=WORKER, version=1, consumed=consumed)
        said.update(uri="/c/1", step=9, position=ticket["position"])

    async def resume(it: Served) -> None:
        await it.post("/v1/nodes", node=WORKER, rank=0, incarnation="a")
        await it.post("/v1/processes", node=WORKER, version=1, state="ready")
        for _ in range(2):  # repeatable
            directive = await it.post("/v1/checkpoints/restored", node=WORKER, version=1, **said)
            assert directive["active"]["restore"] == {"uri": "/c/1", "step": 9}
        assert it.store.document is not None
        resumed = StoredState.from_json(it.store.document).shards.snapshot().resumed
        assert resumed.later["train"].records_done == 17
        await it.post("/v1/datasets", name="train", size=100, shard_size=10, num_epochs=2)
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=30, version=1)
        starts = sorted(shard["start"] for shard in lease["shards"] if shard["epoch"] == 1)
        assert starts == [17, *range(20, 100, 10)]

    with_master(save)
    with_master(resume)


def test_a_directive_is_told_when_it_is_stored() -> None:
    """Agents learn of a version only after it is stored, so that a restarted master knows it too."""

    async def test(it: Served) -> None:
        await it.post("/v1/nodes", node=WORKER, rank=0, incarnation="a")
        revision = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()["revision"]
        it.store.open = False
        report = asyncio.create_task(it.step(1))
        poll = asyncio.create_task(it.client.get(f"/v1/directive?type=worker&id=0&after={revision}&wait=10"))
        done, _ = await asyncio.wait([report, poll], timeout=0.3)
        assert not done
        it.store.open = True
        assert (await poll).json()["trained"] == 1
        await report

    with_master(test)


def test_who_has_the_newest_directive_is_not_sent_it_again() -> None:
    """Heartbeats and steps come often, and the directive of a large world is long."""

    async def test(it: Served) -> None:
        await it.train()
        whole = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()
        for known, answer in ((-1, whole), (whole["revision"] - 1, whole), (whole["revision"], None)):
            beat = await it.post("/v1/nodes/heartbeat", node=WORKER, incarnation="a", known=known)
            assert beat == (answer or Directive(revision=0).model_dump(mode="json"))
        now = time.time()
        step = {"step": 5, "time": now, "first_step_time": now, "known": whole["revision"]}
        assert (await it.post("/v1/steps", node=WORKER, version=1, **step))["revision"] == 0
        other = await it.client.get("/v1/directive?type=worker&id=7&wait=0")
        assert other.status_code == 404

    with_master(test)


def test_a_long_poll_ends_with_the_unchanged_directive() -> None:
    """Without news the answer comes after the wait, with the same revision."""

    async def test(it: Served) -> None:
        await it.train()
        revision = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()["revision"]
        start = time.monotonic()
        answer = await it.client.get(f"/v1/directive?type=worker&id=0&after={revision}&wait=0.3")
        assert answer.json()["revision"] == revision
        assert time.monotonic() - start > 0.2

    with_master(test)


def test_a_checkpoint_is_begun_completed_and_repeated() -> None:
    """A ticket completes once; the same end again is the same answer; an unknown ticket is not found."""

    async def test(it: Served) -> None:
        await it.train()
        ticket = await it.post("/v1/checkpoints", node=WORKER, version=1)
        for _ in range(2):
            ref = await it.post(f"/v1/checkpoints/{ticket['id']}", node=WORKER, uri="/c/1", step=1)
            assert ref == {"uri": "/c/1", "step": 1}
        assert len(it.master.state.checkpoints.saved) == 1
        unknown = await it.client.post("/v1/checkpoints/none", json={"node": WORKER, "uri": "/c/2"})
        assert unknown.status_code == 404
        other = await it.client.post("/v1/checkpoints", json={"node": WORKER, "version": 7})
        assert other.status_code == 409

    with_master(test)


def test_a_job_succeeds_when_data_and_workers_end() -> None:
    """The last worker's exit with all data consumed makes the directive say finished."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=10, shard_size=10)
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=4)
        await it.post("/v1/datasets/train/ack", node=WORKER, done=lease["shards"])
        verdict = await it.post("/v1/nodes/exit", node=WORKER, incarnation="a", version=1, code=0)
        assert verdict == {"wait": False}
        assert it.master.stored.outcome is not None
        assert it.master.stored.outcome.succeeded
        assert it.master.published.directive.finished

    with_master(test)


def test_a_worker_waits_when_its_parameter_server_was_lost() -> None:
    """A worker's failure is judged after a moment: the news of its lost server may come later than its
    own.
    """

    async def test(it: Served) -> None:
        server = {"type": "ps", "id": 0}
        for node in (server, WORKER):
            await it.post("/v1/nodes", node=node, rank=0, incarnation="a")
        await it.post("/v1/processes", node=server, version=1, state="ready")
        worker = asyncio.create_task(
            it.post(
                "/v1/nodes/exit",
                node=WORKER,
                incarnation="a",
                version=1,
                code=1,
                last_lines="UnavailableError",
            )
        )
        await asyncio.sleep(0)
        verdict = await it.post("/v1/nodes/exit", node=server, incarnation="a", version=1, code=139)
        assert verdict == {"wait": False}
        assert await worker == {"wait": True}

    with_master(test, "ps=1,worker=1")


def test_sync_groups_and_barriers_wake_who_waits() -> None:
    """A group is finished when the last running worker joined; a barrier opens for those who poll."""

    async def test(it: Served) -> None:
        second = {"type": "worker", "id": 1}
        for node in (WORKER, second):
            await it.post("/v1/nodes", node=node, rank=node["id"], incarnation="a")
        first = await it.post("/v1/sync/epoch", node=WORKER)
        assert first == {"finished": False, "missing": ["worker-1"]}
        waiting = asyncio.create_task(it.client.get("/v1/sync/epoch?wait=10"))
        barrier = asyncio.create_task(it.client.get("/v1/barriers/go?wait=10"))
        await asyncio.sleep(0.05)
        await it.post("/v1/sync/epoch", node=second)
        assert (await waiting).json()["finished"]
        await it.client.post("/v1/barriers/go")
        assert (await barrier).json() == {"open": True}

    with_master(test, "worker=2")


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/v1/status", "", 401),
        ("/v1/status", "Bearer wrong", 401),
        ("/v1/status", f"Bearer {TOKEN}", 200),
        ("/openapi.json", "", 401),
        ("/healthz", "", 200),
        ("/metrics", "", 200),
    ],
)
def test_only_the_token_opens_the_api(path: str, token: str, status: int) -> None:
    """Everything but health and metrics needs the job's token."""

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
        ("/v1/datasets", {"name": "train", "size": 1}, 422, "shard_size"),
    ],
)
def test_errors_name_what_is_wrong(path: str, body: dict[str, Any], status: int, says: str) -> None:
    """Each refusal has its status and one message that names the field or object."""

    async def test(it: Served) -> None:
        await it.train()
        answer = await it.client.post(path, json=body)
        assert answer.status_code == status
        assert says in answer.json()["error"]

    with_master(test)


def test_a_body_that_is_too_large_is_refused() -> None:
    """It is refused by its Content-Length, before it is read."""

    async def test(it: Served) -> None:
        answer = await it.client.post("/v1/nodes", content=b"x" * (MAX_BODY + 1))
        assert answer.status_code == 413

    with_master(test)


def test_metrics_are_in_prometheus_format() -> None:
    """The step, nodes by status and their use can be scraped."""

    async def test(it: Served) -> None:
        await it.train()
        beat = {"node": WORKER, "incarnation": "a", "usage": {"cpu": 1.5, "memory": 100}}
        await it.post("/v1/nodes/heartbeat", **beat)
        text = (await it.client.get("/metrics")).text
        assert "edl_master_global_step 1.0" in text
        assert 'edl_master_nodes{status="Running",type="worker"} 1.0' in text
        assert 'edl_master_node_cpu_cores{node="worker-0"} 1.5' in text
        it.master.state.restarted("worker-0", "Killed", "", 1.0)
        text = (await it.client.get("/metrics")).text
        assert 'edl_master_restarts_total{cause="Killed"} 1.0' in text
        assert "edl_master_goodput_ratio" in text
        spent = re.findall(r'edl_master_time_seconds{cause="(\w+)"} (\S+)', text)
        assert [cause for cause, _ in spent] == list(TimeCause)
        elapsed = re.search(r"^edl_master_elapsed_seconds (\S+)$", text, re.MULTILINE)
        assert elapsed is not None
        assert sum(float(seconds) for _, seconds in spent) == pytest.approx(float(elapsed[1]), abs=0.5)
        assert "edl_master_hanging 0.0" in text
        assert "edl_master_failed_saves 0.0" in text
        it.master.state.checkpoints = Checkpoints(
            failing=FailedSaves(total=3, row=2, since=1.0, error="full")
        )
        text = (await it.client.get("/metrics")).text
        assert "edl_master_failed_saves 2.0" in text
        assert "edl_master_save_failures_total 3.0" in text

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
    """No number that can't be stored, no path out of a name, nothing deep or huge gets into a job's state."""

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


def test_a_loss_that_diverged_does_not_stop_the_reports() -> None:
    """A loss that is not a number is left out of the report, by the agent that makes it already."""
    report = StepReport(
        node=NodeRef(type="worker", id=0), version=1, step=1, time=2.0, first_step_time=1.0, loss=float("nan")
    )

    assert report.loss is None


def test_a_data_set_that_does_not_fit_into_the_state_is_refused() -> None:
    """The state of a job has its bounds in a cluster; a data set beyond them must not take the master
    along.
    """

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
    """It is refused with 422 and the name of the field; afterwards an ordinary one is accepted."""

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
    """Neither a terminal nor Argo acts on what a program said when it failed."""

    async def test(it: Served) -> None:
        await it.train()
        words = "\x1b]0;owned\x07 {{workflow.name}}"
        body = {"node": WORKER, "version": 1, "uri": "/volume/step-1", "error": words}
        await it.post("/v1/checkpoints/damaged", **body, instead={"uri": "/volume/step-0", "step": 0})
        text = "".join((await it.client.get("/v1/status")).json()["warnings"])
        assert "\\x1b]0;owned\\x07 { {workflow.name}}" in text

    with_master(test)
