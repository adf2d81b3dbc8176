"""A job in real pods that can't save: people hear of it at once, and by its setting it ends."""

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.cluster.training import Place, container
from tests.e2e.submitted import SubmittedJob

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import errno, time
from edl_workflows.training import connect

def save():
    raise OSError(errno.ENOSPC, "No space left on device")

job = connect()
job.wait_until_active()
job.save_with(save, every_seconds=0.5)
for number, batch in enumerate(job.batches("train", size=10_000, shard_size=10, batch_size=1)):
    job.report_step(number + 1)
    time.sleep(0.05)
"""


def test_failed_saves_are_an_event_and_by_a_setting_the_end(here: Place) -> None:
    """The job's master, with its own rights, writes an Event with the cause. After as many failures as the
    job allows, the job fails with that cause."""
    pod = container(here.bed)
    agent = ["-m", "edl_workflows", "agent", "run", "--", pod.python, "-c", PROGRAM]
    template = {"spec": {"containers": [pod.runs(*agent)]}}
    roles = {"worker": {"replicas": 1, "template": template}}
    job = SubmittedJob.submit(
        here.cluster,
        {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": {"name": "full-disk"},
            "spec": {"faultTolerance": {"maxFailedSaves": 3}, "replicaSpecs": roles},
        },
    )
    job.wait_phase(JobPhase.FAILED)

    status = job.get().status
    assert status.reason == "CheckpointFailed"
    assert "No space left on device" in status.message
    told = events.of_object(here.cluster, client.get(here.cluster, ELASTIC_JOBS, job.name))
    assert any(one["reason"] == "CheckpointFailed" and "No space left" in one["message"] for one in told)
