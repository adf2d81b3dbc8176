"""What a PyTorchJob's manifest may say: `edl_workflows.core.jobs.pytorch_job.model`."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.kubeflow.model import RestartPolicy
from edl_workflows.core.jobs.pytorch_job.model import PyTorchJob, TorchReplicaType
from tests.cases.kinds.pytorch_job import make_pytorch_job
from tests.unit.core.jobs.test_schema import refused


def test_an_elastic_job_has_workers() -> None:
    """An elasticPolicy is about workers, so a job with a master only can't have it."""
    with pytest.raises(ManifestError, match="elasticPolicy: it is about workers"):
        PyTorchJob.parse(make_pytorch_job(Master=1, elastic={"minReplicas": 1}))


def test_processes_of_a_pod_stand_in_one_place() -> None:
    """Upstream has two fields for the processes per pod, an older one in elasticPolicy and a newer one beside
    it. Only one of them may be set."""
    old = make_pytorch_job(Worker=2, elastic={"nProcPerNode": 8})
    assert PyTorchJob.parse(old).spec.processes_per_pod == "8"
    old["spec"]["nprocPerNode"] = "gpu"
    with pytest.raises(ManifestError, match="nprocPerNode stands beside elasticPolicy"):
        PyTorchJob.parse(old)
    del old["spec"]["elasticPolicy"]
    assert PyTorchJob.parse(old).spec.processes_per_pod == "gpu"


def test_spellings_of_types_and_defaults() -> None:
    """The names of replica types may have any case, as upstream allows. The defaults are one replica and
    OnFailure."""
    manifest = make_pytorch_job(Master=1, Worker=2)
    worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
    manifest["spec"]["pytorchReplicaSpecs"] = {
        "MASTER": {"template": worker["template"]},
        "worker": {"template": worker["template"], "restartPolicy": "Never"},
    }
    replicas = PyTorchJob.parse(manifest).spec.replicas

    assert list(replicas) == [TorchReplicaType.MASTER, TorchReplicaType.WORKER]
    assert [spec.replicas for spec in replicas.values()] == [1, 1]
    assert [spec.policy for spec in replicas.values()] == [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER]


@pytest.mark.parametrize(
    ("policy", "bounds"),
    [
        ({"minReplicas": 1, "maxReplicas": 4}, (1, 4)),
        ({"minReplicas": 2}, (2, 2)),
        ({"maxReplicas": 2}, (2, 2)),
        ({}, (2, 2)),
    ],
)
def test_bounds_that_are_left_out(policy: dict[str, Any], bounds: tuple[int, int]) -> None:
    """A missing bound equals the other bound; without both, each is the number of workers. These are
    upstream's defaults."""
    assert PyTorchJob.parse(make_pytorch_job(Worker=2, elastic=policy)).spec.worker_bounds == bounds


def test_the_definition_reads_bounds_in_any_case() -> None:
    """`kubectl scale` within elasticPolicy's bounds is taken, and beyond them refused."""
    for workers, wrong in ((1, True), (2, False), (4, False), (5, True)):
        manifest = make_pytorch_job(WORKER=workers, elastic={"minReplicas": 2, "maxReplicas": 4})
        assert bool(refused(manifest)) is wrong, workers
        only_one = make_pytorch_job(WORKER=workers, elastic={"maxReplicas": 4})
        assert bool(refused(only_one)) is (workers != 4), workers
