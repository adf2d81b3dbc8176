"""Bad input: one clear error in the CLI, the operators and the CR's status. It names the field or object and
what to do.

One embedded cluster with its controller serves all rows; nothing that was refused may leave anything behind.
"""

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException

from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    InvalidError,
    JobFinishedError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.operators.base import StageOperator
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import DeleteJobOperator, ScaleJobOperator, SuspendJobOperator
from edl_workflows.pipelines.cli import main as run
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import (
    CONFIG_MAPS,
    ELASTIC_JOBS,
    PODS,
    SCALE_PLANS,
    SECRETS,
    Object,
    Scope,
)
from edl_workflows.testing import free_port
from tests.contract.bad_manifests import MANIFESTS, OF_FILES, job, text_of
from tests.contract.reported_errors import connection, executed, one_line
from tests.local_cluster import LocalCluster, Settings, cluster
from tests.unit.local.support import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:::(?!edl_workflows)"),  # what Airflow's own modules warn of
]

FINISHED = "finished"
"""A job that has ended."""
FOREIGN = "foreign"
"""A job that no pipeline and no command line of ours made."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster, with a finished job and a foreign one."""
    with cluster(tmp_path_factory.mktemp("bad-input"), Settings(controller=True)) as running:
        for name in (FINISHED, FOREIGN):
            made = client.create(running.client(), job(name, suspend=True))
            eventually(lambda made=made: phase(running, made) == "Suspended", f"{name} is suspended")  # type: ignore[misc]
        client.patch_status(running.client(), ELASTIC_JOBS, FINISHED, {"phase": "Succeeded"})
        yield running


@pytest.fixture
def untouched(local: LocalCluster) -> Iterator[None]:
    """Fails if the test leaves a job, a plan or a pod behind."""
    before = left(local)
    yield
    assert left(local) == before


def left(local: LocalCluster) -> set[tuple[str, str]]:
    """Names of all jobs, plans and pods."""
    return {
        (resource.plural, found["metadata"]["name"])
        for resource in (ELASTIC_JOBS, SCALE_PLANS, PODS)
        for found in client.list_objects(local.client(), Scope(resource, "default")).items
    }


def phase(local: LocalCluster, obj: Object) -> str:
    """Of a job or plan as it is now."""
    resource = ELASTIC_JOBS if obj["kind"] == "ElasticJob" else SCALE_PLANS
    found = client.get(local.client(), resource, obj["metadata"]["name"])
    return str((found.get("status") or {}).get("phase"))


@pytest.mark.parametrize("row", MANIFESTS)
def test_the_command_line_refuses_a_bad_manifest(
    row: str, local: LocalCluster, untouched: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 2, and its one line of error names the field and what would be right."""
    manifest, says = MANIFESTS[row]
    file = tmp_path / "job.yaml"
    file.write_text(text_of(manifest))

    code = run(["submit", str(file), "--kubeconfig", str(local.kubeconfig)])

    assert code == 2
    assert OF_FILES.get(row, says) in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("row", MANIFESTS)
def test_the_operator_refuses_a_bad_manifest(
    row: str, local: LocalCluster, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails without a retry, which could not help against a wrong manifest."""
    manifest, says = MANIFESTS[row]
    connection(monkeypatch, kube_config_path=str(local.kubeconfig))

    error = executed(SubmitElasticJobOperator(task_id="task", manifest=text_of(manifest)))

    assert isinstance(error, AirflowFailException)
    assert isinstance(error, InvalidError)
    assert says in str(error)


OPERATORS: dict[str, tuple[Callable[[], StageOperator], type[EdlError], str]] = {
    "name clash": (
        lambda: SubmitElasticJobOperator(task_id="task", manifest=job(FOREIGN)),
        ConflictError,
        (
            f"ElasticJob default/{FOREIGN} exists already and was not created by a pipeline; "
            "choose another name, or delete it"
        ),
    ),
    "plan for a finished job": (
        lambda: ScaleJobOperator(
            task_id="task", job=FINISHED, replicas={"worker": 2}, if_finished="fail"
        ),
        JobFinishedError,
        f"ElasticJob default/{FINISHED} has already succeeded, at step",
    ),
    "unknown role": (
        lambda: ScaleJobOperator(task_id="task", job=FOREIGN, replicas={"ps": 2}),
        InvalidError,
        "the job has no such role; it has worker",
    ),
    "no such job": (
        lambda: SuspendJobOperator(task_id="task", name="nobody"),
        NotFoundError,
        "nobody",
    ),
    "unknown kind": (
        lambda: DeleteJobOperator(task_id="task", name=FOREIGN, kind="Jobb"),
        InvalidError,
        "'Jobb'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", OPERATORS)
def test_the_operator_names_the_object(
    row: str, local: LocalCluster, untouched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the object that is in the way or missing, and what to do about it."""
    make, kind, says = OPERATORS[row]
    connection(monkeypatch, kube_config_path=str(local.kubeconfig))

    error = executed(make())

    assert isinstance(error, kind)
    assert says in str(error)


def unreachable(folder: Path) -> Path:
    """A kubeconfig of a server that does not run."""
    server = {"server": f"http://127.0.0.1:{free_port()}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gone", "cluster": server}],
        "users": [{"name": "gone", "user": {"token": "s3cret"}}],
        "contexts": [{"name": "gone", "context": {"cluster": "gone", "user": "gone"}}],
        "current-context": "gone",
    }
    (folder / "gone").write_text(yaml.safe_dump(config))
    return folder / "gone"


CONNECTIONS: dict[str, tuple[Callable[[Path], dict[str, Any] | None], type[EdlError], str]] = {
    "absent": (lambda _: None, InvalidError, "kubernetes_conn_id"),
    "no kubeconfig": (
        lambda folder: {"kube_config_path": str(folder / "nowhere")},
        InvalidError,
        "correct kube_config_path",
    ),
    "unreachable": (
        lambda folder: {"kube_config_path": str(unreachable(folder))},
        UnavailableError,
        "127.0.0.1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", CONNECTIONS)
def test_the_operator_names_the_connection(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing or wrong connection, or the server that does not answer, and never contains
    a token."""
    extra, kind, says = CONNECTIONS[row]
    made = extra(tmp_path)
    if made is None:
        monkeypatch.delenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", raising=False)
    else:
        connection(monkeypatch, **made)
    name = "nothing_of_this_name" if made is None else "kubernetes_default"

    error = executed(SubmitElasticJobOperator(task_id="task", manifest=job(), kubernetes_conn_id=name))

    assert isinstance(error, kind), repr(error)
    assert says in str(error)
    assert "s3cret" not in str(error)


COMMANDS: dict[str, tuple[list[str], int, str]] = {
    "name clash": (["submit", "MANIFEST"], 4, f"ElasticJob default/{FOREIGN} exists already"),
    "plan for a finished job": (
        ["scale", FINISHED, "worker=2"], 9, f"ElasticJob default/{FINISHED} has already succeeded",
    ),
    "unknown role": (["scale", FOREIGN, "ps=2"], 2, "the job has no such role; it has worker"),
    "no count": (["scale", FOREIGN, "worker"], 2, "'worker': give a role and a number, such as worker=3"),
    "no such job": (["suspend", "nobody"], 3, "nobody"),
    "no such node": (["logs", FOREIGN, "worker-7"], 3, FOREIGN),
    "path as a name": (["get", "../../secrets/x"], 3, "../../secrets/x"),
    "no such file": (["submit", "nowhere.yaml"], 2, "nowhere.yaml"),
}  # fmt: skip


@pytest.mark.parametrize("row", COMMANDS)
def test_the_command_line_names_the_object(
    row: str, local: LocalCluster, untouched: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code tells scripts the kind of the failure, and the one line of output tells people."""
    arguments, code, says = COMMANDS[row]
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job(FOREIGN)))
    command = [str(file) if one == "MANIFEST" else one for one in arguments]

    ended = run([*command, "--kubeconfig", str(local.kubeconfig)])

    assert says in one_line(capsys.readouterr().err)
    assert ended == code


def test_the_command_line_names_a_server_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 6, and its error has the address but no token."""
    code = run(["get", "--kubeconfig", str(unreachable(tmp_path))])

    line = one_line(capsys.readouterr().err)
    assert code == 6
    assert "127.0.0.1" in line
    assert "s3cret" not in line


def status_until(handle: Cluster, resource: Any, name: str, reason: str) -> Object:
    """The status as soon as it has the reason."""

    def look() -> Object | None:
        status: Object = client.get(handle, resource, name).get("status") or {}
        return status if status.get("reason") == reason else None

    return eventually(look, lambda: client.get(handle, resource, name).get("status"))


@pytest.fixture
def handle(local: LocalCluster) -> Iterator[Cluster]:
    """The cluster; jobs of this test go with it."""
    found = local.client()
    before = {
        obj["metadata"]["name"] for obj in client.list_objects(found, Scope(ELASTIC_JOBS, "default")).items
    }
    yield found
    for obj in client.list_objects(found, Scope(ELASTIC_JOBS, "default")).items:
        if obj["metadata"]["name"] not in before:
            client.delete(found, ELASTIC_JOBS, obj["metadata"]["name"])


@pytest.mark.parametrize(
    ("resource", "kind"), [(SECRETS, "Secret"), (CONFIG_MAPS, "ConfigMap")], ids=["secret", "state"]
)
def test_a_foreign_object_in_the_way_is_named_in_the_status(
    handle: Cluster, resource: Any, kind: str
) -> None:
    """The job waits and says for what. The foreign object does not change, and no pod is created."""
    name = f"clash-{kind.lower()}"
    child = names.token_secret_name(name) if kind == "Secret" else names.state_config_map_name(name)
    foreign = client.create(handle, {"apiVersion": "v1", "kind": kind, "metadata": {"name": child}})
    client.create(handle, job(name))

    status = status_until(handle, ELASTIC_JOBS, name, "NameConflict")

    assert status["phase"] == "Pending"
    assert f"{kind} default/{child}" in status["message"]
    assert client.get(handle, resource, child)["metadata"] == foreign["metadata"]
    pods = client.list_objects(handle, Scope(PODS, "default", f"{names.JOB_LABEL}={name}")).items
    assert pods == []
    client.delete(handle, resource, child)


PLANS: dict[str, tuple[Object, str, str]] = {
    "finished job": (
        {"ownerJob": FINISHED, "replicaResourceSpecs": {"worker": {"replicas": 2}}},
        "JobFinished",
        FINISHED,
    ),
    "unknown role": (
        {"ownerJob": FOREIGN, "replicaResourceSpecs": {"ps": {"replicas": 2}}},
        "InvalidPlan",
        "ps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", PLANS)
def test_a_plan_that_can_not_be_carried_out_fails_with_a_reason(row: str, handle: Cluster) -> None:
    """A plan that was written by hand and can't be carried out fails with a reason, and the job does not
    change."""
    spec, reason, says = PLANS[row]
    name = f"plan-{reason.lower()}"
    before = client.get(handle, ELASTIC_JOBS, str(spec["ownerJob"]))["spec"]
    plan = {"apiVersion": names.API_VERSION, "kind": "ScalePlan", "metadata": {"name": name}, "spec": spec}
    client.create(handle, plan)

    status = status_until(handle, SCALE_PLANS, name, reason)

    assert status["phase"] == "Failed"
    assert says in status["message"]
    assert client.get(handle, ELASTIC_JOBS, str(spec["ownerJob"]))["spec"] == before
    client.delete(handle, SCALE_PLANS, name)


def test_a_corrupt_master_state_is_named_in_the_status(handle: Cluster) -> None:
    """The job's message names the ConfigMap, what is wrong in it and what to do. Training does not continue
    from a damaged state."""
    name = "corrupt"
    master = {"dlrover-master": {"restartCount": 0}}
    manifest = job(name, suspend=True)
    manifest["spec"]["replicaSpecs"] |= master
    client.create(handle, manifest)
    eventually(
        lambda: (client.get(handle, ELASTIC_JOBS, name).get("status") or {}).get("phase") == "Suspended"
    )
    state = names.state_config_map_name(name)
    if client.find(handle, CONFIG_MAPS, state) is None:
        client.patch(handle, ELASTIC_JOBS, name, {"spec": {"suspend": False}})
        eventually(lambda: client.find(handle, CONFIG_MAPS, state))
        client.patch(handle, ELASTIC_JOBS, name, {"spec": {"suspend": True}})
        eventually(lambda: client.get(handle, ELASTIC_JOBS, name)["status"].get("phase") == "Suspended")
    client.patch(handle, CONFIG_MAPS, state, {"data": {names.STATE_KEY: '{"counts": {"worker": "many"}}'}})
    client.patch(handle, ELASTIC_JOBS, name, {"spec": {"suspend": False}})

    status = status_until(handle, ELASTIC_JOBS, name, "MasterRestartsExhausted")

    assert status["phase"] == "Failed"
    for part in (f"ConfigMap default/{state}", "counts.worker", "empty it to begin the job anew"):
        assert part in status["message"], textwrap.fill(status["message"])


def test_pods_of_a_job_have_no_way_to_the_api(handle: Cluster) -> None:
    """The training pod has no credentials for the API server, whatever its account may do, since it only
    needs its master."""
    name = "alone"
    client.create(handle, job(name))
    pod = names.node_name(name, "worker", 0)

    found = eventually(lambda: client.find(handle, PODS, pod))

    assert found["spec"]["automountServiceAccountToken"] is False
