"""Clients that reach the embedded API server's port and have no token."""

import contextlib
import http.client
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.testing import free_port

DEADLINE = 240.0
DESCRIPTORS = 256


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """Port of a server that may have `DESCRIPTORS` open files; it logs into server.log."""
    port = free_port()
    command = f"ulimit -n {DESCRIPTORS}; exec {sys.executable} -m edl_workflows.local.apiserver"
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"{command} --dir {tmp_path} --port {port}"], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + DEADLINE
        while not (tmp_path / "kubeconfig").exists() or not listens(port):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield port
        assert process.poll() is None, "the server ended"
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether somebody does."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def status(port: int, folder: Path) -> int:
    """Of the answer to the administrator."""
    trust = ssl.create_default_context(cafile=folder / "pki" / "ca.crt")
    client = http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE, context=trust)
    with contextlib.closing(client):
        token = (folder / "admin-token").read_text()
        client.request("GET", "/api/v1/namespaces", headers={"Authorization": f"Bearer {token}"})
        return client.getresponse().status


def test_idle_connections_keep_nobody_out(server: int, tmp_path: Path) -> None:
    """With more silent connections than the server has descriptors, other clients are served, and a few lines
    are logged."""
    with contextlib.ExitStack() as clients:
        for _ in range(DESCRIPTORS + 45):
            with contextlib.suppress(ConnectionError):
                clients.enter_context(socket.create_connection(("127.0.0.1", server), timeout=DEADLINE))
        for _ in range(3):
            assert status(server, tmp_path) == 200

    assert (tmp_path / "server.log").stat().st_size < 100_000
