"""What the machine may do to a server: a full disk, no descriptors. It refuses, lives, and goes on when there
is room again."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl_workflows.testing import ApiServerProcess
from tests.conformance.support import Api, config_map, connect, eventually
from tests.security.servers import Server

pytestmark = pytest.mark.slow
MAPS = "/api/v1/namespaces/default/configmaps"
MOST = 200
"""Objects of 256 KiB that are more than the disk holds."""
REFUSALS = 5


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
    """Writes are refused while it is full; reads go on; what was acknowledged is there after a restart; with
    room, writes succeed."""
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


@pytest.mark.parametrize("name", ["embedded", "master", "brain"])
def test_a_server_without_descriptors_lives(name: str, attacked: dict[str, Server]) -> None:
    """With five descriptors to spare, it ends idle connections instead of itself. It serves again
    once they are gone."""
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
