"""What a PyTorchJob's manifest may say: `edl_workflows.core.jobs.pytorch_job.model`."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.kubeflow.model import RestartPolicy
from edl_workflows.core.jobs.pytorch_job.model import PyTorchJob, TorchReplicaType
from tests.unit.core.jobs.test_pytorch_job_reconcile import make_pytorch_job
from tests.unit.core.jobs.test_schema import refused
from tests.unit.core.jobs.test_tf_job_model import Change, Manifest, put


def make() -> Manifest:
    """A master and two workers."""
    return make_pytorch_job(Master=1, Worker=2)


SPECS = "spec/pytorchReplicaSpecs"
POLICY = "spec/elasticPolicy"
BAD: list[Any] = [
    pytest.param(put(SPECS, {}), "pytorchReplicaSpecs", id="no replicas"),
    pytest.param(put(f"{SPECS}/PS", {}), "types are Master, Worker", id="unknown type"),
    pytest.param(put(f"{SPECS}/Master/replicas", 2), "a job has one Master", id="two masters"),
    pytest.param(put(f"{SPECS}/Worker/replicas", 0), "Worker.replicas", id="zero workers"),
    pytest.param(put(f"{SPECS}/Worker/restartPolicy", "Sometimes"), "restartPolicy", id="restart policy"),
    pytest.param(put("spec/nprocPerNode", "all"), "nprocPerNode", id="processes no number"),
    pytest.param(put("spec/nprocPerNode", "0"), "nprocPerNode", id="no process"),
    pytest.param(put(f"{POLICY}/minReplicas", 0), "minReplicas", id="no worker needed"),
    pytest.param(put(POLICY, {"minReplicas": 3, "maxReplicas": 2}), "larger than maxReplicas", id="bounds"),
    pytest.param(put(f"{POLICY}/minReplicas", 3), "from 3 to 3", id="fewer workers than bounds"),
    pytest.param(put(f"{POLICY}/maxReplicas", 1), "from 1 to 1", id="more workers than bounds"),
    pytest.param(put(f"{POLICY}/rdzvBackend", "zookeeper"), "rdzvBackend", id="unknown backend"),
    pytest.param(put(f"{POLICY}/rdzvPort", 70_000), "rdzvPort", id="no port"),
    pytest.param(put(f"{POLICY}/rdzvConf", [{"value": "x"}]), "rdzvConf", id="option without a key"),
    pytest.param(put(f"{POLICY}/maxRestarts", -1), "maxRestarts", id="negative restarts"),
    pytest.param(put("metadata/name", "M"), "metadata.name", id="capitals in the name"),
    pytest.param(put("metadata/name", "m" * 52), "metadata.name", id="name too long"),
    pytest.param(put("apiVersion", "kubeflow.org/v1beta2"), "apiVersion", id="a version of pytorch-operator"),
    pytest.param(
        put("metadata/annotations", {"elastic.iml.github.io/pytorchjob-compat": "bugs"}),
        "'bugs' is unknown",
        id="compat",
    ),
]

NOT_THE_SCHEMAS = ("compat", "a version of pytorch-operator")


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_wrong_manifest_is_refused_by_its_field(change: Change, message: str) -> None:
    """Each mistake in a manifest gives an error that names the field."""
    manifest = make()
    change(manifest)
    with pytest.raises(ManifestError, match=message):
        PyTorchJob.parse(manifest)


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
    manifest = make()
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


@pytest.mark.parametrize(("change", "message"), [row for row in BAD if row.id not in NOT_THE_SCHEMAS])
def test_the_definition_refuses_what_the_model_refuses(change: Change, message: str) -> None:
    """The API server rejects each wrong manifest that the model rejects, except for annotations and versions,
    which a schema can't check."""
    manifest = make()
    assert refused(manifest) == []
    change(manifest)

    assert refused(manifest), message


def test_the_definition_reads_bounds_in_any_case() -> None:
    """`kubectl scale` within elasticPolicy's bounds is taken, and beyond them refused."""
    for workers, wrong in ((1, True), (2, False), (4, False), (5, True)):
        manifest = make_pytorch_job(WORKER=workers, elastic={"minReplicas": 2, "maxReplicas": 4})
        assert bool(refused(manifest)) is wrong, workers
        only_one = make_pytorch_job(WORKER=workers, elastic={"maxReplicas": 4})
        assert bool(refused(only_one)) is (workers != 4), workers
