"""Starts, finds and stops the cluster's process, for `edl local up|down|status` and tests.

That process runs `serve`. This module does not import it, because that takes a second.
"""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import BaseModel

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local import files
from edl_workflows.local.locks import LOCK_FILE, lock_holder
from edl_workflows.local.programs import remove_unused_programs
from edl_workflows.local.runner import processes
from edl_workflows.local.runner.volumes import remove_memory

FOLDER_VARIABLE = "EDL_LOCAL_DIR"
RECORD_FILE = "cluster.json"
"""File with the `Daemon` that serves a folder; it exists once the cluster is ready."""
START_SECONDS = 60.0
_POLL_SECONDS = 0.05


class Daemon(BaseModel):
    """``cluster.json``: the process that serves a folder.

    Attributes:
        pid: process id.
        url: URL of the API server.
        kubeconfig: path of the administrator's kubeconfig.
        controller: whether it runs the controller.
        di_server: URL of the DI server; empty if it runs none.
    """

    pid: int
    url: str
    kubeconfig: Path
    controller: bool
    di_server: str = ""


def default_folder() -> Path:
    """``EDL_LOCAL_DIR``, or ``edl-workflows/local`` below the user's data folder."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "edl-workflows" / "local"


def find(folder: Path) -> Daemon | None:
    """The running process that serves a folder; None if there is none."""
    record = files.read_json(folder / RECORD_FILE)
    if record is None:
        return None
    daemon = Daemon.model_validate(record)
    return daemon if lock_holder(folder / LOCK_FILE) == daemon.pid else None


def log_file(folder: Path) -> Path:
    """The log of this folder's daemon."""
    return folder / "cluster.log"


def controller_mark(folder: Path) -> str:
    """The mark of processes that belong to no pod: the controller and the DI server."""
    return f"controller-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}"


@dataclass(frozen=True)
class DaemonStart:
    """How to start a daemon.

    Attributes:
        folder: folder with its state.
        arguments: additional arguments of ``edl local up``.
    """

    folder: Path
    arguments: Sequence[str] = ()

    def command(self) -> list[str]:
        return [
            sys.executable, "-P", "-m", "edl_workflows", "local", "up", "--foreground", "--dir",
            str(self.folder),
            *self.arguments,
        ]  # fmt: skip


def up(start: DaemonStart) -> tuple[Daemon, bool]:
    """Start the daemon of a folder in a session of its own, unless it already runs. Returns it, and whether
    this call started it.

    Raises:
        UnavailableError: it ended or was not ready in time. The message contains the end of its log.
    """
    if (daemon := find(start.folder)) is not None:
        return daemon, False
    start.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = log_file(start.folder)
    with log.open("ab") as out:
        began = out.tell()
        child = _spawn(start.command(), out.fileno())
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if (daemon := find(start.folder)) is not None:
            # If two calls race, only one daemon gets the lock; the other one has ended.
            return daemon, daemon.pid == child
        if not _runs(child) and lock_holder(start.folder / LOCK_FILE) is None:
            break
        time.sleep(_POLL_SECONDS)
    else:
        psutil.Process(child).terminate()
    log_text = log.read_bytes()[began:].decode(errors="replace").strip()
    raise UnavailableError(f"the cluster did not start; {log} says: {log_text[-2000:] or '(nothing)'}")


def _spawn(command: list[str], out: int) -> int:
    """Start a process in a session of its own, not as a child of this process. Returns its id."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out, 1),
        (os.POSIX_SPAWN_DUP2, out, 2),
    ]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def down(folder: Path, *, seconds: float) -> bool:
    """Stop a folder's daemon, its controller and all processes of its pods. Returns whether any of them ran.

    Args:
        folder: folder with its state, which is kept.
        seconds: time after which the daemon is killed.
    """
    pid = lock_holder(folder / LOCK_FILE)  # also finds a daemon that is still starting
    if pid is not None:
        _stop(pid, seconds)
    left = sum(processes.kill_marked(mark) for mark in _marks(folder))
    remove_unused_programs()
    (folder / RECORD_FILE).unlink(missing_ok=True)
    return pid is not None or left > 0


def _stop(pid: int, seconds: float) -> None:
    try:
        process = psutil.Process(pid)
        process.terminate()
        process.wait(seconds)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(seconds)
    except psutil.NoSuchProcess:
        return


def _marks(folder: Path) -> Iterator[str]:
    """The marks of all processes that a daemon of this folder may have left running."""
    yield controller_mark(folder)
    yield from pod_uids(folder)


def pod_uids(folder: Path) -> list[str]:
    """Uids of the pods that have a folder."""
    pods = folder / "pods"
    return [path.name for path in pods.iterdir()] if pods.is_dir() else []


def delete(folder: Path) -> None:
    """Delete the state of a stopped cluster."""
    for uid in pod_uids(folder):
        remove_memory(uid)
    shutil.rmtree(folder, ignore_errors=True)
