"""The PodGroup of a TFJob with a scheduling policy."""

import pytest

from edl_workflows.core.jobs.actions import Refusal
from tests.cases.kinds.tf_job import make_tf_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.tf_jobs import NAME, Job


def test_a_gang_is_made_once_before_its_pods() -> None:
    """With a scheduling policy, the job has a PodGroup of the size of the job. Its pods name the PodGroup and
    the scheduler Volcano."""
    job = Job(policies={"schedulingPolicy": {"queue": "q"}}, PS=1, Worker=2)
    group = job.world.objects["PodGroup", NAME]
    assert group["spec"] == {"minMember": 3, "queue": "q"}
    pod = job.pod("ps-0")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == NAME


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gang_follows_its_job(dynamic: bool) -> None:
    """After scaling, the PodGroup has the new size, whether pods stay or are replaced: Volcano would wait for
    ever for the pods of a larger one. Fields that Volcano has set stay."""
    job = Job({"enableDynamicWorker": dynamic}, policies={"schedulingPolicy": {}}, PS=1, Worker=8)
    job.world.edit("PodGroup", NAME, {"spec": {"queue": "default", "minTaskMember": {"a": 1}}})
    for replicas in (4, 6):
        job.edit(tfReplicaSpecs={"Worker": {"replicas": replicas}})
        for _ in range(3):
            job.settle()
        own = {"minMember": replicas + 1, "queue": "default", "minTaskMember": {"a": 1}}
        assert job.world.objects["PodGroup", NAME]["spec"] == own
        assert len(job.pods) == replicas + 1
        assert not job.world.decide("TFJob", NAME).create, "it is looked at once an edit"
    policy = {"queue": "q", "minResources": {"cpu": "8"}, "priorityClass": "high"}
    job.edit(runPolicy={"schedulingPolicy": policy})
    spec = job.world.objects["PodGroup", NAME]["spec"]
    assert (spec["queue"], spec["minResources"], spec["priorityClassName"]) == ("q", {"cpu": "8"}, "high")
    job.edit(runPolicy={"schedulingPolicy": dict.fromkeys(policy)})
    assert job.world.objects["PodGroup", NAME]["spec"] == own


def test_a_gang_that_is_refused_is_tried_again() -> None:
    """Without Volcano, the status says that the PodGroup could not be created. Once Volcano is installed, it
    is created, although the pods exist by then."""
    world = JobsNamespace()
    refusal = Refusal("PodGroup", NAME, False, "it has no PodGroup of scheduling.volcano.sh/v1beta1")
    world.refuse[NAME] = refusal
    world.add(make_tf_job(policies={"schedulingPolicy": {}}, Worker=2))
    for _ in range(3):
        world.reconcile()
    status = world.objects["TFJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Created", "CreateRefused")
    assert refusal.message in status["message"]
    assert world.decide("TFJob", NAME).requeue_after == 30
    world.refuse.clear()
    world.settle()
    assert world.objects["PodGroup", NAME]["spec"]["minMember"] == 2
    assert world.objects["TFJob", NAME]["status"]["reason"] == "TFJobCreated"


def test_a_gang_of_somebody_else_is_left_alone() -> None:
    """If the PodGroup belongs to someone else, the job's reason is NameConflict, also after an edit of the
    job."""
    world = JobsNamespace()
    metadata = {"name": NAME, "labels": {"training.kubeflow.org/job-name": NAME}}
    foreign = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}
    world.add(foreign | {"spec": {"minMember": 9}})
    world.add(make_tf_job(policies={"schedulingPolicy": {}}, Worker=2))
    world.settle()
    assert world.objects["TFJob", NAME]["status"]["reason"] == "NameConflict"
    world.edit("TFJob", NAME, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
    world.settle()
    assert world.objects["TFJob", NAME]["status"]["reason"] == "NameConflict"
    assert world.objects["PodGroup", NAME]["spec"] == {"minMember": 9}
