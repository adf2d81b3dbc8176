"""TrainingJobs that train with TensorFlow in real pods."""

import time

import pytest

from tests.cluster.training import Place, container
from tests.e2e.training_jobs import PaddleTraining, manifest, trainers_come_and_die

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.long,
]


def test_trainers_come_and_die_and_every_chunk_is_trained(here: Place) -> None:
    """A trainer is killed, trainers are added and removed, and the master and a pserver are killed. Every
    chunk of every pass is acknowledged once, the job succeeds, and the model is good."""
    passes, begun = 16, time.monotonic()
    folder = here.folder / "tj-digits"
    folder.mkdir(mode=0o777)
    wanted = manifest("tj-digits", folder, container(here.bed), 0.4, passes)
    job = PaddleTraining.submit_manifest(here.cluster, wanted, folder)
    job.works(0, 240)
    print(f"submit to the first chunk: {time.monotonic() - begun:.1f} s")
    trainers_come_and_die(job, passes)
    assert job.accuracy() >= 0.9
