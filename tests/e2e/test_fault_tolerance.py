"""Hangs and the check of nodes, with real agents, real training processes and a real master."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.standalone import TOKEN, Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent


class _Tolerant(Standalone):
    """A job by `tolerant_master`."""

    def __init__(self, folder: Path, nodes: str, command: list[str], **said: Any) -> None:
        self._said = json.dumps(said)
        super().__init__(folder, nodes, command)

    def _start_master(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder / "state"), str(self._port), TOKEN, self._nodes, self._said]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.tolerant_master", *arguments],
            env=self.pods.env,
            stdout=self._log,
            stderr=self._log,
        )


def _program(folder: Path, hangs_at: int) -> list[str]:
    return [sys.executable, str(FOLDER / "hanging_count.py"), str(folder), str(hangs_at)]


def test_a_hung_process_shows_its_stacks_and_is_restarted(tmp_path: Path) -> None:
    """The stacks of a process that hangs are in its log; a new process continues in the same pod, and no
    record is lost."""
    tolerance = {"hangTimeoutSeconds": 10, "hangAction": "restart"}
    with _Tolerant(tmp_path, "worker=1", _program(tmp_path, hangs_at=100), **tolerance) as job:
        job.wait(lambda: job.step() >= 90, 60, "steps")
        job.wait(
            lambda: (job.status().get("restarts") or {}).get("counts"), 90, "the processes are restarted"
        )
        status = job.status()
        job.wait(lambda: job.master.poll() == 0, 120, "the job succeeds")
        job.wait(lambda: job.pods.code("worker-0") == 0, 30, "the agent ends")

        assert status["restarts"]["counts"] == {"Hang": 1}
        (stack,) = status["hang"]["stacks"]
        assert stack["nodes"] == ["worker-0"]
        assert "waits_for_a_lost_peer" in stack["stack"]
        assert not job.pods.started("worker-1")
        log = job.pods.log("worker-0")
    assert log.count("the stacks of the process of version 1 follow") == 1
    assert "waits_for_a_lost_peer" in log
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["version"] == 2
    assert (
        min(result["counts"]) == 1
    )  # each was trained; what was not acknowledged when the checkpoint began, twice


def test_nodes_that_pass_the_check_train(tmp_path: Path) -> None:
    """Three real agents measure with each other over the addresses of their pods. Then the first version is
    created."""
    with _Tolerant(tmp_path, "worker=3", _program(tmp_path, hangs_at=10**9), nodeCheck=True) as job:
        job.wait(lambda: job.step() >= 5, 120, "steps")
        status = job.status()
        logs = [job.pods.log(f"worker-{node}") for node in range(3)]
    assert status["restarts"]["counts"] == {}
    for log in logs:
        measured, _, training = log.partition("starting the process of cluster version 1")
        assert '"event": "node check 1: ' in measured
        assert "node check" not in training
