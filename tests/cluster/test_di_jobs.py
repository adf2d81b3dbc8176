"""DIJobs in real pods: an agent learns while its collectors come, go and die."""

import time

import pytest

from edl_workflows.core.jobs.di_job.model import DIJobPhase
from tests.cluster.training import Place, container
from tests.e2e.di_jobs import SLOW, DITraining, collectors_come_and_die, manifest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def submit(here: Place, name: str, *options: str, **spec: object) -> DITraining:
    """A job of the example program."""
    folder = here.folder / name
    folder.mkdir(mode=0o777)
    return DITraining.submit_manifest(
        here.cluster, manifest(name, folder, container(here.bed), *options, **spec), folder
    )


def test_an_agent_learns_while_collectors_come_and_die(here: Place) -> None:
    """Learner, collectors and evaluator find each other by name and reach the best return, while collectors
    are added, killed and removed."""
    begun = time.monotonic()
    job = submit(here, "di-cliff", *SLOW)
    job.learns_from(0, 240)
    print(f"submit to the first walk: {time.monotonic() - begun:.1f} s")
    collectors_come_and_die(job)


def test_a_preemptible_job_is_placed_by_the_scheduler(here: Place) -> None:
    """The allocator names nodes, the scheduler binds each pod to its own, and the job ends well."""
    job = submit(here, "di-placed", *SLOW, preemptible=True)
    job.await_phase(DIJobPhase.RUNNING, 240)
    assert job.nodes() == job.get().status.allocation
    job.await_phase(DIJobPhase.SUCCEEDED, 240)
