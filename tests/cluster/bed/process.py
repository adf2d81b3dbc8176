"""Daemons that outlive whoever starts them: each has a pid file and a log, and is stopped by its pid file
alone."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from edl_workflows.core.exceptions import EdlError

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
        folder: its working directory, where `enter` is empty; holds ``<name>.pid`` and ``log/<name>``.
        env: its variables beside PATH and HOME.
        enter: command prefix that takes it into the node's namespaces; empty where it runs in the machine's
            own.
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
    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else f"nothing in {self.log}"

    @property
    def pid(self) -> int | None:
        """Its process id as this machine sees it, or None if it doesn't run."""
        try:
            pid = int(self._pid_file.read_text())
        except FileNotFoundError:
            return None
        return pid if self._is(pid) else None

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
        # It outlives the test run, so it does not carry the run's mark (`tests.orphans`).
        script = (
            'ulimit -S -m "$(ulimit -H -m)"; log=$1; shift; setsid "$@" >>"$log" 2>&1 </dev/null & echo $!'
        )
        started = subprocess.run(
            ["sh", "-c", script, "sh", str(self.log), *self.enter, *self.command],
            check=True,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={name: os.environ[name] for name in ("PATH", "HOME")} | self.env,
        )
        self._pid_file.write_text(str(self._executed(int(started.stdout))))

    def _executed(self, pid: int) -> int:
        """The program's own pid: what enters a pid namespace stays as the parent of what it runs."""
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while not _ended(pid):  # its command line is empty for a moment while it becomes another program
            try:
                candidates = [pid, *map(int, children.read_text().split())]
            except (FileNotFoundError, ProcessLookupError):
                break
            if found := next((one for one in candidates if self._is(one)), None):
                return found
            time.sleep(0.01)
        raise BedError(f"{self.name} ended at once; its log is {self.log}")

    def _is(self, pid: int) -> bool:
        """Whether a pid is this program's and not a later process's."""
        return _command(pid) == self.command

    def stop(self, kill: bool = False) -> None:
        """End it and wait until it has ended: SIGTERM, after some seconds SIGKILL; `kill`: SIGKILL at
        once."""
        pid = self.pid
        deadline = time.monotonic() + (0 if kill else _STOP_SECONDS)
        if pid and not kill:
            _send(pid, signal.SIGTERM)
        while pid and not _ended(pid):
            if time.monotonic() > deadline:
                _send(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)


def _command(pid: int) -> tuple[str, ...]:
    """A process's command line; empty if it has ended."""
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1])
    except (FileNotFoundError, ProcessLookupError):
        return ()


def _ended(pid: int) -> bool:
    """Whether nothing of a process is left that could hold a port or a file: its other threads are gone,
    too."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX" and threads <= 1


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it just ended
        os.kill(pid, number)
