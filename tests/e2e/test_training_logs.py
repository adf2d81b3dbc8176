"""Training logs in the log of deferred tasks: real Airflow, real triggerers that are killed, the embedded
cluster."""

import contextlib
import ipaddress
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import local_cluster
from tests.demo.airflow import Airflow
from tests.e2e.kill_matrix import Matrix

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.airflow, pytest.mark.timeout(2400)]

JOBS, KILLS = 4, 3
MORE_LINES = 20
"""Lines of each job in the log of its task before the triggerer is killed, and again before the next time."""

DAGS = """
from pathlib import Path
from airflow.sdk import DAG
from edl_workflows.operators.job import SubmitJobOperator

FOLDER = Path(__file__).parents[1]
PROGRAM = '''
import pathlib, sys, time
count = 0
while not pathlib.Path(sys.argv[1]).exists():
    print("line", count)
    count += 1
    time.sleep(0.05)
print("last", count)
'''

def manifest():
    container = {
        "name": "tensorflow",
        "image": "local",
        "command": ["python3", "-u", "-c", PROGRAM, str(FOLDER / "end")],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    role = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "spec": {"tfReplicaSpecs": {"Worker": role}}}

for number in range(JOBS):
    with DAG(f"training-{number}", schedule=None) as dag:
        SubmitJobOperator(task_id="train", manifest=manifest(), deferrable=True, logs="chief")
    globals()[f"training_{number}"] = dag
""".replace("JOBS", str(JOBS))


REMOTE_LOGS = """
from pathlib import Path
from airflow.config_templates.airflow_local_settings import BASE_LOG_FOLDER, DEFAULT_LOGGING_CONFIG

LOGGING_CONFIG = DEFAULT_LOGGING_CONFIG
STORE = Path(__file__).parent / "store"

class Store:
    processors = ()

    def upload(self, path, ti=None):
        source, target = Path(BASE_LOG_FOLDER, path), STORE / path
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as stored:
                stored.write(source.read_bytes())

    def read(self, relative_path, ti):
        found = sorted(STORE.glob(f"{relative_path}*"))
        return [str(file) for file in found], [file.read_text() for file in found] or None

REMOTE_TASK_LOG = Store()
"""
"""A remote log as Airflow's for S3 in what matters here: whole files are uploaded, and appended to what
is there. Airflow takes it from the module of its logging settings."""


@pytest.fixture
def matrix(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """Airflow with one DAG for each job; with the parameter ``remote``, with a remote log."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "training.py").write_text(DAGS)
    with local_cluster.cluster(tmp_path / "cluster", local_cluster.Settings(controller=True)) as local:
        extra = {"kube_config_path": str(local.kubeconfig), "namespace": "default"}
        connection = json.dumps({"conn_type": "kubernetes", "extra": extra})
        env = {"AIRFLOW_CONN_KUBERNETES_DEFAULT": connection}
        if getattr(request, "param", "") == "remote":
            (tmp_path / "remote_logs.py").write_text(REMOTE_LOGS)
            env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            env["AIRFLOW__LOGGING__LOGGING_CONFIG_CLASS"] = "remote_logs.LOGGING_CONFIG"
        with Airflow(tmp_path / "home", tmp_path / "dags", env) as airflow:
            yield Matrix(airflow, local.client(), (), tmp_path)


def lines_of(matrix: Matrix, dag: str, logs: str = "home/logs") -> list[str]:
    """The lines of training in the logs of a DAG's task, in the order of the triggerers that wrote them."""
    files = matrix.folder.glob(f"{logs}/dag_id={dag}/**/task_id=train/attempt=1.log*")
    written = (
        (json.loads(raw)["timestamp"], found[1].decode())
        for file in files
        for raw in file.read_bytes().splitlines()
        if (found := re.search(rb'"\[worker-0\] ((?:line|last) \d+)"', raw))
    )
    return [line for _, line in sorted(written, key=lambda one: one[0])]


def servers_of_children() -> dict[str, bool]:
    """The servers of the processes that this one has started, and whether each is on loopback."""
    servers = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    name = f"{process.cmdline()}: {connection.laddr.ip}:{connection.laddr.port}"
                    servers[name] = ipaddress.ip_address(connection.laddr.ip).is_loopback
    return servers


def check_private_log(airflow: Airflow, dag: str, run: str) -> None:
    """Check that Airflow, which has no login here, listens on loopback only, and that the log of a task that
    waits in the triggerer can be read nevertheless: what the worker wrote, and what the trigger writes."""
    servers = servers_of_children()
    assert servers
    assert [name for name, is_on_loopback in servers.items() if not is_on_loopback] == []
    log = airflow.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances/train/logs/1?full_content=true")
    lines = [line["event"] for line in log["content"]]
    assert any(" created (uid " in line for line in lines)
    assert "[worker-0] line 0" in lines


@pytest.mark.parametrize("matrix", ["local", pytest.param("remote", marks=pytest.mark.long)], indirect=True)
def test_every_line_once_and_in_order(matrix: Matrix, request: pytest.FixtureRequest) -> None:
    """The triggerer is killed while jobs train. The log of each task has each line of its job once
    and in order, to the last. So has the remote log, although a killed triggerer uploads nothing. All servers
    of Airflow are on loopback, and the log of a task that waits can be read nevertheless."""
    airflow, dags = matrix.airflow, [f"training-{number}" for number in range(JOBS)]
    for dag in dags:
        airflow.await_dag(dag)
        matrix.runs[dag] = airflow.trigger(dag, {})
    counts = dict.fromkeys(dags, 0)

    def grown() -> bool:
        return all(len(lines_of(matrix, dag)) >= counts[dag] + MORE_LINES for dag in dags)

    def more() -> str:
        return f"more lines than {counts}"

    matrix.await_that(grown, more)
    check_private_log(airflow, dags[0], matrix.runs[dags[0]])
    is_remote = request.node.callspec.id == "remote"
    for _ in range(1 if is_remote else KILLS):
        matrix.await_that(grown, more)
        with matrix.no_triggerer():
            counts.update({dag: len(lines_of(matrix, dag)) for dag in dags})
    matrix.await_that(grown, more)
    (matrix.folder / "end").touch()

    for dag in dags:
        matrix.await_that(
            lambda dag=dag: airflow.tasks(dag, matrix.runs[dag])[0]["state"] == "success",  # type: ignore[misc]
            lambda dag=dag: f"the success of {dag}",  # type: ignore[misc]
        )
        for logs in ["home/logs", *(["store"] if is_remote else [])]:
            lines = lines_of(matrix, dag, logs)
            last = len(lines) - 1
            assert lines == [*(f"line {number}" for number in range(last)), f"last {last}"], logs
