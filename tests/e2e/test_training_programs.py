"""The example programs without TensorFlow, as the documentation shows them, with a real master and real agents."""

import sys
from pathlib import Path

import numpy as np
import pytest

from edl_workflows.agent import CheckpointStore
from tests.e2e.standalone import Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
STEPS = 3 * 57
"""Of 1,797 records in three epochs: 14 shards of four steps, and one of one."""


def test_the_last_model_is_saved_without_a_word(tmp_path: Path) -> None:
    """The program says how to save, and no more: its newest checkpoint is of its last step, and holds the data's end."""
    folder = tmp_path / "checkpoints"
    command = [sys.executable, str(PROGRAMS / "train_digits_numpy.py"), "--checkpoint-dir", str(folder)]
    with Standalone(tmp_path, "worker=1", command) as job:
        job.wait(lambda: job.master.poll() == 0, 120, "the job succeeds")
        log = job.pods.logs()
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert newest.step == STEPS
    weights = np.load(Path(newest.uri) / "weights.npy")
    assert np.isfinite(weights).all()
    assert "httpx" not in log
