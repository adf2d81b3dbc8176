"""Labels of a user's pod template, on the pods of every kind."""

import pytest

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from tests.cases.kinds import KIND_CASES
from tests.cases.kinds.elastic_job import make_elastic_job
from tests.cases.kinds.tf_job import make_tf_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.examples import OWN_LABELS, make_example


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_users_labels_stay(kind: str) -> None:
    """A label ``app`` of the user's template stays, so that the team's Services and dashboards find the
    pods."""
    world = JobsNamespace()
    world.add(make_example(kind))
    world.settle()
    pods = [obj["metadata"]["labels"] for (what, _), obj in world.objects.items() if what == "Pod"]

    assert pods
    assert [{key: labels.get(key) for key in OWN_LABELS} for labels in pods] == [OWN_LABELS] * len(pods)


def test_pods_of_an_elastic_job_are_dlrovers_unless_they_say_otherwise() -> None:
    """Pods of ElasticJobs have upstream's label ``app: dlrover`` unless the template has another ``app``.
    Pods of other kinds do not."""
    world = JobsNamespace()
    world.add(make_elastic_job())
    world.add(make_tf_job(Worker=1))
    world.settle()
    found = {
        name: obj["metadata"]["labels"].get("app")
        for (what, name), obj in world.objects.items()
        if what == "Pod"
    }

    assert found == {"elasticjob-digits-dlrover-master-0": "dlrover", "mnist-worker-0": None}


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_template_can_t_join_another_job(kind: str) -> None:
    """A template's labels by which jobs know their pods are not used: otherwise the Services of another job
    could send to this pod."""
    job_labels = {row.labels[0] for row in KINDS}
    stolen = dict.fromkeys(job_labels, "victim") | {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}
    world = JobsNamespace()
    world.add(make_example(kind, OWN_LABELS | stolen))
    world.settle()
    pods = [obj["metadata"]["labels"] for (what, _), obj in world.objects.items() if what == "Pod"]

    assert pods
    assert not [labels for labels in pods if "victim" in labels.values()]
    assert all(OWN_LABELS.items() <= labels.items() for labels in pods)
