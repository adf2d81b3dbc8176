"""A job trains for real: master, agents and TensorFlow as processes, which are killed while they work."""

import collections
import sys
import time
from pathlib import Path

import pytest

from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from tests.e2e.records import SHARD, all_records, consumed, evaluate
from tests.e2e.standalone import Standalone
from tests.e2e.submitted import PROGRAM

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

START_SECONDS = 180.0
"""To the first step: five processes import TensorFlow on a machine that may have two cores."""


def program(folder: Path, epochs: int, delay: float) -> list[str]:
    """The recording training program."""
    return [sys.executable, str(PROGRAM), str(folder), "--epochs", str(epochs), "--step-delay", str(delay)]


@pytest.mark.long
def test_killed_worker_costs_no_record(tmp_path: Path) -> None:
    """A worker is killed during an epoch. The job succeeds, each record of each epoch is trained, and only
    leased records may be trained twice."""
    epochs = 25
    with Standalone(tmp_path, "ps=2,worker=2", program(tmp_path, epochs, 0.04)) as job:
        job.wait(
            lambda: list(tmp_path.glob("records-worker-1-*")) and job.step() > 60, START_SECONDS, "steps"
        )
        leased = job.wait(job.leased, 30, "shards are leased")
        job.pods.kill("worker-1")
        job.wait(lambda: job.pods.started("worker-2"), 60, "a replacement is asked for")
        job.wait(lambda: job.master.poll() == 0, 300, "the job succeeds")
        job.wait(lambda: job.pods.code("ps-0") == job.pods.code("ps-1") == 0, 30, "the servers end")

    times = collections.Counter(
        (epoch, record) for _, epoch, _, records in consumed(tmp_path) for record in records
    )
    assert set(times) == all_records(epochs)
    # What worker-1 may have leased between our look and its death is bounded by what a worker holds.
    assert times.total() - len(times) <= (leased + 5) * SHARD
    assert evaluate(tmp_path)["accuracy"] >= 0.93


@pytest.mark.long
def test_lost_server_and_then_one_more(tmp_path: Path) -> None:
    """After a parameter server is killed, training resumes from the newest checkpoint. Then the servers
    change from 2 to 3 during training with a stall of a few seconds, and the final model is good."""
    with Standalone(tmp_path, "ps=2,worker=1", program(tmp_path, 50, 0.03)) as job:
        job.wait(lambda: job.checkpoint().get("step"), START_SECONDS, "a checkpoint")
        before = job.checkpoint()["step"]
        job.pods.kill("ps-1")
        job.wait(lambda: version(job) == 2, 120, "a second cluster version trains")
        resumed = job.wait(lambda: first_step(tmp_path, 2), 60, "a step in it")
        assert resumed > before

        job.scale("more", {"replicaResourceSpecs": {"ps": {"replicas": 3}}})
        job.wait(lambda: job.plan("more").get("phase") in ("Succeeded", "Failed"), 180, "the plan ends")
        plan = job.plan("more")
        assert plan["phase"] == "Succeeded", plan
        after = job.wait(lambda: first_step(tmp_path, 3), 10, "a step in the third version")
        assert after > plan["checkpoint"]["step"] > resumed
        assert plan["stallSeconds"] < 5
        job.wait(lambda: job.master.poll() == 0, 300, "the job succeeds")

    assert evaluate(tmp_path)["accuracy"] >= 0.93


@pytest.mark.long
def test_master_killed_while_servers_change(tmp_path: Path) -> None:
    """The master is killed with SIGKILL during a change from 2 to 3 servers, comes back and finishes it. The
    stall is at most a tenth of what stopping and submitting again costs, and no record is lost."""
    epochs = 40
    with Standalone(tmp_path, "ps=2,worker=2", program(tmp_path, epochs, 0.05)) as job:
        start = time.monotonic()
        job.wait(lambda: job.step() > 0, START_SECONDS, "the first step")
        resubmit = time.monotonic() - start
        job.scale("more", {"replicaResourceSpecs": {"ps": {"replicas": 3}}})
        job.wait(lambda: job.plan("more").get("phase") == "Migrating", 60, "the new server starts")
        job.kill_master()
        job.wait(lambda: job.plan("more").get("phase") in ("Succeeded", "Failed"), 180, "the plan ends")
        plan = job.plan("more")
        assert plan["phase"] == "Succeeded", plan
        assert plan["stallSeconds"] <= resubmit / 10
        job.wait(lambda: job.master.poll() == 0, 300, "the job succeeds")

    trained = {(epoch, record) for _, epoch, _, records in consumed(tmp_path) for record in records}
    assert trained == all_records(epochs)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [[], ["--async-save"]], ids=["directly", "in two stages"])
def test_terminated_chief_saves_and_is_replaced(tmp_path: Path, more: list[str]) -> None:
    """A chief whose pod is deleted saves, or copies its state for its agent to persist, and exits with 143.
    The servers keep the model, the replacement continues with the next step, each record is trained
    exactly once, and the final model is good. A checkpoint in two stages has safetensors' format."""
    epochs = 6
    with Standalone(tmp_path, "ps=1,worker=1", [*program(tmp_path, epochs, 0.02), *more]) as job:
        job.wait(lambda: job.step() > 30, START_SECONDS, "some steps")
        job.pods.terminate("worker-0")
        job.wait(lambda: job.pods.code("worker-0") is not None, 30, "the chief ends")
        assert job.pods.code("worker-0") == 143
        last = max(step for _, _, step, _ in consumed(tmp_path))
        assert job.checkpoint()["step"] == last
        job.wait(lambda: job.master.poll() == 0, 400, "the job succeeds")

    steps = [step for name, _, step, _ in consumed(tmp_path) if name.startswith("records-worker-1-v1")]
    assert min(steps) == last + 1
    trained = collections.Counter((epoch, r) for _, epoch, _, records in consumed(tmp_path) for r in records)
    assert trained == collections.Counter(all_records(epochs)), "it gave back exactly what it had not done"
    saved = list((tmp_path / "checkpoints").glob("checkpoint-*"))
    assert saved
    assert {(folder / STATE_FILE).exists() for folder in saved} == {bool(more)}
    assert evaluate(tmp_path)["accuracy"] >= 0.93


def version(job: Standalone) -> int:
    """The active cluster version."""
    return int((job.status().get("progress") or {}).get("clusterVersion") or 0)


def first_step(folder: Path, of_version: int) -> int:
    """The first global step that was made in a cluster version; 0 if there is none."""
    return min((step for name, _, step, _ in consumed(folder) if f"-v{of_version}-" in name), default=0)
