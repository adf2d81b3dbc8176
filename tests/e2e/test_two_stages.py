"""Checkpoints in two stages under TensorFlow: what is killed takes no copy with it, and the model ends as good as ever."""

import collections
import sys
from pathlib import Path

import pytest

from edl_workflows.agent.checkpoints import STATE_FILE
from tests.e2e.records import all_records, consumed, evaluate
from tests.e2e.standalone import Standalone
from tests.e2e.submitted import PROGRAM
from tests.e2e.test_agent_tensorflow import START_SECONDS

pytestmark = [
    pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(900),
]  # fmt: skip


def program(folder: Path, epochs: int, delay: float) -> list[str]:
    """The recording training program; it copies its state twice a second and saves every three seconds."""
    command = [sys.executable, str(PROGRAM), str(folder), "--epochs", str(epochs), "--step-delay", str(delay)]
    return [*command, "--async-save"]


def test_terminated_chief_copies_and_its_agent_persists(tmp_path: Path) -> None:
    """A chief whose pod is deleted copies its state and ends; its agent brings that to storage before it ends itself. The
    replacement goes on with the next step, each record is trained exactly once, and the model that is saved at the end,
    in safetensors' format, is good."""
    epochs = 6
    with Standalone(tmp_path, "ps=1,worker=1", program(tmp_path, epochs, 0.02)) as job:
        job.wait(lambda: job.step() > 30, START_SECONDS, "some steps")
        job.pods.terminate("worker-0")
        job.wait(lambda: job.pods.code("worker-0") is not None, 30, "the chief ends")
        assert job.pods.code("worker-0") == 143
        last = max(step for _, _, step, _ in consumed(tmp_path))
        assert job.checkpoint()["step"] == last
        job.wait(lambda: job.master.poll() == 0, 400, "the job succeeds")

    steps = [step for name, _, step, _ in consumed(tmp_path) if name.startswith("records-worker-1-v1")]
    assert min(steps) == last + 1
    times = collections.Counter((epoch, r) for _, epoch, _, records in consumed(tmp_path) for r in records)
    assert times == collections.Counter(all_records(epochs))
    assert all((folder / STATE_FILE).exists() for folder in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert evaluate(tmp_path)["accuracy"] >= 0.93
