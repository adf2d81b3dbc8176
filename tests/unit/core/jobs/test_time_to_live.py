"""Finished jobs that are deleted after a time: `edl_workflows.core.jobs.kind.Kind.decide`, for every kind."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.kinds import KINDS
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.examples import make_example

END = "2026-01-01T00:00:00Z"
"""When a world begins."""


def finished(kind: str, ttl: int | None) -> tuple[JobsNamespace, dict[str, Any]]:
    """A job that ended when its world began."""
    manifest = make_example(kind)
    if ttl is not None:
        manifest["spec"]["ttlSecondsAfterFinished"] = ttl
    status = {"phase": KIND_CASES[kind].ends[0], "completionTime": END, "startTime": END}
    world = JobsNamespace()
    job = world.add({**manifest, "status": status})
    world.settle()
    return world, job


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_finished_job_goes_when_its_time_is_over(kind: str) -> None:
    """The job is deleted when its time to live is over, and the controller requeues it for that moment."""
    world, job = finished(kind, 600)
    name = job["metadata"]["name"]
    world.tick(599)
    world.settle()
    assert (kind, name) in world.objects
    assert world.decide(kind, name).requeue_after == 1
    world.tick(1)
    world.settle()

    assert (kind, name) not in world.objects


@pytest.mark.parametrize("kind", KIND_CASES)
def test_without_a_time_a_finished_job_stays(kind: str) -> None:
    """By default a finished job is kept, so that its result can be seen and a repeated submission finds
    it."""
    world, job = finished(kind, None)
    world.tick(10 * 365 * 86_400)
    world.settle()

    assert (kind, job["metadata"]["name"]) in world.objects


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_job_that_has_not_ended_stays(kind: str) -> None:
    """The time to live counts from the end of a job, not from its start."""
    manifest = make_example(kind)
    manifest["spec"]["ttlSecondsAfterFinished"] = 0
    world = JobsNamespace()
    job = world.add(manifest)
    world.settle()
    world.tick(60)
    world.settle()

    assert (kind, job["metadata"]["name"]) in world.objects


def test_the_other_spelling_of_a_tf_job() -> None:
    """For a TFJob, the time to live may be given as `runPolicy.ttlSecondsAfterFinished`, too."""
    manifest = make_example("TFJob")
    manifest["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 60}
    world = JobsNamespace()
    world.add({**manifest, "status": {"phase": "Failed", "completionTime": END, "startTime": END}})
    world.tick(60)
    world.settle()

    assert ("TFJob", "mnist") not in world.objects


def test_a_tf_job_of_another_controller_stays() -> None:
    """MultiKueue copies the result of a job in another cluster. The local object is left for Kueue to
    delete."""
    manifest = make_example("TFJob")
    manifest["spec"]["runPolicy"] = {"ttlSecondsAfterFinished": 60, "managedBy": "kueue.x-k8s.io/multikueue"}
    world = JobsNamespace()
    world.add({**manifest, "status": {"phase": "Succeeded", "completionTime": END, "startTime": END}})
    world.tick(60)
    world.settle()

    assert ("TFJob", "mnist") in world.objects
    assert world.decide("TFJob", "mnist").requeue_after is None


@pytest.mark.parametrize("kind", KIND_CASES)
def test_the_longest_time_is_that_of_a_kubernetes_job(kind: str) -> None:
    """The longest time to live is that of a Kubernetes Job, 2**31 - 1 seconds; a longer one is rejected."""
    model = next(one.model for one in KINDS if one.name == kind)
    manifest = make_example(kind)
    manifest["spec"]["ttlSecondsAfterFinished"] = 2**31 - 1
    model.parse(manifest)
    manifest["spec"]["ttlSecondsAfterFinished"] += 1
    with pytest.raises(ManifestError, match="ttlSecondsAfterFinished"):
        model.parse(manifest)
