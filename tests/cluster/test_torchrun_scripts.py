"""Unmodified scripts for ``torchrun`` in real pods: DistributedDataParallel, Hugging Face's ``Trainer``,
Lightning."""

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from tests.cluster.training import Place, container
from tests.e2e.torchrun_jobs import SCRIPTS, TorchrunJob, assert_progress

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_unmodified_script_survives_kills(name: str, here: Place) -> None:
    """A worker's pod is killed, and then the pods of the master and of a worker at once. Each time the script
    continues in a complete group from its own checkpoint, and makes all its steps."""
    folder = here.folder / name
    folder.mkdir()
    job = TorchrunJob.start(here.cluster, name, folder, 1, container(here.bed))
    groups = [job.group(2, 0)]
    seen = len(job.starts)
    job.kill(max(job.running(names.WORKER_TYPE)))
    groups.append(job.group(2, seen))
    seen = len(job.starts)
    job.kill(job.running(names.MASTER_TYPE)[0])
    job.kill(min(job.running(names.WORKER_TYPE)))
    groups.append(job.group(2, seen))
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=600)

    assert_progress(groups)
