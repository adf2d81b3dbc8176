"""Labels of a user's pod template, on the pods of every kind."""

from typing import Any

import pytest

from edl_workflows.jobs import names
from edl_workflows.jobs.kinds import KINDS
from edl_workflows.jobs.testing import JobsNamespace
from tests.unit.jobs.conftest import make_job, make_template
from tests.unit.jobs.di_jobs import make as make_di_job
from tests.unit.jobs.di_jobs import task
from tests.unit.jobs.test_tf_job_reconcile import make_tf_job
from tests.unit.jobs.training_jobs import make_training_job

OWN = {"app": "recommender", "team": "ads"}


def elastic_job() -> dict[str, Any]:
    """Its first pod is the master's."""
    template = make_template()
    master = {"template": {"metadata": {"labels": dict(OWN)}}}
    return make_job(replicaSpecs={"dlrover-master": master, "worker": {"replicas": 1, "template": template}})


def tf_job() -> dict[str, Any]:
    """One worker."""
    job = make_tf_job(Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["metadata"] = {"labels": dict(OWN)}
    return job


def training_job() -> dict[str, Any]:
    """Its first pod is the master's."""
    return make_training_job(template={"metadata": {"labels": dict(OWN)}})


def di_job() -> dict[str, Any]:
    """One learner."""
    learner = task("learner")
    learner["template"]["metadata"] = {"labels": dict(OWN)}
    return make_di_job(learner)


JOBS = {"ElasticJob": elastic_job, "TFJob": tf_job, "TrainingJob": training_job, "DIJob": di_job}


@pytest.mark.parametrize("kind", JOBS)
def test_a_users_labels_stay(kind: str) -> None:
    """Services and dashboards that select by a team's own ``app`` find the pods."""
    world = JobsNamespace()
    world.add(JOBS[kind]())
    world.settle()
    pods = [obj["metadata"]["labels"] for (what, _), obj in world.objects.items() if what == "Pod"]

    assert pods
    assert [{key: labels.get(key) for key in OWN} for labels in pods] == [OWN] * len(pods)


def test_pods_of_an_elastic_job_are_dlrovers_unless_they_say_otherwise() -> None:
    """Upstream's ``app: dlrover`` stands where a template has no ``app``, on ElasticJobs only."""
    world = JobsNamespace()
    world.add(make_job())
    world.add(make_tf_job(Worker=1))
    world.settle()
    found = {
        name: obj["metadata"]["labels"].get("app")
        for (what, name), obj in world.objects.items()
        if what == "Pod"
    }

    assert found == {"elasticjob-digits-dlrover-master-0": "dlrover", "mnist-worker-0": None}


@pytest.mark.parametrize("kind", JOBS)
def test_a_template_can_t_join_another_job(kind: str) -> None:
    """Labels by which jobs of any kind know their pods are not taken from a template: their Services would
    send to its pods.
    """
    assert {row.labels[0] for row in KINDS} == set(names.JOB_LABELS)
    stolen = dict.fromkeys(names.JOB_LABELS, "victim") | {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}
    job = JOBS[kind]()
    _add_labels(job, stolen)
    world = JobsNamespace()
    world.add(job)
    world.settle()
    pods = [obj["metadata"]["labels"] for (what, _), obj in world.objects.items() if what == "Pod"]

    assert pods
    assert not [labels for labels in pods if "victim" in labels.values()]
    assert all(OWN.items() <= labels.items() for labels in pods)


def _add_labels(value: Any, labels: dict[str, str]) -> None:
    """Put labels beside `OWN` wherever that stands."""
    if isinstance(value, dict):
        if value.get("labels") == OWN:
            value["labels"] = OWN | labels
        for below in value.values():
            _add_labels(below, labels)
    elif isinstance(value, list):
        for below in value:
            _add_labels(below, labels)
