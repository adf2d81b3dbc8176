"""Changing the number of parameter servers of a real job while it trains never changes the predictions of its
model."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl_workflows.services.master.state.rollouts.rollout import SAME_MODEL
from tests.e2e.standalone import Standalone

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).parent / "recorded_recommender.py"
READER = Path(__file__).parent / "reread_recommender.py"
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
    """Another number of servers once a version has made some steps; the plan's status at its end."""
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
    """With embeddings of the default strategy on 1, 2, 3 and 2 servers in turn, the model's predictions stay
    the same, to float precision. So they do outside of the job: in one process, in numpy by the ids, in plain
    TensorFlow, and in a SavedModel."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), *more]
    with Standalone(tmp_path, "ps=1,worker=1", command) as job:
        for number, servers in enumerate([2, 3, 2], 1):
            plan = change_servers(job, tmp_path, number, servers)
            assert plan["phase"] == "Succeeded", plan
            assert plan["verification"]["result"] == "Same", plan
            before, after = notes(tmp_path, number)[-1], notes(tmp_path, number + 1)[0]
            assert before["servers"] != servers
            assert after["servers"] == servers
            assert after["step"] == before["step"]
            np.testing.assert_allclose(after["predicted"], before["predicted"], rtol=1e-6, atol=1e-7)
        assert job.status().get("warnings", []) == []
        assert_same_outside(tmp_path, after)


def assert_same_outside(folder: Path, noted: dict[str, Any]) -> None:
    """The newest checkpoint, from which a version has started, predicts what that version predicted."""
    command = [sys.executable, str(READER), str(folder)]
    reread = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )
    assert reread.pop("step") == noted["step"]
    for way, predicted in reread.items():
        np.testing.assert_allclose(predicted, noted["predicted"], rtol=1e-5, atol=1e-6, err_msg=way)


def test_model_with_another_meaning_is_rolled_back(tmp_path: Path) -> None:
    """If another number of servers moves a program's rows, the plan fails with the evaluations before and
    after, the changed model is not trained, and the old server continues with the old model. So it does if
    the checkpoint of the switch is damaged: it still holds the variables, and no step is lost."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), "--lookup", "by-servers", "--damage-switch"]
    with Standalone(tmp_path, "ps=1,worker=1", command) as job:
        plan = change_servers(job, tmp_path, 1, servers=2)
        assert (plan["phase"], plan["reason"]) == ("Failed", "SwitchFailed"), plan
        assert ": torn: 4 bytes where the manifest says" in plan["message"]

        plan = change_servers(job, tmp_path, 3, servers=2)
        assert (plan["phase"], plan["reason"]) == ("Failed", "VerificationFailed"), plan
        verification = plan["verification"]
        assert verification["result"] == "Different"
        assert not math.isclose(verification["before"], verification["after"], rel_tol=SAME_MODEL)
        assert f"{verification['after']:.9g} after it" in plan["message"]
        job.wait(lambda: len(notes(tmp_path, 5)) > STEPS, START_SECONDS, "steps on the old server")
        assert [
            node["id"] for node in job.status()["nodes"] if node["type"] == "ps" and not node["released"]
        ] == [0]

    for former, failed, returned in ((1, 2, 3), (3, 4, 5)):
        assert notes(tmp_path, failed) == [], "nobody trained in the version that failed"
        before, after = notes(tmp_path, former)[-1], notes(tmp_path, returned)[0]
        assert (after["servers"], after["step"]) == (1, before["step"])
        np.testing.assert_allclose(after["predicted"], before["predicted"], rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_change_that_would_make_another_model_is_refused(tmp_path: Path) -> None:
    """A program has a table for each server. A change of servers is rejected while it is prepared, and
    training never stops. The job's status says so from then on, and the next plan is rejected at once."""
    command = [sys.executable, str(PROGRAM), str(tmp_path), "--lookup", "table-a-server"]
    with Standalone(tmp_path, "ps=2,worker=1", command) as job:
        plan = change_servers(job, tmp_path, 1, servers=1)
        assert (plan["phase"], plan["reason"]) == ("Failed", "SwitchFailed"), plan
        assert plan["steps"][-1]["phase"] == "Migrating"
        assert "variable recommender/items_" in plan["message"]
        status = job.status()["parameterServers"]
        assert status["changes"] == "SameCount"
        assert "its variables depend on the number of parameter servers" in status["reason"]

        again = change_servers(job, tmp_path, 1, servers=3)
        assert (again["phase"], again["reason"]) == ("Failed", "InvalidPlan"), again
        assert "the number of parameter servers can't change" in again["message"]
        trained = len(notes(tmp_path, 1))
        job.wait(lambda: len(notes(tmp_path, 1)) > trained + STEPS, 60, "training goes on")
