"""Commands at the same time, and what CI does with them."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.bed.wait import until

ROOT = Path(__file__).resolve().parents[2]
LANES = [sys.executable, "-m", "tests.lanes"]
PROGRAMS = (
    "apt-get", "buildah", "chromium", "conntrack", "containerd", "ip", "iptables", "kubectl", "mmdebstrap",
    "runc",
    "sysctl",
)  # fmt: skip


def _run(*commands: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LANES, *commands], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_commands_run_at_the_same_time(tmp_path: Path) -> None:
    """Two commands that wait for each other both end, since they run at the same time."""
    a, b = tmp_path / "a", tmp_path / "b"
    done = _run(
        f"one=mkfifo {a}; echo > {a}; cat {b}", f"two=mkfifo {b}; until cat {a}; do :; done; echo met > {b}"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "one: passed" in done.stdout
    assert "two: passed" in done.stdout


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        pytest.param("echo broken; echo why >&2; exit 7", "FAILED (exit status 7)", id="exit status"),
        pytest.param("echo broken; echo why >&2; kill -9 $$", "FAILED (killed by SIGKILL)", id="signal"),
    ],
)
def test_a_failure_is_shown_and_told(command: str, verdict: str) -> None:
    """The run fails and shows the output of the failed command. The other command runs to its end, and the
    summary has both verdicts."""
    done = _run(f"bad={command}", "good=sleep 0.5; echo whole")

    assert done.returncode == 1
    assert "broken\nwhy\n" in done.stdout
    assert "whole\n" in done.stdout
    summary = done.stdout.partition("===== summary =====")[2]
    assert f"bad: {verdict}" in summary
    assert "good: passed" in summary


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_commands_end_with_the_run(tmp_path: Path, number: int) -> None:
    """A run that is told to end kills its commands and their child processes, and fails."""
    command = f"one=sleep 600 & echo $! > {tmp_path}/new && mv {tmp_path}/new {tmp_path}/pid; wait"
    with subprocess.Popen([*LANES, command], cwd=ROOT) as run:
        until((tmp_path / "pid").exists, "the command runs")
        run.send_signal(number)

    assert run.returncode == 130
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not _lives(pid), "the command's own process has ended")


@pytest.mark.parametrize("text", ["make test", "=make test", "a b=make test"])
def test_a_command_needs_a_name(text: str) -> None:
    """An argument that is not NAME=COMMAND is rejected before anything runs."""
    done = _run("first=echo began", text)

    assert done.returncode == 2
    assert "is not NAME=COMMAND" in done.stderr
    assert "began" not in done.stdout


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def _ci(folder: Path, failing: str) -> tuple[int, str]:
    """Run CI's script with a `make` that prints its arguments and fails for one target; exit status and
    output."""
    (folder / ".ci").mkdir()
    (folder / "tests").mkdir()
    (folder / "bin").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    shutil.copy(ROOT / "tests/lanes.py", folder / "tests/lanes.py")
    fail = f'case " $* " in *" {failing} "*) echo {failing} is broken; exit 2;; esac'
    _write_program(folder / "bin/make", f'echo "make $*"\n{fail}')
    for name in PROGRAMS:  # nothing is installed on this machine
        _write_program(folder / "bin" / name, "exit 0")
    lanes = f'[ "$2" != tests.lanes ] || exec {sys.executable} "$@"'
    _write_program(folder / ".venv/bin/python", lanes)
    done = subprocess.run(
        [folder / ".ci/run"],
        env={**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def _write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_ci_runs_every_check(tmp_path: Path) -> None:
    """Without a failure CI runs lint, types, documentation and all sets of tests, and passes."""
    status, output = _ci(tmp_path, failing="none")

    assert status == 0, output
    commands = re.findall(r"^make (.*)$", output, re.MULTILINE)
    targets = {target for command in commands for target in command.split()}
    checks = {"lint", "type", "docs-check", "style", "docs-site"}
    assert targets >= checks | {"test", "test-torch", "test-airflow-quick"}
    assert {"cluster-build", "test-e2e E2E=not long", "test-cluster CLUSTER_TESTS=not long"} <= set(commands)


@pytest.mark.parametrize("target", ["lint", "type", "test", "cluster-build", "test-e2e", "test-cluster"])
def test_a_failed_check_fails_ci(tmp_path: Path, target: str) -> None:
    """Whichever check fails, CI fails and shows its output."""
    status, output = _ci(tmp_path, failing=target)

    assert status != 0
    assert f"{target} is broken" in output
