"""Training that stands still, with a real agent, a real training process and a real master."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.standalone import TOKEN, Standalone

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent


class _Hanging(Standalone):
    """A job of one worker, by `hang_master`."""

    def _start_master(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.e2e.hang_master",
                str(self.folder / "state"),
                str(self._port),
                TOKEN,
            ],
            env=self.pods.env,
            stdout=self._log,
            stderr=self._log,
        )


def test_a_hung_process_shows_its_stacks_and_is_restarted(tmp_path: Path) -> None:
    """Its log says where it stands; the next process goes on in the same pod, and no record is lost."""
    program = [sys.executable, str(FOLDER / "hanging_count.py"), str(tmp_path)]
    with _Hanging(tmp_path, "worker=1", program) as job:
        job.wait(lambda: job.step() >= 90, 60, "steps")
        job.wait(
            lambda: (job.status().get("restarts") or {}).get("counts"), 90, "the processes are restarted"
        )
        status = job.status()
        job.wait(lambda: job.master.poll() == 0, 120, "the job succeeds")
        job.wait(lambda: job.pods.code("worker-0") == 0, 30, "the agent ends")

        assert status["restarts"]["counts"] == {"Hang": 1}
        assert not job.pods.started("worker-1")
        log = job.pods.log("worker-0")
    assert log.count("the stacks of the process of version 1 follow") == 1
    assert "waits_for_a_lost_peer" in log
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["version"] == 2
    assert (
        min(result["counts"]) == 1
    )  # each was trained; what was not acknowledged when the checkpoint began, twice
