"""What a machine may do to a process: a full disk, a full /dev/shm, no descriptors, a clock that jumps.

The process refuses what it can't do, lives, and goes on when there is room again. What a jump of the clock
does to a job's master is shown in tests/unit/services/master/state/test_clocks.py, and to the controller's
lease in tests/unit/runtime/process/test_leader.py.
"""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl_workflows.services.brain.store.records import JobReport, StoredAdvice
from edl_workflows.services.brain.store.retention import DAY, Retention, RetentionOptions
from edl_workflows.services.brain.store.store import BrainStore
from edl_workflows.testing import ApiServerProcess
from tests.conformance.support import Api, config_map, connect, eventually
from tests.security.servers import Server
from tests.unit.services.brain.support import facts, sample

pytestmark = pytest.mark.slow
MAPS = "/api/v1/namespaces/default/configmaps"
MOST = 200
"""Objects of 256 KiB that are more than the disk holds."""
REFUSALS = 5
HOUR = 3_600.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip(f"mounts need rights: {made.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    """While the disk is full, writes are rejected and reads work. Acknowledged writes are there after a
    restart, and with free space writes succeed again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 8 * 2**20)
    server = ApiServerProcess(small_disk / "state")
    server.start()
    try:
        stored = set[str]()
        refused = 0
        for number in range(MOST):
            created = _create(server, f"full-{number}", "x" * 2**18)
            refused += not created
            stored |= {f"full-{number}"} if created else set()
            if refused == REFUSALS:
                break
        assert refused == REFUSALS, "the disk did not fill"
        assert _names(server) >= stored

        ballast.unlink()
        eventually(lambda: _create(server, "after", ""), "a write succeeds")
        server.kill()
        server.start()
        assert _names(server) >= {*stored, "after"}
    finally:
        server.kill()


_SAVES_IN_TWO_STAGES = """
import sys
from pathlib import Path
import numpy as np
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.slot_memory import SHARED_MEMORY
from edl_workflows.training.checkpoints.snapshots import claim_folder
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.core.protocol.training import CheckpointTicket

store, state = CheckpointStore(Path(sys.argv[1])), State.of(7, {"w": np.zeros(2**22, np.uint8)})
memory = claim_folder(SHARED_MEMORY / "edl-job-worker-0")
FirstStage(TwoStages(lambda: state, store), memory, 1).save(CheckpointTicket(id="t"), persist=True, wait=True)
print(store.newest().step)
"""


def test_a_full_shared_memory_costs_no_checkpoint(tmp_path: Path) -> None:
    """A copy of 4 MiB does not fit into a /dev/shm of 1 MiB. The process warns, continues, and saves the
    checkpoint directly."""
    small = 'mount -t tmpfs -o size=1m tmpfs /dev/shm || exit 77; exec "$@"'
    program = [sys.executable, "-c", _SAVES_IN_TWO_STAGES, str(tmp_path / "checkpoints")]
    saved = subprocess.run(
        ["unshare", "--mount", "sh", "-c", small, "sh", *program], capture_output=True, text=True, timeout=240
    )
    if saved.returncode == 77 or "unshare failed" in saved.stderr:
        pytest.skip(f"mounts need rights: {saved.stderr.strip()}")

    assert (saved.returncode, saved.stdout) == (0, "7\n"), saved.stderr
    assert "shared memory has no 4 MiB left" in saved.stderr


def test_a_clock_that_jumps_by_hours_costs_brain_no_job_and_no_plan(tmp_path: Path) -> None:
    """The clock jumps forward, back, and is corrected. Jobs and plans stay, and old ones are still
    removed."""
    now = 1_000_000.0
    clock = [now]
    with BrainStore(f"sqlite:///{tmp_path}/brain.db") as store:
        store.record(JobReport(facts(), [sample(now - 60), sample(now)]), now)
        store.record(JobReport(facts("long-gone"), [sample(now - 31 * DAY)]), now - 31 * DAY)
        store.record_advice(StoredAdvice("plan", "team", "mnist", now, (), "a reason"))
        removal = Retention(store, RetentionOptions(), clock=lambda: clock[0])
        removal.remove()
        for jump in (6 * HOUR, -6 * HOUR, 0.0):
            clock[0] = now + jump
            removal.remove()

            assert store.job(None, "uid-1") is not None
            assert store.last_advice("team", "mnist") == ((), "a reason")
        assert store.job(None, "long-gone") is None
        store.record(JobReport(facts("late"), [sample(now - 31 * DAY)]), now - 31 * DAY)
        assert removal.remove() > 0


@pytest.mark.parametrize("name", ["embedded", "master", "brain"])
def test_a_server_without_descriptors_lives(name: str, attacked: dict[str, Server]) -> None:
    """With five file descriptors left, a server closes idle connections and survives. It serves again once
    they are closed."""
    server = attacked[name]
    before = server.process.rlimit(psutil.RLIMIT_NOFILE)
    server.process.rlimit(psutil.RLIMIT_NOFILE, (server.process.num_fds() + 5, before[1]))
    try:
        with contextlib.ExitStack() as open_ones:
            connections = [open_ones.enter_context(_unfinished_request(server)) for _ in range(40)]
            eventually(lambda: any(map(_is_ended, connections)), f"{name} ends what it has no room for")
            assert server.lives
    finally:
        server.process.rlimit(psutil.RLIMIT_NOFILE, before)
    eventually(lambda: server.ask("GET", server.ping).status_code < 500, f"{name} serves again")
    assert server.lives, server.log.read_text()[-2000:]


def _unfinished_request(server: Server) -> socket.socket:
    """A connection with the beginning of a request, or with no handshake yet where the server speaks TLS."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    if server.authority is None:
        with contextlib.suppress(ConnectionError):  # the server has ended it already
            connection.sendall(b"GET ")
    return connection


def _is_ended(connection: socket.socket) -> bool:
    """Whether the server has ended a connection to which it owes no answer."""
    try:
        return connection.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def _create(server: ApiServerProcess, name: str, text: str) -> bool:
    """Whether the server says that it has it. A connection each: after an error of its own it ends the
    connection."""
    with connect(server.kubeconfig) as http:
        answer = Api(http, server.kubeconfig).raw("POST", MAPS, config_map(name, data={"k": text}))
        return answer.status_code in (201, 409)


def _names(server: ApiServerProcess) -> set[str]:
    with connect(server.kubeconfig) as http:
        found = Api(http, server.kubeconfig).get(MAPS)["items"]
        return {one["metadata"]["name"] for one in found}
