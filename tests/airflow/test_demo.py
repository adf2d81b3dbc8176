"""Both example DAGs, whole: real training in the embedded cluster, driven by Airflow's services, as ``make demo`` runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.smoke,
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.tensorflow,
    pytest.mark.timeout(1200),
]

DAGS = Path(__file__).resolve().parents[2] / "dags"


def test_the_example_pipelines_train_change_evaluate_and_retrain(tmp_path: Path) -> None:
    """Every task succeeds, the model passes its gate, and the migration loses no step that was checkpointed."""
    command = [sys.executable, "-m", "edl_workflows.demo", "--output", str(tmp_path), "--dags", str(DAGS)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=1100)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["succeeded"]
    assert set(result["runs"]) == {"example_elastic_training", "example_retrain_on_data"}
    assert result["metrics"]["accuracy"] >= 0.93
    (migration,) = [plan["status"] for plan in result["plans"] if plan["status"].get("resumedStep")]
    assert migration["resumedStep"] >= migration["checkpoint"]["step"]
    phases = [step["phase"] for step in migration["steps"]]
    assert phases.index("Checkpointing") < phases.index("Migrating") < phases.index("Restarting")
