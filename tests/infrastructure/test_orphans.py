"""A test run that is killed leaves no process behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import orphans
from tests.cluster.bed.wait import until

ROOT = Path(__file__).resolve().parents[2]
ENDLESS = """
import time
from pathlib import Path

import psutil

from edl_workflows.local import daemon
from tests.local_cluster import cluster
from tests.unit.local.support import Pods, container


def test_endless(tmp_path):
    with cluster(tmp_path / "state") as running:
        pods = Pods(running.client())
        pods.create("one", container("sleep 600"))
        pods.phase("one", "Running")
        server = psutil.Process(daemon.find(tmp_path / "state").pid)
        found = [server.pid, *(child.pid for child in server.children(recursive=True))]
        Path("new").write_text(" ".join(map(str, found)))
        Path("new").rename("processes")
        time.sleep(600)
"""


@pytest.fixture
def kill_tests(tmp_path: Path) -> Iterator[None]:
    """End what a failed test leaves."""
    yield
    for process in _started(tmp_path):
        process.kill()


def _started(folder: Path) -> list[psutil.Process]:
    """What the endless test started and still runs."""
    written = folder / "processes"
    found = []
    for pid in map(int, written.read_text().split() if written.exists() else ()):
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.usefixtures("kill_tests")
@pytest.mark.parametrize(
    "options", [pytest.param([], id="one process"), pytest.param(["-n", "1"], id="xdist")]
)
def test_servers_and_pods_end_with_a_killed_run(tmp_path: Path, options: list[str]) -> None:
    """After a SIGKILL of pytest, the embedded cluster, which has a session of its own, and its pods end."""
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "--basetemp=base",
        *options,
        "test_endless.py",
    ]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
        )
    with run:
        until(lambda: (tmp_path / "processes").exists() or run.poll() is not None, "the server runs")
        assert run.poll() is None, (tmp_path / "log").read_text()
        assert len(_started(tmp_path)) >= 2
        run.kill()

    until(lambda: not _started(tmp_path), "all processes are gone")


def test_a_process_that_overwrites_its_environment_is_found() -> None:
    """Airflow's servers do, to change their title, and a daemon of theirs has another parent and session."""
    mark = orphans.choose_mark()
    program = f"""
import os, time
from setproctitle import setproctitle
from tests import orphans
orphans.mark_process({mark})
if not os.fork():
    os.setsid()
    setproctitle("x" * 10_000)
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
    run = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with run:
        assert run.stdout is not None
        daemon = int(run.stdout.readline())
        run.wait(60)
        assert b"PATH=" not in Path(f"/proc/{daemon}/environ").read_bytes()
        assert orphans.find_processes(mark) == {daemon}
        orphans.kill_processes({daemon})
    until(lambda: not orphans.find_processes(mark), "it has ended")


def test_a_daemon_of_the_test_cluster_outlives_the_run(tmp_path: Path) -> None:
    """A test may start the kubelet of a running cluster again, which neither is killed with the run nor
    counts as left over, whatever rights the run has."""
    mark = orphans.choose_mark()
    program = f"""
from pathlib import Path
from tests import orphans
from tests.cluster.bed.process import Daemon
orphans.mark_process({mark})
daemon = Daemon("sleeper", ("sleep", "600"), Path({str(tmp_path)!r}))
daemon.start()
print(daemon.pid, flush=True)
"""
    started = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    try:
        assert int(started.stdout) not in orphans.find_processes(mark)
    finally:
        psutil.Process(int(started.stdout)).kill()
