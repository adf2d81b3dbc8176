"""The example programs without TensorFlow, as the documentation shows them, with a real master and real
agents."""

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.training import CheckpointStore
from tests import local_cluster
from tests.e2e.collective_jobs import CollectiveJob, CollectiveTraining
from tests.e2e.standalone import Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).parents[2] / "dags" / "training"
STEPS = 3 * 45
"""Of 1,437 records in three epochs: 11 shards of four steps, and one of one."""


def test_the_last_model_is_saved_without_a_word(tmp_path: Path) -> None:
    """The program only says how to save. Its newest checkpoint has its last step and the end of the data."""
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
    assert "/v1/" not in log, "requests to the master are no lines of the training's log"


def test_the_whole_adapter_trains_with_two_members(tmp_path: Path) -> None:
    """The example is one file that imports nothing of the tests. Two members sum their gradients, and the
    last step is saved."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    program = PROGRAMS / "train_digits_sockets.py"
    assert "tests" not in re.findall(r"^(?:from|import) (\w+)", program.read_text(), re.MULTILINE)
    manifest = CollectiveTraining(program, folder, epochs=2, workers=2).manifest("adapter")
    template = manifest["spec"]["replicaSpecs"]["worker"]["template"]
    command = template["spec"]["containers"][0]["command"]
    command[command.index(str(program)) + 1 :] = ["--checkpoint-dir", str(folder), "--epochs", "2"]
    with local_cluster.cluster(
        tmp_path / "cluster", local_cluster.Settings(controller=True, grace=5.0)
    ) as running:
        job = CollectiveJob.submit(running.client(), manifest)
        job.wait_phase(JobPhase.SUCCEEDED)
        first, *_, last = (float(found) for found in re.findall(r"loss (\S+)", _printed(job)))
    newest = CheckpointStore(folder).newest()
    assert newest is not None
    assert newest.step == 2 * math.ceil(1797 / (3 * 32))
    assert last < first


def _printed(job: CollectiveJob) -> str:
    return "".join(job.log(pod["metadata"]["name"]) for pod in job.pods("worker"))
