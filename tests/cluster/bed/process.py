"""Daemons that outlive whoever starts them: each has a pid file and a log, and is stopped by its pid file alone."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from edl_workflows.exceptions import EdlError

_STOP_SECONDS = 3.0
"""How long a daemon may take to end. The API server would drain for a minute; nothing here needs it to."""


class BedError(EdlError):
    """The test bed could not be built, started or used."""


@dataclass(frozen=True)
class Daemon:
    """A program and where it runs.

    Attributes:
        name: of its pid file and of its log.
        command: with its arguments.
        env: variables beside those of whoever starts it.
        folder: its working directory; holds ``<name>.pid`` and ``log/<name>``.
        enter: command prefix that takes it into the node's namespaces; empty where it runs in the machine's own.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    enter: tuple[str, ...] = ()

    @property
    def log(self) -> Path:
        """What it wrote, over all its starts."""
        return self.folder / "log" / self.name

    @property
    def pid(self) -> int | None:
        """Its process id as this machine sees it, or None if it doesn't run."""
        try:
            pid = int(self._pid_file.read_text())
        except FileNotFoundError:
            return None
        return pid if _alive(pid) else None

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def start(self) -> None:
        """Start it, unless it runs.

        Raises:
            BedError: it ended at once.
        """
        if self.pid:
            return
        self.log.parent.mkdir(exist_ok=True)
        # The shell leaves at once, so the daemon is nobody's child: no one has to wait for it.
        script = 'log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'
        started = subprocess.run(
            ["sh", "-c", script, "sh", str(self.log), *self.enter, *self.command],
            check=True,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=os.environ | self.env,
        )
        pid = int(started.stdout)
        self._pid_file.write_text(str(self._entered(pid) if self.enter else pid))

    def _entered(self, pid: int) -> int:
        """The program's own pid: `nsenter` stays as its parent, since a pid namespace is entered by a fork."""
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while _alive(pid):
            try:
                if child := children.read_text().split():
                    return int(child[0])
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.01)
        raise BedError(f"{self.name} ended at once; its log is {self.log}")

    def stop(self, kill: bool = False) -> None:
        """End it and wait until it has ended: SIGTERM, after some seconds SIGKILL; `kill`: SIGKILL at once."""
        pid = self.pid
        deadline = time.monotonic() + (0 if kill else _STOP_SECONDS)
        if pid and not kill:
            os.kill(pid, signal.SIGTERM)
        while pid and _alive(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
