"""The example DAGs of ``make demo``, whole: real training in the embedded cluster, driven by Airflow's
services."""

import contextlib
import ipaddress
import json
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl_workflows.local import daemon
from tests import local_cluster
from tests.clients.environments import python_environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.timeout(1200),
]

DAGS = Path(__file__).resolve().parents[2] / "dags"
LOOK_SECONDS = 3.0
"""Between two searches for servers. Each reads the environment of all processes of this machine."""


@contextlib.contextmanager
def _servers_watched(cluster: Path) -> Iterator[dict[str, bool]]:
    """All servers seen in the cluster's pods and in its own process while the context lasts, and whether each
    is on loopback."""
    seen: dict[str, bool] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            for name, on_loopback in {**local_cluster.servers(cluster), **_own_servers(cluster)}.items():
                seen[name] = seen.get(name, True) and on_loopback

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def _own_servers(cluster: Path) -> dict[str, bool]:
    """The servers of the cluster's own process, such as the API server."""
    found = daemon.find(cluster)
    if found is None:
        return {}
    with contextlib.suppress(psutil.Error):  # it has just ended
        return {
            f"cluster: {one.laddr.ip}:{one.laddr.port}": ipaddress.ip_address(one.laddr.ip).is_loopback
            for one in psutil.Process(found.pid).net_connections("tcp")
            if one.status == psutil.CONN_LISTEN
        }
    return {}


def _run_demo(folder: Path, *options: str) -> dict[str, Any]:
    """The demo's result, once it has succeeded."""
    command = [sys.executable, "-m", "tests.demo", "--output", str(folder), "--dags", str(DAGS)]
    with (folder / "output").open("w+") as output:
        run = subprocess.run([*command, *options], stdout=output, stderr=subprocess.STDOUT, timeout=1100)
    assert run.returncode == 0, (folder / "output").read_text()[-8000:]
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["succeeded"]
    return result


@pytest.mark.smoke
@pytest.mark.tensorflow
def test_the_example_pipelines_train_change_evaluate_and_retrain(tmp_path: Path) -> None:
    """Every task succeeds, the model passes its gate, the migration loses no step that was checkpointed, and
    neither the cluster nor a process of the training jobs listens on anything but loopback."""
    with _servers_watched(tmp_path / "state" / "cluster") as servers:
        result = _run_demo(tmp_path)

    assert any("train" in name for name in servers), servers
    assert any(name.startswith("cluster: ") for name in servers), servers
    assert [name for name, on_loopback in servers.items() if not on_loopback] == []
    assert set(result["runs"]) == {"example_elastic_training", "example_retrain_on_data"}
    assert result["metrics"]["accuracy"] >= 0.93
    (migration,) = [plan["status"] for plan in result["plans"] if plan["status"].get("resumedStep")]
    assert migration["resumedStep"] >= migration["checkpoint"]["step"]
    phases = [step["phase"] for step in migration["steps"]]
    assert phases.index("Checkpointing") < phases.index("Migrating") < phases.index("Restarting")


@pytest.mark.long
def test_the_pytorch_pipeline_survives_a_killed_worker(tmp_path: Path) -> None:
    """A job grows from 1 to 3 workers, one is killed and replaced, and it shrinks to 2. Every task succeeds,
    the model passes its gate, and nothing listens on anything but loopback."""
    # The environment of the tests has PyTorch, but not this project.
    python = tmp_path / "python"
    path = shlex.quote(str(DAGS.parent))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {python_environment("torch")} "$@"\n')
    python.chmod(0o755)

    with _servers_watched(tmp_path / "state" / "cluster") as servers:
        result = _run_demo(tmp_path, "--framework", "torch", "--python", str(python))

    assert any(name.startswith("cluster: ") for name in servers), servers
    assert any(not name.startswith("cluster: ") for name in servers), servers
    assert [name for name, on_loopback in servers.items() if not on_loopback] == []
    assert result["runs"] == {"example_torch_training": "success"}
    assert result["metrics"]["accuracy"] >= 0.93
    sizes = [plan["spec"]["replicaResourceSpecs"]["worker"]["replicas"] for plan in result["plans"]]
    assert sizes == [3, 2]
