"""The master's HTTP API: answers, storing before answering, and long polls."""

import asyncio
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.core.protocol.training import LiveFigures, StepReport
from edl_workflows.services.master.state.checkpoints import Checkpoints, FailedSaves
from edl_workflows.services.master.state.nodes import leaving_steps
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.served_master import WORKER, Served, with_master


def test_a_worker_gets_a_version_leases_and_acknowledges() -> None:
    """Registration leads to an active version; leased shards are acknowledged; progress and status tell of
    it. The time of the acknowledgement is measured, not that of the master's next look.
    """

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        lease = await it.post("/v1/datasets/train/lease", node=WORKER, max_shards=4, version=1)
        assert [shard["start"] for shard in lease["shards"]] == [0, 10, 20, 30]
        ack = await it.post("/v1/datasets/train/ack", node=WORKER, done=lease["shards"])
        assert (ack["accepted"], ack["state"]) == (4, "ok")
        assert ack["durable"] >= ack["change"], "it was answered before it was stored"
        assert it.master.state.volatile.statistics.records.rises[-1][1] == 40
        progress = (await it.client.get("/v1/datasets/train")).json()
        assert progress["records_done"] == 40
        status = (await it.client.get("/v1/status")).json()
        assert status["progress"]["step"] == 1
        assert status["nodes"][0]["status"] == "Running"

    with_master(test)


def test_live_figures_hold_what_people_watch() -> None:
    """Step, records, memory of the nodes and metrics come as they are now, without a token; and nothing
    else, since everybody who reaches the master may read them."""

    async def test(it: Served) -> None:
        await it.train()
        await it.post("/v1/datasets", name="train", size=100, shard_size=10)
        usage = {"cpu": 1.5, "memory": 300}
        await it.post("/v1/nodes/heartbeat", node=WORKER, incarnation="a", usage=usage)
        step = {"step": 7, "version": 1, "first_step_time": 1.0, "time": 2.0, "loss": 0.5}
        await it.post("/v1/steps", node=WORKER, **step)
        figures = (await it.client.get("/v1/live", headers={"Authorization": ""})).json()
        assert (figures["step"], figures["memory"], figures["metrics"]) == (7, 300.0, {"loss": 0.5})
        assert figures["records_total"] == 100
        assert set(figures) == set(LiveFigures.model_fields)

    with_master(test)


def test_an_acknowledgement_is_answered_when_it_is_stored() -> None:
    """While the store rejects writes, an acknowledgement is not answered, but a lease is."""

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
    """A new master takes the data position of the ticket from the checkpoint's manifest. It is stored before
    the response, and from then on the directive names the checkpoint."""
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


def test_a_step_report_is_answered_with_the_next_step_that_somebody_waits_for() -> None:
    """Beside the directive, if it is new. So the program reports that step as soon as it is made."""

    async def test(it: Served) -> None:
        await it.train()
        directive = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()
        it.master.state.settings = replace(it.master.state.settings, awaited_steps=(3, 6, 9))
        for step, known, awaited in ((5, -1, 6), (6, directive["revision"], 9), (9, -1, 0)):
            report = {"step": step, "time": 2.0, "first_step_time": 1.0, "known": known}
            receipt = await it.post("/v1/steps", node=WORKER, version=1, **report)
            assert receipt.get("awaited", 0) == awaited
            assert receipt["active"] == (directive["active"] if known == -1 else None)
        # A report that does not count is not asked for again, or its sender would repeat it at once.
        it.master.state.settings = replace(it.master.state.settings, awaited_steps=(12, 30))
        report = {"step": 20, "time": 2.0, "first_step_time": 1.0}
        receipt = await it.post("/v1/steps", node=WORKER, version=7, **report)
        assert receipt["awaited"] == 30

    with_master(test)


def test_who_has_the_newest_directive_is_not_sent_it_again() -> None:
    """Heartbeats and step reports are frequent and a directive may be long, so a node that has the newest
    directive is not sent it again."""

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
    """If nothing changes, the response comes after the wait, with the same revision."""

    async def test(it: Served) -> None:
        await it.train()
        revision = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()["revision"]
        start = time.monotonic()
        answer = await it.client.get(f"/v1/directive?type=worker&id=0&after={revision}&wait=0.3")
        assert answer.json()["revision"] == revision
        assert time.monotonic() - start > 0.2

    with_master(test)


def test_long_polls_are_answered_when_the_master_ends() -> None:
    """Whoever waits is told what is known now, and that a decision is up to the next master; nobody gets a
    500."""

    async def test(it: Served) -> None:
        await it.train()
        revision = (await it.client.get("/v1/directive?type=worker&id=0&wait=0")).json()["revision"]
        query = f"type=worker&id=0&after={revision}&wait=20"
        exit_report = {"node": {"type": "worker", "id": 0}, "incarnation": "a", "version": 1, "code": 75}
        calls = [
            it.client.get(f"/v1/directive?{query}"),
            it.client.get("/v1/barriers/b?wait=20"),
            it.client.post("/v1/nodes/exit", json=exit_report),
        ]
        waiting = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.1)
        it.master.close()
        directive, barrier, verdict = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert directive.json()["revision"] >= revision
        assert barrier.json() == {"open": False}
        assert verdict.status_code in (200, 503)

    with_master(test)


def test_master_of_a_deleted_job_serves_on_without_its_store() -> None:
    """The ConfigMap goes with the job, while the chief still announces and reports its last checkpoint."""

    async def test(it: Served) -> None:
        await it.train()
        it.store.gone = True
        begun = asyncio.ensure_future(it.post("/v1/checkpoints", node={"type": "worker", "id": 0}, version=1))
        await asyncio.sleep(0.1)
        leaving_steps.record_deletion(it.master.state)
        it.master.changed()
        ticket = (await asyncio.wait_for(begun, 30))["id"]
        end = {"node": {"type": "worker", "id": 0}, "uri": "s3://a/1", "step": 1}
        await asyncio.wait_for(it.post(f"/v1/checkpoints/{ticket}", **end), 30)
        newest = it.master.state.checkpoints.newest
        assert newest is not None
        assert newest.uri == "s3://a/1"

    with_master(test)


def test_node_that_is_told_to_end_waits_for_its_servers_last_checkpoint() -> None:
    """`POST /v1/nodes/leave` answers at once: in a job without servers the node may end."""

    async def test(it: Served) -> None:
        await it.train()
        answer = await it.post("/v1/nodes/leave", node={"type": "worker", "id": 0}, incarnation="a")
        assert answer == {"wait": False, "seconds": 25.0}

    with_master(test)


def test_a_checkpoint_is_begun_completed_and_repeated() -> None:
    """A ticket completes once. Completing it again gives the same answer, and an unknown ticket is not
    found."""

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
    """A worker's failure is judged after a delay, since the report of its lost server may arrive later."""

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
    """A sync group is finished when the last running worker has joined. An opened barrier wakes the callers
    that wait for it."""

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


def test_metrics_are_in_prometheus_format() -> None:
    """The metrics have the step, the nodes by status, and their use."""

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


def test_a_loss_that_diverged_does_not_stop_the_reports() -> None:
    """A loss that is not a number is left out of the agent's report."""
    report = StepReport(
        node=NodeRef(type="worker", id=0), version=1, step=1, time=2.0, first_step_time=1.0, loss=float("nan")
    )

    assert report.loss is None
