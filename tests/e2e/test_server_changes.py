"""What a model says does not depend on the number of parameter servers: a real job whose servers change while it trains."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.standalone import Standalone

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "recorded_recommender.py"
START_SECONDS = 240.0
STEPS = 40
"""At least so many between two changes."""


def notes(folder: Path, version: int) -> list[dict[str, Any]]:
    """What the chief's process of a cluster version noted, oldest first."""
    files = folder.glob(f"predictions-v{version}-worker-0")
    return [
        json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("}")
    ]


def change_servers(job: Standalone, folder: Path, version: int, servers: int) -> dict[str, Any]:
    """Another number of servers once a version has trained; the plan's status at its end."""
    job.wait(lambda: len(notes(folder, version)) > STEPS, START_SECONDS, "steps")
    name = f"to-{servers}-after-{version}"
    job.scale(name, {"replicaResourceSpecs": {"ps": {"replicas": servers}}})
    job.wait(lambda: job.plan(name).get("phase") in ("Succeeded", "Failed"), 240, "the plan ends")
    return job.plan(name)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param([], id="directly"),
        pytest.param(["--async-save"], id="in two stages", marks=pytest.mark.long),
    ],
)
def test_predictions_stay_the_same_however_many_servers_there_are(tmp_path: Path, more: list[str]) -> None:
    """Embeddings looked up with the default strategy, 1 → 2 → 3 → 2 servers: what the model predicts after each change
    is what it predicted before, to float precision."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), *more]
    with Standalone(tmp_path, "ps=1,worker=1", command) as job:
        for number, servers in enumerate([2, 3, 2], 1):
            plan = change_servers(job, tmp_path, number, servers)
            assert plan["phase"] == "Succeeded", plan
            before, after = notes(tmp_path, number)[-1], notes(tmp_path, number + 1)[0]
            assert before["servers"] != servers
            assert after["servers"] == servers
            assert after["step"] == before["step"]
            np.testing.assert_allclose(after["predicted"], before["predicted"], rtol=1e-6, atol=1e-7)
