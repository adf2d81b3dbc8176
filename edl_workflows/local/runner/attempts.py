"""One start (attempt) of a container: its folder on disk and its shim.

The folder is the durable record: ``shim.json`` contains the running process, ``exit.json`` how it ended, and
``killed`` why the runner killed it. So the cluster process can be killed at any time, and the next one
continues from these files.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from edl_workflows.local import files
from edl_workflows.local.runner import processes, shim
from edl_workflows.local.runner.log_files import LogFiles

KILLED_CODE = 137
_SHIM = Path(shim.__file__)
_SHIM_END_SECONDS = 10.0
_KEPT = 2
"""Number of attempts of a container that are kept on disk: the current one, and the one for ``kubectl logs
--previous``."""


@dataclass(frozen=True)
class Mount:
    """A file or folder of the machine that appears at `target` in a container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Launch:
    """How to start a container: arguments, complete environment, working folder, mounts, whether setuid
    programs are kept from gaining privileges, and whether its servers are restricted to the loopback
    interface."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    mounts: Sequence[Mount] = ()
    no_new_privileges: bool = False
    loopback_only: bool = True


@dataclass(frozen=True)
class AttemptEnd:
    """How a container ended: exit code (128+n for a signal), reason and message as kubelet writes them, and
    time."""

    code: int
    reason: str
    message: str
    started_at: datetime
    finished_at: datetime


class Attempt:
    """One start of a container.

    Args:
        folder: folder of the container; the attempt's own folder in it is named by its number.
        number: 0 for the first start.
        mark: the container's mark, ``<pod uid>/<container>``.
    """

    def __init__(self, folder: Path, number: int, mark: str) -> None:
        self.number = number
        self.folder = folder / str(number)
        self.log = self.folder / "log"
        self.output = LogFiles(str(self.log))
        self.termination_log = self.folder / "termination-log"
        self._mark = f"{mark}/{number}"
        self._child: subprocess.Popen[bytes] | None = None

    @classmethod
    def latest(cls, folder: Path, mark: str) -> "Attempt | None":
        """The newest attempt in a container's folder; None if there is none."""
        numbers = (
            [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
        )
        return cls(folder, max(numbers), mark) if numbers else None

    def start(self, launch: Launch, *, crashes: int) -> None:
        """Start the container.

        Args:
            launch: how to start it.
            crashes: number of consecutive short runs before this one; stored for the back-off.
        """
        (self.folder / "scratch").mkdir(parents=True, mode=0o700)
        self.log.touch(0o600)
        self.termination_log.touch(0o600)
        mounts = [{"source": m.source, "target": m.target, "readOnly": m.read_only} for m in launch.mounts]
        spec = {
            "argv": list(launch.argv),
            "env": {**launch.env, processes.MARK: self._mark},
            "mark": processes.mark_number(self._mark),
            "cwd": launch.cwd,
            "mounts": mounts,
            "noNewPrivileges": launch.no_new_privileges,
            "loopbackOnly": launch.loopback_only,
            "log": str(self.log),
            "scratch": str(self.folder / "scratch"),
            "crashes": crashes,
        }
        files.write_json(self.folder / "spec.json", spec)
        with (self.folder / "shim.log").open("wb") as complaints, _signals_wait():
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(self.folder)],
                env={"PATH": os.environ.get("PATH", ""), processes.MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
                start_new_session=True,
            )
        self._prune()

    def _prune(self) -> None:
        old = self.folder.parent / str(self.number - _KEPT)
        shutil.rmtree(old, ignore_errors=True)  # what remains is removed with the pod

    @property
    def crashes(self) -> int:
        """The number passed to `start`."""
        return int((files.read_json(self.folder / "spec.json") or {}).get("crashes", 0))

    @property
    def shim_pid(self) -> int | None:
        """The process id of the shim; None if it does not run."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else None
        record = files.read_json(self.folder / "shim.json")
        return int(record["pid"]) if record and processes.is_alive(record["pid"], record["start"]) else None

    def started_at(self) -> datetime | None:
        """When the container's process started; None if it has not started yet."""
        record = files.read_json(self.folder / "shim.json")
        return datetime.fromtimestamp(record["startedAt"], UTC) if record else None

    async def wait(self, reason_if_lost: str) -> AttemptEnd:
        """Wait until the container ends. If its shim ends without a record, kill its remaining processes.

        Args:
            reason_if_lost: the reason to report if there is no record.
        """
        pid = self.shim_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                await _gone(pid)
        if self._child is not None:
            self._child.wait()
        ended = self.ended()
        if ended is None:
            await asyncio.to_thread(processes.kill_marked, self._mark)
            ended = self.ended() or self._record_loss(reason_if_lost)
        return ended

    def ended(self) -> AttemptEnd | None:
        """How the container ended; None if there is no record."""
        record = files.read_json(self.folder / "exit.json")
        if record is None:
            return None
        started = datetime.fromtimestamp(record["startedAt"], UTC)
        finished = datetime.fromtimestamp(record["finishedAt"], UTC)
        code = int(record["code"])
        killed = files.read_json(self.folder / "killed") or {}
        reason = record.get("reason") or ("Completed" if code == 0 else killed.get("reason") or "Error")
        return AttemptEnd(
            code, reason, record.get("message") or killed.get("message") or "", started, finished
        )

    def _record_loss(self, reason: str) -> AttemptEnd:
        now = datetime.now(UTC)
        message = "The container's processes are gone; how they ended is unknown."
        begun = files.read_json(self.folder / "shim.json") or {"startedAt": now.timestamp()}
        record = {"code": KILLED_CODE, "reason": reason, "message": message}
        record |= {"startedAt": begun["startedAt"], "finishedAt": now.timestamp()}
        files.write_json(self.folder / "exit.json", record)
        return AttemptEnd(KILLED_CODE, reason, message, datetime.fromtimestamp(begun["startedAt"], UTC), now)

    def terminate(self) -> None:
        """Send SIGTERM to the container's main process."""
        self._signal(signal.SIGTERM)

    async def kill(self, reason: str = "", message: str = "") -> None:
        """Send SIGKILL to all processes of the container, and wait until they have ended.

        Args:
            reason: reason for the status, such as ``OOMKilled``; empty for an ordinary kill.
            message: message for the status.
        """
        if reason and self.ended() is None:
            files.write_json(self.folder / "killed", {"reason": reason, "message": message})
        pid = self.shim_pid
        if pid is None:
            return
        self._signal(signal.SIGUSR1)
        try:
            async with asyncio.timeout(_SHIM_END_SECONDS):
                await _gone(pid)
        except TimeoutError:
            await asyncio.to_thread(processes.kill_marked, self._mark)
        except ProcessLookupError:
            return

    def _signal(self, number: signal.Signals) -> None:
        pid = self.shim_pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in this attempt's environment."""
        return [sys.executable, "-I", "-S", str(_SHIM), str(self.folder), "--exec", json.dumps(list(argv))]


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Block the shim's signals while it is started. It inherits the mask and unblocks them when it is
    ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _gone(pid: int) -> None:
    """Wait until a process, child or not, has ended.

    Raises:
        ProcessLookupError: it has ended already.
    """
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
