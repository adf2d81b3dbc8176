"""A migrated Airflow database, connections to a real API server, and DAGs that run in this process."""

import functools
import json
import signal
import warnings

import pytest

from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.testing import ApiServerProcess
from tests.airflow import support

cluster, server, stand_in = support.cluster, support.server, support.stand_in


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """The database of the AIRFLOW_HOME that ``tests/conftest.py`` made.

    Made in this process, which has Airflow imported: ``airflow db migrate`` imports it once more, which takes
    four times as long as the tables."""
    from airflow.utils.db import initdb

    timer = signal.getitimer(signal.ITIMER_REAL)  # the test's time-out, which Airflow replaces by its own
    with warnings.catch_warnings(action="ignore"):  # of Airflow's own modules
        initdb()
    signal.setitimer(signal.ITIMER_REAL, *timer)
    _keep_the_task_api()


def _keep_the_task_api() -> None:
    """Let all tasks of `dag.test()` ask one execution API, as Airflow 3.3 does. Older versions make one for
    each task, and each computes the routes of all API versions, which takes seconds of CPU."""
    from airflow.sdk.execution_time import supervisor

    if not hasattr(supervisor.in_process_api_server, "cache_info"):
        vars(supervisor)["in_process_api_server"] = functools.cache(supervisor.in_process_api_server)


@pytest.fixture
def connection(
    airflow_db: None, server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kubernetes_default`` leads to the test's namespace; triggers fire at once."""
    connect(server, cluster, monkeypatch)
    monkeypatch.setenv("AIRFLOW__EDL_WORKFLOWS__SETTLE_SECONDS", "0")


@pytest.fixture
def named(
    airflow_db: None, server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that gives this Airflow the name ``prod``, which the reaper needs."""
    connect(server, cluster, monkeypatch, edl_installation="prod")


def connect(server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Make ``kubernetes_default`` lead to the test's namespace."""
    extra = {"kube_config_path": str(server.kubeconfig), "namespace": cluster.namespace, **more}
    text = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)
