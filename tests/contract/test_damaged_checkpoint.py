"""Bad input: a disk tore a checkpoint, and the command line, the operator and the job's status tell of it.

Real processes run on one embedded cluster. The job takes a whole older checkpoint with its data position, and
people are told; where none is whole the job fails at once, and no node is started again for it.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from edl_workflows.core.exceptions import JobFailedError
from edl_workflows.core.kubernetes import names
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.pipelines.cli import main as run
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Object, Scope
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from tests.contract.reported_errors import connection, executed
from tests.local_cluster import LocalCluster, Settings, cluster
from tests.unit.local.support import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:::(?!edl_workflows)"),  # what Airflow's own modules warn of
]

PROGRAM = Path(__file__).parent / "counting.py"
RECORDS = 80


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with its controller."""
    with cluster(tmp_path_factory.mktemp("damaged"), Settings(controller=True, grace=5.0)) as running:
        yield running


def manifest(name: str, folder: Path, seconds: float = 0.0) -> Object:
    """A job of one worker that counts; so long for each step."""
    agent = [sys.executable, "-m", "edl_workflows", "agent", "run", "--"]
    container = {
        "name": "main",
        "image": "none",
        "command": [*agent, sys.executable, str(PROGRAM), str(folder), str(RECORDS), str(seconds)],
        "volumeMounts": [{"name": "work", "mountPath": str(folder)}],
    }
    volume = {"name": "work", "hostPath": {"path": str(folder), "type": "Directory"}}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"optimizeMode": "manual", "replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }


def tear(checkpoint: Path) -> Path:
    """Cut a checkpoint's file off; which file it was."""
    model = checkpoint / "model"
    model.write_bytes(model.read_bytes()[:1])
    return model


def torn_folder(folder: Path) -> Path:
    """A folder whose only checkpoint is torn; the torn file."""
    store = CheckpointStore(folder / "checkpoints")
    return tear(Path(store.publish(7, lambda place: (place / "model").write_text("[1, 2, 3]")).uri))


def status_of(handle: Cluster, name: str) -> Object:
    """The job's status now."""
    return client.get(handle, ELASTIC_JOBS, name).get("status") or {}


def in_phase(handle: Cluster, name: str, phase: str) -> Object:
    """The status as soon as the job is in the phase."""
    return eventually(
        lambda: found if (found := status_of(handle, name)).get("phase") == phase else None,
        lambda: status_of(handle, name),
    )


def test_status_and_command_line_name_the_torn_file(
    local: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without an intact checkpoint, the job fails with the reason CorruptCheckpoint, the file and what to do.
    `edl wait` says this in its first line, and `edl describe` shows it. The worker was not replaced, and no
    process runs on."""
    file = torn_folder(tmp_path)
    handle = local.client()
    client.create(handle, manifest("torn", tmp_path))

    status = in_phase(handle, "torn", "Failed")

    assert status["reason"] == "CorruptCheckpoint"
    for part in (
        f"{file}: torn: 1 bytes where the manifest says 9",
        "bring the files back",
        "submit the job again",
    ):
        assert part in status["message"]
    assert run(["wait", "torn", "--kubeconfig", str(local.kubeconfig)]) == 7
    said, *more = capsys.readouterr().err.strip().splitlines()
    assert f"{file}: torn" in said
    assert all(line.startswith("  ") for line in more), "the pod's last lines"
    assert run(["describe", "torn", "--kubeconfig", str(local.kubeconfig)]) == 0
    assert "Failed (CorruptCheckpoint)" in capsys.readouterr().out
    pods = client.list_objects(handle, Scope(PODS, "default", f"{names.JOB_LABEL}=torn")).items
    workers = {name for pod in pods if "worker" in (name := pod["metadata"]["name"])}
    assert workers <= {names.node_name("torn", names.WORKER_TYPE, 0)}
    assert not [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


def test_the_operator_names_the_torn_file(
    local: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails with the damaged file and what to do."""
    file = torn_folder(tmp_path)
    connection(monkeypatch, kube_config_path=str(local.kubeconfig))

    error = executed(SubmitElasticJobOperator(task_id="task", manifest=manifest("torn-task", tmp_path)))

    assert isinstance(error, JobFailedError)
    final = AirflowFailException in type(error).__mro__
    assert not final, "a retry, after the files came back, makes the job anew"
    for part in ("CorruptCheckpoint", f"{file}: torn", "submit the job again"):
        assert part in str(error)


def test_an_older_whole_checkpoint_is_taken_and_people_are_told(
    local: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the job is suspended, its newest checkpoint is damaged. The job continues from the previous one,
    trains every later record again, and succeeds. Status and `edl describe` name the damaged file."""
    handle = local.client()
    client.create(handle, manifest("older", tmp_path, 0.1))
    store = tmp_path / "checkpoints"
    eventually(lambda: len(list(store.glob("checkpoint-*"))) >= 2)
    client.patch(handle, ELASTIC_JOBS, "older", {"spec": {"suspend": True}})
    in_phase(handle, "older", "Suspended")
    # The last one is saved on the way out, and its report may come too late for the status.
    newest = max(store.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    file = tear(newest)

    client.patch(handle, ELASTIC_JOBS, "older", {"spec": {"suspend": False}})
    status = in_phase(handle, "older", "Succeeded")

    (warning,) = status["warnings"]
    assert f"{file}: torn" in warning
    assert "is taken instead" in warning
    assert run(["describe", "older", "--kubeconfig", str(local.kubeconfig)]) == 0
    assert f"Warning:     {warning}" in capsys.readouterr().out
    (trained,) = tmp_path.glob("trained-v*")
    assert set(json.loads(trained.read_text())) == set(range(RECORDS))
