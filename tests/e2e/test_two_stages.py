"""Checkpoints in two stages under TensorFlow: what is killed takes no copy with it, and the model ends as good as ever."""

import sys
from pathlib import Path

import pytest

from edl_workflows.agent.checkpoints import STATE_FILE
from tests.e2e.records import all_records, consumed, evaluate, trained
from tests.e2e.standalone import Standalone
from tests.e2e.submitted import PROGRAM
from tests.e2e.test_agent_tensorflow import START_SECONDS, first_step, version

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900)]


def program(folder: Path, epochs: int, delay: float) -> list[str]:
    """The recording training program; it copies its state twice a second and saves every three seconds."""
    command = [sys.executable, str(PROGRAM), str(folder), "--epochs", str(epochs), "--step-delay", str(delay)]
    return [*command, "--async-save"]


def test_lost_server_lost_chief_and_one_more_server(tmp_path: Path) -> None:
    """A killed server: model and data go back to a copy that was persisted. Then two servers become three under training,
    restored from memory. Then the chief's machine is lost, and another takes its place. In the end each record of each
    epoch was trained into the model, exactly once but for what the lost chief held, and the model is good."""
    epochs = 50
    with Standalone(tmp_path, "ps=2,worker=2", program(tmp_path, epochs, 0.03)) as job:
        job.wait(lambda: job.checkpoint().get("step"), START_SECONDS, "a checkpoint")
        before = job.checkpoint()["step"]
        job.pods.kill("ps-1")
        job.wait(lambda: version(job) == 2, 180, "a second cluster version trains")
        resumed = job.wait(lambda: first_step(tmp_path, 2), 60, "a step in it")
        assert resumed > before

        job.scale("more", {"replicaResourceSpecs": {"ps": {"replicas": 3}}})
        job.wait(lambda: job.plan("more").get("phase") in ("Succeeded", "Failed"), 240, "the plan ends")
        plan = job.plan("more")
        assert plan["phase"] == "Succeeded", plan
        assert "from shared memory" in job.pods.log("worker-0")
        job.wait(lambda: "holds a copy of step" in job.pods.log("worker-1"), 60, "the second copy")

        job.pods.kill("worker-0")
        job.wait(lambda: job.master.poll() == 0, 400, "the job succeeds")
        last = Path(job.checkpoint()["uri"]) if job.checkpoint() else tmp_path

    assert not (last / "model.ckpt.index").exists()
    assert any((tmp_path / "checkpoints").glob(f"*/{STATE_FILE}"))
    assert set(trained(tmp_path)) == all_records(epochs)
    assert max(step for _, _, step, _ in consumed(tmp_path)) > plan["checkpoint"]["step"]
    assert evaluate(tmp_path)["accuracy"] >= 0.93
