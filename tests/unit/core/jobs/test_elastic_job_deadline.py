"""``activeDeadlineSeconds`` of an ElasticJob."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from tests.cases.kinds.elastic_job import make_elastic_job
from tests.cases.kinds.tf_job import make_tf_job
from tests.jobs_namespace import JobsNamespace

Manifest = dict[str, Any]


def running(**spec: Any) -> tuple[JobsNamespace, Manifest]:
    """A job that runs with a master, a server and a worker."""
    world = JobsNamespace()
    job = world.add(make_elastic_job(activeDeadlineSeconds=600, **spec))
    world.settle()
    labels = {"elasticjob.dlrover/name": "digits", "scale-type": "auto"}
    pods = [
        {"name": f"digits-edljob-{role}-0", "type": role, "id": 0, "rankIndex": 0}
        for role in ("ps", "worker")
    ]
    plan = {"ownerJob": "digits", "createPods": pods}
    metadata = {"name": "digits-plan-0", "labels": labels}
    world.add({"apiVersion": job["apiVersion"], "kind": "ScalePlan", "metadata": metadata, "spec": plan})
    world.settle()
    for kind, name in list(world.objects):
        if kind == "Pod":
            world.set_pod(name, "Running")
    world.settle()
    assert job["status"]["phase"] == "Running"
    return world, job


def going(world: JobsNamespace) -> set[str]:
    """Types of the pods that are being deleted."""
    label = "elasticjob.dlrover/replica-type"
    pods = (obj["metadata"] for (kind, _), obj in world.objects.items() if kind == "Pod")
    return {pod["labels"][label] for pod in pods if "deletionTimestamp" in pod}


def test_a_job_ends_at_its_deadline_with_a_checkpoint() -> None:
    """The job fails with upstream's reason. Workers are stopped first, so that the chief saves a checkpoint
    while the servers are there."""
    world, job = running()
    world.tick(599)
    world.settle()
    before = (job["status"]["phase"], world.decide("ElasticJob", "digits").requeue_after)
    world.tick(1)
    world.settle()
    first = going(world)
    world.reap()
    world.settle()

    assert before[0] == "Running"
    assert before[1] is not None
    assert before[1] <= 1
    assert (job["status"]["phase"], job["status"]["reason"]) == ("Failed", "DeadlineExceeded")
    assert "600 s of activeDeadlineSeconds" in job["status"]["message"]
    assert first == {"worker"}
    assert going(world) == {"ps", "dlrover-master"}
    world.reap()
    world.settle()
    assert [key for key in world.objects if key[0] == "Pod"] == []


def test_the_time_of_a_suspended_job_stands_still() -> None:
    """A suspended job does not reach its deadline; once resumed it has all of its time, as a Job of
    Kubernetes has."""
    world, job = running()
    world.edit("ElasticJob", "digits", {"spec": {"suspend": True}})
    for _ in range(3):
        world.settle()
        world.reap()
    world.settle()
    world.tick(1000)
    world.settle()
    suspended = job["status"]["phase"]
    world.edit("ElasticJob", "digits", {"spec": {"suspend": False}})
    world.settle()
    world.tick(599)
    world.settle()
    resumed = job["status"]["phase"]
    world.tick(1)
    world.settle()

    assert suspended == "Suspended"
    assert resumed != "Failed"
    assert job["status"]["reason"] == "DeadlineExceeded"


def test_a_job_that_waits_for_room_ends_at_its_deadline() -> None:
    """The time counts from the first decision, also while no pod has a place."""
    world = JobsNamespace()
    job = world.add(make_elastic_job(activeDeadlineSeconds=60))
    world.settle()
    world.tick(60)
    world.settle()

    assert job["status"]["reason"] == "DeadlineExceeded"


def test_a_negative_deadline_is_refused() -> None:
    """The message names the field."""
    with pytest.raises(ManifestError, match=r"spec\.activeDeadlineSeconds: .*greater than or equal to 0"):
        ElasticJob.parse(make_elastic_job(activeDeadlineSeconds=-1))


def test_the_deadline_of_a_tf_job_is_kept_by_its_conversion() -> None:
    """`edl convert` carries the field over."""
    kind = kinds.kind_of("TFJob")
    convert = dict(kind.conversions)["ElasticJob"]
    converted = convert(kind.model.parse(make_tf_job(policies={"activeDeadlineSeconds": 60})))

    assert converted.manifest["spec"]["activeDeadlineSeconds"] == 60
