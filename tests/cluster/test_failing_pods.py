"""Jobs in real pods that fail: they can't save, an init container fails, a program kills itself."""

from typing import Any

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
    job = _submit(here, "full-disk", PROGRAM, faultTolerance={"maxFailedSaves": 3})
    job.wait_phase(JobPhase.FAILED)

    status = job.get().status
    assert status.reason == "CheckpointFailed"
    assert "No space left on device" in status.message
    told = events.of_object(here.cluster, client.get(here.cluster, ELASTIC_JOBS, job.name))
    assert any(one["reason"] == "CheckpointFailed" and "No space left" in one["message"] for one in told)


def _submit(here: Place, name: str, program: str, pod: Any = (), **spec: Any) -> SubmittedJob:
    """Submit a job of one worker, which may be replaced once.

    Args:
        here: where.
        name: the job's.
        program: of the worker, in Python.
        pod: further fields of its pod.
        spec: further fields of the job.
    """
    main = container(here.bed)
    agent = ["-m", "edl_workflows", "agent", "run", "--", main.python, "-c", program]
    template = {"spec": {"containers": [main.runs(*agent)], **dict(pod)}}
    roles = {"worker": {"replicas": 1, "restartCount": 1, "template": template}}
    head = {"apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": name}}
    return SubmittedJob.submit(here.cluster, {**head, "spec": {"replicaSpecs": roles, **spec}})


def test_deaths_that_nobody_asked_for_use_the_budget(here: Place) -> None:
    """An init container that fails, and a program that is killed from inside, as by the kernel's OOM killer:
    the worker is replaced as often as its job allows, then the job fails with the cause."""
    fetch = container(here.bed).runs("-c", "import sys; print('no such data'); sys.exit(4)")
    init = _submit(here, "no-data", "pass", {"initContainers": [{**fetch, "name": "fetch"}]})
    killed = _submit(here, "kills-itself", "import os; os.kill(os.getpid(), 9)")
    for job, cause in (
        (init, "InitContainerFailed (4): init container fetch ended with exit code 4: no such data"),
        (killed, "KilledBySignal (137)"),
    ):
        job.wait_phase(JobPhase.FAILED, seconds=180)
        message = job.get().status.message
        assert f"worker-1 ended with {cause}" in message
        assert "its budget of 1 replacements (restartCount) is used up" in message
