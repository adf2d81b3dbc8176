"""Child processes that never outlive the demo. Each has a session of its own, whose processes are ended
together."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_workflows.core.exceptions import UnavailableError


def free_port() -> int:
    """A TCP port on loopback on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """A process, including all processes that it starts.

    Args:
        name: its name in messages.
        command: command with arguments.
        env: its complete environment.
        log: file for its output.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def check(self) -> None:
        """Check that it runs.

        Raises:
            UnavailableError: it has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise UnavailableError(f"{self.name} ended with code {code}; its output is in {self.log}")

    def terminate(self) -> None:
        """Send SIGTERM to all its processes."""
        self._signal(signal.SIGTERM)

    def reap(self, grace: float = 10.0) -> None:
        """Wait until the process ends. After `grace` seconds, kill it. Then kill what is left of its
        session."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The process group may already have ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
