"""Child processes that never outlive the demo: each is a session of its own, ended as a whole."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_workflows.exceptions import UnavailableError


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """One process with all that it starts.

    Args:
        name: for messages.
        command: with arguments.
        env: its whole environment.
        log: file that takes its output.
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
        """See that it lives.

        Raises:
            UnavailableError: it has ended.
        """
        code = self._process.poll()
        if code is not None:
            raise UnavailableError(f"{self.name} ended with code {code}; its output is in {self.log}")

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def reap(self, grace: float = 10.0) -> None:
        """Wait for its end; after `grace` seconds, and for stragglers of its session, SIGKILL."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        # The group may be gone already, which is what we want.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
