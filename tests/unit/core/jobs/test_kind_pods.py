"""Which pods are a job's: `edl_workflows.core.jobs.kind.Kind`."""

import pytest

from edl_workflows.core.jobs import kinds
from edl_workflows.local.apiserver.objects.selectors import parse_label_selector as requirements
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.examples import make_example


def selects(selector: str, labels: dict[str, str]) -> bool:
    """Whether an API server takes these labels for a match."""
    return all(holds(labels) for holds in requirements(selector))


@pytest.mark.parametrize("kind", KIND_CASES)
def test_pods_of_a_job_are_those_that_its_kind_makes(kind: str) -> None:
    """The selector of a kind, by which `edl describe` and `edl logs` find the pods of a job, matches each of
    them."""
    world = JobsNamespace()
    job = world.add(make_example(kind))
    world.settle()
    row = kinds.kind_of(kind)
    selector = row.pods_of(job["metadata"]["name"])
    pods = [obj["metadata"]["labels"] for (what, _), obj in world.objects.items() if what == "Pod"]

    assert pods
    assert all(selects(selector, labels) for labels in pods)
    assert all(row.pods.selects({"metadata": {"labels": labels}}) for labels in pods)


def test_pods_of_another_kind_with_the_same_job_name_are_not_taken() -> None:
    """training-operator labels the pods of all its kinds with the job's name, so pods are told apart by the
    operator's name."""
    labels = {
        "training.kubeflow.org/job-name": "mnist",
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": "worker",
    }
    row = kinds.kind_of("TFJob")

    assert not selects(row.pods_of("mnist"), labels)
    assert not row.pods.selects({"metadata": {"labels": labels}})
