"""Both example DAGs, whole: real training in the embedded cluster, driven by Airflow's services, as ``make
demo`` runs them."""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.local import testing

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.smoke,
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(1200),
]

DAGS = Path(__file__).resolve().parents[2] / "dags"


@contextlib.contextmanager
def _servers_watched(cluster: Path) -> Iterator[dict[str, bool]]:
    """All servers seen in the cluster's pods while the context lasts, and whether each is on loopback."""
    seen: dict[str, bool] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            for name, on_loopback in testing.servers(cluster).items():
                seen[name] = seen.get(name, True) and on_loopback

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_the_example_pipelines_train_change_evaluate_and_retrain(tmp_path: Path) -> None:
    """Every task succeeds, the model passes its gate, the migration loses no step that was checkpointed, and
    no process of the training jobs listens on anything but loopback."""
    command = [sys.executable, "-m", "edl_workflows.demo", "--output", str(tmp_path), "--dags", str(DAGS)]

    with (
        (tmp_path / "output").open("w+") as output,
        _servers_watched(tmp_path / "state" / "cluster") as servers,
    ):
        code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=1100).returncode

    assert code == 0, (tmp_path / "output").read_text()[-8000:]
    assert any("train" in name for name in servers), servers
    assert [name for name, on_loopback in servers.items() if not on_loopback] == []
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["succeeded"]
    assert set(result["runs"]) == {"example_elastic_training", "example_retrain_on_data"}
    assert result["metrics"]["accuracy"] >= 0.93
    (migration,) = [plan["status"] for plan in result["plans"] if plan["status"].get("resumedStep")]
    assert migration["resumedStep"] >= migration["checkpoint"]["step"]
    phases = [step["phase"] for step in migration["steps"]]
    assert phases.index("Checkpointing") < phases.index("Migrating") < phases.index("Restarting")
