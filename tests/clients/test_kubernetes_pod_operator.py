"""Airflow's KubernetesPodOperator with its defaults: it follows logs with times, and asks again since a
time."""

import json
import subprocess
import sys
from typing import Any

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS, Scope
from tests.airflow.dags import run, states
from tests.airflow.support import IN_AIRFLOW
from tests.local_cluster import LocalCluster

pytestmark = IN_AIRFLOW


@pytest.fixture(scope="module")
def database() -> None:
    """Airflow's, migrated, with the server that a DAG asks in this process."""
    migrate = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(migrate, check=True, capture_output=True, timeout=300)
    from airflow.sdk.execution_time.supervisor import in_process_api_server

    in_process_api_server().transport  # noqa: B018 - Airflow keeps it, and its thread, until the process ends


@pytest.fixture
def connection(database: None, local: LocalCluster, handle: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """``kubernetes_default`` leads to the test's namespace."""
    extra = {"kube_config_path": str(local.kubeconfig), "namespace": handle.namespace}
    text = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)


def run_pod(script: str, **arguments: Any) -> str:
    """The state of a task that runs a script in a pod."""
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import DAG

    with DAG("pods") as dag:
        command = ["sh", "-c", script]
        KubernetesPodOperator(task_id="pod", name="pod", image="none", cmds=command, **arguments)
    return states(run(dag))["pod"]


@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize("deferrable", [False, True], ids=["waiting", "deferred"])
def test_a_pod_succeeds(handle: Cluster, capfd: pytest.CaptureFixture[str], deferrable: bool) -> None:
    """The task prints the pod's output as it comes, succeeds with it and removes it."""
    state = run_pod("echo begun; sleep 2; echo so far", deferrable=deferrable)

    assert state == "success"
    printed = "".join(capfd.readouterr())
    assert "begun" in printed
    assert "so far" in printed
    assert client.list_objects(handle, Scope(PODS, handle.namespace)).items == []


@pytest.mark.usefixtures("connection")
def test_a_pod_fails(handle: Cluster) -> None:
    """If the pod fails, the task fails."""
    assert run_pod("echo broken; exit 3") == "failed"
