"""The parent process of a container: starts it, forwards signals, kills its remaining processes when it ends,
and records how it ended.

It runs as a file (``python -I -S shim.py FOLDER``), one for each start of a container. It uses only the
standard library, as do `listening` and `log_files`, because it must start fast and stay small. The shim
outlives the cluster process. The next cluster process finds it by the files that it writes:

- ``shim.json``: process ids with start times, once the container runs;
- ``log…``: the container's output, and when each piece of it was written (`log_files`);
- ``exit.json``: how the container ended; the shim writes it last.

SIGTERM is forwarded to the container's main process; on SIGUSR1 the shim sends SIGKILL to all processes of
the container. When the main process ends, its remaining descendants are killed, as in a container with a PID
namespace. If the spec says so, the shim restricts the container's servers to the loopback interface
(`listening`).

``python -I -S shim.py FOLDER --exec JSON`` turns into a command in the container's environment, for probes
and hooks.
"""

from __future__ import annotations  # so that annotations are not evaluated

import contextlib
import ctypes
import json
import os
import resource
import signal
import stat
import sys
import time
from _thread import allocate_lock, start_new_thread

if __name__ == "__main__":  # run as a file: `edl_workflows` must be importable; last in the path
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *3 * [os.pardir])))

from edl_workflows.local.runner import listening, log_files

TYPE_CHECKING = False  # importing `typing` would take as long as all other imports
if TYPE_CHECKING:
    import _socket
    from _thread import LockType
    from collections.abc import Iterator
    from typing import Any, NoReturn

CONFIG_ERROR, START_ERROR = "CreateContainerConfigError", "StartError"
START_ERROR_CODE = 128
_SUBREAPER, _DEATH_SIGNAL, _NO_NEW_PRIVILEGES = 36, 1, 38
_NEW_NAMESPACE, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_LOCKED = {os.ST_NOSUID: 2, os.ST_NODEV: 4, os.ST_NOEXEC: 8}
_DRAIN_SECONDS = 5.0
"""How long to wait for output after the container's end: a process outside the container may keep its pipe
open."""
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD}

_libc = ctypes.CDLL(None, use_errno=True)


class SetupError(Exception):
    """The container's environment cannot be set up."""


def main(arguments: list[str]) -> None:
    """Run a container, or with ``--exec`` one more command in its environment."""
    folder = arguments[0]
    spec = _read(os.path.join(folder, "spec.json"))
    mark_process(spec.get("mark", 0))  # absent if an older version started the container
    if len(arguments) > 1:
        execute(spec, json.loads(arguments[2]))
    supervise(folder, spec)


def mark_process(number: int) -> None:
    """Let this process and all that it starts carry the container's number, which no program overwrites. A
    process that has a lower limit already may not be allowed to."""
    if number:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_RTTIME, (number, number))


def execute(spec: dict[str, Any], argv: list[str]) -> NoReturn:
    """Run one more command in a container's environment and exit with its result."""
    if not spec.get("loopbackOnly"):  # absent if an older version started the container
        _become(spec, argv)
    ours, theirs = listening.make_channel()
    child = os.fork()
    if child == 0:
        _become(spec, argv, channel=theirs)
    theirs.close()
    _end_with_parent()
    listening.supervise_in_thread(ours)
    _, status = os.waitpid(child, 0)
    os._exit(_exit_code(status))


def supervise(folder: str, spec: dict[str, Any]) -> None:
    """Start the container, wait for its end, and kill its remaining processes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    read_end, write_end = os.pipe()
    output, container_output = os.pipe()
    ours, theirs = listening.make_channel() if spec["loopbackOnly"] else (None, None)
    started = time.time()
    main_pid = os.fork()
    if main_pid == 0:
        _child(spec, write_end, container_output, theirs)
    if ours and theirs:
        theirs.close()
        listening.supervise_in_thread(ours)
    os.close(write_end)
    os.close(container_output)
    logged = _start_logging(output, spec["log"])
    identity = {"pid": os.getpid(), "start": start_ticks("self"), "main": main_pid, "startedAt": started}
    _write(os.path.join(folder, "shim.json"), identity)
    with os.fdopen(read_end, "rb") as report:
        failure = json.loads(report.read() or b"{}")
    status = _wait(main_pid)
    _end_all()
    logged.acquire(timeout=_DRAIN_SECONDS)
    record = {"code": _exit_code(status), "startedAt": started, "finishedAt": time.time(), **failure}
    _write(os.path.join(folder, "exit.json"), record)


def _start_logging(output: int, log: str) -> LockType:
    """Log `output` in a thread. The returned lock is released when all output is logged."""
    done = allocate_lock()
    done.acquire()

    def work() -> None:
        try:
            log_files.log_output(output, log)
        finally:
            done.release()

    start_new_thread(work, ())
    return done


def start_ticks(pid: int | str) -> int:
    """When a process started, in clock ticks since boot. Together with its id this identifies a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[19])


def _wait(main_pid: int) -> int:
    """Wait for the main process, handling signals meanwhile. Returns its wait status."""
    while True:
        received = signal.sigwait(_WATCHED)
        if received in (signal.SIGTERM, signal.SIGINT):
            os.kill(main_pid, signal.SIGTERM)  # not reaped yet, so its id cannot have been reused
        elif received == signal.SIGUSR1:
            _kill_children()
        for pid, status in _reap():
            if pid == main_pid:
                return status


def _reap() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _end_all() -> None:
    """Kill all descendants. Orphans become children of this process, so killing its children repeatedly
    reaches all."""
    while True:
        _kill_children()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_children() -> None:
    for pid in child_ids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def child_ids() -> list[int]:
    """Ids of the direct children of this process."""
    own, ids = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has just ended
            if parent == own:
                ids.append(int(name))
    return ids


def _exit_code(status: int) -> int:
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _child(spec: dict[str, Any], report: int, output: int, channel: _socket.socket | None) -> NoReturn:
    """In the new process: execute the container's program, or report why that failed."""
    try:
        _become(spec, spec["argv"], output, channel)
    except SetupError as error:
        failure = {"reason": CONFIG_ERROR, "message": str(error)}
    except OSError as error:
        failure = {"reason": START_ERROR, "message": f"exec {spec['argv'][0]!r}: {error.strerror}"}
    except ValueError as error:  # a null character in arguments or variables
        failure = {"reason": START_ERROR, "message": f"exec {spec['argv'][0]!r}: {error}"}
    os.write(report, json.dumps(failure).encode())
    with contextlib.suppress(OSError):  # for readers of the log
        os.write(output, f"the container can't be started: {failure['message']}\n".encode())
    os._exit(START_ERROR_CODE)


def _become(
    spec: dict[str, Any], argv: list[str], output: int | None = None, channel: _socket.socket | None = None
) -> NoReturn:
    """Execute `argv` in the container's environment, in place of this process.

    Args:
        spec: the container's launch spec.
        argv: the command.
        output: the container's output; None for an additional command, which keeps its own.
        channel: channel to the process that restricts its servers to loopback; None: they may listen on all
            interfaces.

    Raises:
        SetupError: the environment cannot be set up.
        OSError: the command cannot be executed.
    """
    if output is not None:
        os.setsid()
    if spec["mounts"]:
        _enter_mounts(spec["mounts"], spec["scratch"])
    try:
        os.chdir(spec["cwd"])
    except OSError as error:
        raise SetupError(f"workingDir {spec['cwd']!r}: {error.strerror}") from error
    if output is not None:
        _redirect(output)
    _end_with_parent()  # the main process ends with its shim; its descendants are found by their mark
    if spec["noNewPrivileges"]:
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python has changed these
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if channel is not None:
        try:
            listening.confine_process(channel)
        except OSError as error:
            raise SetupError(f"servers can't be restricted to loopback: {error.strerror}") from error
    os.execvpe(argv[0], argv, spec["env"])


def _end_with_parent() -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _redirect(output: int) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _enter_mounts(mounts: list[dict[str, Any]], scratch: str) -> None:
    """Enter a new mount namespace, and without root a user namespace, and mount the volumes in it."""
    uid, gid = os.getuid(), os.getgid()
    flags = _NEW_NAMESPACE | (0 if uid == 0 else _NEW_USER)
    _call("unshare", _libc.unshare(flags))
    if uid != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{uid} {uid} 1"),
            ("gid_map", f"{gid} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    # Targets near the root first, since a volume may be mounted inside another.
    for mount in sorted(mounts, key=lambda mount: mount["target"].count("/")):
        target = os.path.realpath(mount["target"])
        directory = stat.S_ISDIR(os.stat(mount["source"]).st_mode)
        if not os.path.exists(target):
            _make_mount_point(target, directory, scratch)
        _bind(mount["source"], target, read_only=mount["readOnly"])


def _bind(source: str, target: str, *, read_only: bool = False) -> None:
    _mount(source, target, None, _BIND | _RECURSIVE)
    if read_only:
        # A remount must repeat the flags that are locked on the outer mount.
        present = os.statvfs(target).f_flag
        locked = sum(flag for seen, flag in _LOCKED.items() if present & seen)
        _mount(None, target, None, _BIND | _REMOUNT | _READ_ONLY | locked)


def _make_mount_point(target: str, directory: bool, scratch: str) -> None:
    """Create a missing mount point without changing the machine's files. In this namespace the nearest
    existing parent folder is replaced by a folder in memory into which its entries are bind-mounted, similar
    to the writable layer of a container."""
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    _mirror(above, scratch)
    os.makedirs(target if directory else os.path.dirname(target), exist_ok=True)
    if not directory:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))


def _mirror(folder: str, scratch: str) -> None:
    copy = os.path.join(scratch, "mirror")
    os.makedirs(copy, exist_ok=True)
    _mount("tmpfs", copy, "tmpfs", 0)
    os.chmod(copy, stat.S_IMODE(os.stat(folder).st_mode))
    with os.scandir(folder) as entries:
        for entry in entries:
            twin = os.path.join(copy, entry.name)
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), twin)
                continue
            if entry.is_dir():
                os.mkdir(twin)
            else:
                os.close(os.open(twin, os.O_WRONLY | os.O_CREAT, 0o600))
            _bind_unless_gone(entry.path, twin)
    if folder == "/":
        os.chroot(copy)
        os.chdir("/")
    else:
        _bind(copy, folder)


def _bind_unless_gone(source: str, twin: str) -> None:
    """Other programs may delete their files in a folder like ``/tmp`` while it is mirrored."""
    try:
        _bind(source, twin)
    except SetupError:
        if os.path.lexists(source):
            raise
        os.rmdir(twin) if os.path.isdir(twin) else os.unlink(twin)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def encode(text: str | None) -> bytes | None:
        return text.encode() if text is not None else None

    _call(
        f"mount {source} on {target}", _libc.mount(encode(source), encode(target), encode(kind), flags, None)
    )


def _call(call: str, result: int) -> None:
    if result != 0:
        raise SetupError(f"{call}: {os.strerror(ctypes.get_errno())}")


def _read(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _write(path: str, value: dict[str, Any]) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1:])
