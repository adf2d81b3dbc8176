"""An API server in a process of its own, for our tests and for those of projects that build on this package.

It needs the ``local`` extra. Nothing here is used by the package itself.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES

__all__ = ["ApiServerProcess", "api_server", "free_port"]

START_SECONDS = 240.0


class ApiServerProcess:
    """The embedded API server without scheduler and runner. Pods stay Pending until the test changes their
    status.

    Args:
        directory: folder of its state, which survives `kill`.
        port: port on 127.0.0.1. By default a free one, which stays the same after a restart.
        history: number of changes kept for watches; a small number makes watches expire.
    """

    def __init__(self, directory: Path, port: int | None = None, history: int = 10_000) -> None:
        self.directory = directory
        self.port = port or free_port()
        self._history = history
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def kubeconfig(self) -> Path:
        """The path of the administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            UnavailableError: it ended, or did not answer in time. The message contains its output.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "edl_workflows.local.apiserver", "--dir", str(self.directory)]
        command += ["--port", str(self.port), "--history", str(self._history)]
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError(
                    f"the API server did not start: {(self.directory / 'server.log').read_text()}"
                )
            time.sleep(0.05)

    def cluster(self, namespace: str = "default") -> Cluster:
        """A handle with the administrator's rights."""
        return Cluster.from_kubeconfig(self.kubeconfig).in_namespace(namespace)

    def kill(self) -> None:
        """Kill it at once, like a crash."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answers(self) -> bool:
        if not self.kubeconfig.exists():
            return False
        with contextlib.suppress(EdlError):
            impatient = self.cluster().with_policy(CallPolicy(attempts=1, read_seconds=2))
            return client.find(impatient, NAMESPACES, "default") is not None
        return False


@contextlib.contextmanager
def api_server(directory: Path) -> Iterator[ApiServerProcess]:
    """A running API server that is killed at the end."""
    server = ApiServerProcess(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def free_port() -> int:
    """A TCP port on 127.0.0.1 on which no process listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
