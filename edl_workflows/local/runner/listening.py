"""Restricts TCP servers of containers to the loopback interface, regardless of the address that they bind to.

Programs choose the address on which they listen, and TensorFlow's server listens on every interface even if
it is given 127.0.0.1. Therefore a container runs under a seccomp filter that passes each ``listen`` call to
its shim. The shim binds the socket to the interface ``lo`` and then calls ``listen`` on behalf of the
program: ``ss -tln`` shows ``*%lo:2222``. Processes of this machine can connect to it at every loopback
address, including those of pods. A socket with another address of the machine could not be reached through
``lo``, so its ``listen`` fails with EADDRNOTAVAIL.

This needs neither root nor a user namespace, and does not affect outgoing connections. It does not protect
against a hostile container, which is a process of the same user.

The module uses only the standard library, because `shim` loads it. Run as a file, it checks whether the
current user may do all this on this machine.
"""

from __future__ import annotations  # so that annotations are not evaluated

import _socket
import contextlib
import ctypes
import errno
import fcntl
import os
import select
import struct
import sys
from _thread import start_new_thread

TYPE_CHECKING = False  # importing `typing` would take as long as all other imports
if TYPE_CHECKING:
    from collections.abc import Iterator

_INTERFACE = b"lo\0"
_INTERNET = (_socket.AF_INET, _socket.AF_INET6)
_SYSTEM_CALLS = {  # for each machine type: the audit architecture, and the numbers of listen and seccomp
    "x86_64": (0xC000003E, 50, 317),
    "aarch64": (0xC00000B7, 201, 277),
    "riscv64": (0xC00000F3, 201, 277),
}
_IO_URING_SETUP, _PIDFD_GETFD = 425, 438  # the same on all machines
_X32_CALLS = 0x40000000  # calls of the x32 ABI have this number or a higher one
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_ALLOW, _NOTIFY, _FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
_SET_FILTER, _ALLOW_SPECULATION, _NEW_LISTENER = 1, 4, 8
_NO_NEW_PRIVILEGES = 38
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_REQUEST, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_CONTINUE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def confine_process(supervisor: _socket.socket) -> None:
    """Install the filter for this process, the program that it executes, and all their descendants.

    Args:
        supervisor: the channel to the process that runs `supervise`.

    Raises:
        OSError: this machine does not allow it.
    """
    architecture, listen, seccomp = _system_calls()
    code = _filter(architecture, listen)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    arguments = (seccomp, _SET_FILTER, _NEW_LISTENER | _ALLOW_SPECULATION, ctypes.c_char_p(program))
    listener = _libc.syscall(*arguments)
    # Users other than root must first give up privileges from set-uid programs.
    if listener < 0 and ctypes.get_errno() == errno.EACCES:
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        listener = _libc.syscall(*arguments)
    if listener < 0:
        raise _failure("seccomp")
    sent = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", listener))]
    supervisor.sendmsg([b"\0"], sent)


def supervise(confined: _socket.socket) -> None:
    """Carry out the ``listen`` calls of a process and its descendants until all of them have ended.

    Args:
        confined: the channel to the process that calls `confine_process`.
    """
    _, received, _, _ = confined.recvmsg(1, 64)
    confined.close()
    if not received:
        return  # the process ended before it called `confine_process`
    (listener,) = struct.unpack("=i", received[0][2])
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    while not any(event & select.POLLHUP for _, event in poll.poll()):
        request = bytearray(_REQUEST.size)
        with contextlib.suppress(OSError):  # the caller was killed
            fcntl.ioctl(listener, _RECEIVE, request)
            fcntl.ioctl(listener, _SEND, _answer(bytes(request)))
    os.close(listener)


def make_channel() -> tuple[_socket.socket, _socket.socket]:
    """The two ends of a channel, for `supervise` and `confine_process`. They are closed on exec."""
    return _socket.socketpair()


def supervise_in_thread(confined: _socket.socket) -> None:
    """Run `supervise` in a thread."""
    start_new_thread(supervise, (confined,))


def _system_calls() -> tuple[int, int, int]:
    machine = os.uname().machine
    if machine not in _SYSTEM_CALLS:
        raise OSError(errno.ENOSYS, f"not supported on {machine}")
    return _SYSTEM_CALLS[machine]


def _filter(architecture: int, listen: int) -> bytes:
    """The BPF program. Each comparison says how many instructions to skip if it holds and if it does not.

    System calls of other ABIs (32-bit programs) and io_uring could bypass the filter, so they fail as if the
    kernel did not have them.
    """
    missing = _FAIL | errno.ENOSYS
    instructions = (
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 0, 4, architecture),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_EQUAL, 3, 0, listen),
        (_EQUAL, 1, 0, _IO_URING_SETUP),
        (_AT_LEAST, 0, 2, _X32_CALLS),
        (_RETURN, 0, 0, missing),
        (_RETURN, 0, 0, _NOTIFY),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _answer(request: bytes) -> bytes:
    """Carry out ``listen(descriptor, backlog)`` for the caller. Returns the response to the kernel."""
    identity, thread, _, _, _, _, descriptor, backlog, *_ = _REQUEST.unpack(request)
    try:
        done = _listen(thread, descriptor & 0xFFFFFFFF, backlog & 0xFFFFFFFF)
    except OSError as error:
        return _ANSWER.pack(identity, 0, -(error.errno or errno.EACCES), 0)
    except Exception:  # noqa: BLE001 - without a response the caller would block forever
        return _ANSWER.pack(identity, 0, -errno.EACCES, 0)
    return _ANSWER.pack(identity, 0, 0, 0 if done else _CONTINUE)


def _listen(thread: int, descriptor: int, backlog: int) -> bool:
    """Listen on another process's socket, on loopback only. Returns False if it is not an internet socket."""
    with socket_of(_process_of(thread), descriptor) as copied:
        if copied is None or copied.family not in _INTERNET:
            return False
        if not _through_loopback(copied.getsockname()[0]):
            raise OSError(errno.EADDRNOTAVAIL, "not a loopback address")
        # Servers may call listen twice, but only root may bind a socket to an interface twice.
        if not on_loopback(copied):
            copied.setsockopt(_socket.SOL_SOCKET, _socket.SO_BINDTODEVICE, _INTERFACE)
        copied.listen(min(backlog, 0x7FFFFFFF))
        return True


def _through_loopback(address: str) -> bool:
    host = address.removeprefix("::ffff:")
    return host in ("0.0.0.0", "::", "::1") or host.startswith("127.")  # noqa: S104 - only compared


@contextlib.contextmanager
def socket_of(process: int, descriptor: int) -> Iterator[_socket.socket | None]:
    """A copy of another process's socket, open while the context lasts; None if the descriptor is not a
    socket.

    Raises:
        OSError: the process has ended, has no such descriptor, or may not be inspected.
    """
    handle = os.pidfd_open(process)
    try:
        copy = _libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
        if copy < 0:
            raise _failure("pidfd_getfd")
    finally:
        os.close(handle)
    try:
        sock = _socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        yield None
        return
    try:
        yield sock
    finally:
        sock.close()


def on_loopback(server: _socket.socket) -> bool:
    """Whether a listening socket is bound to the loopback interface."""
    return server.getsockopt(_socket.SOL_SOCKET, _socket.SO_BINDTODEVICE, 16) == _INTERFACE


def _process_of(thread: int) -> int:
    with open(f"/proc/{thread}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Tgid:"))


def _failure(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")


def _try() -> str:
    """Test the filter: a child process listens on all interfaces. Returns why its socket was not restricted
    to loopback; empty if it was."""
    ours, theirs = make_channel()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        ours.close()
        os.write(write_end, _listen_confined(theirs).encode())
        os._exit(0)
    theirs.close()
    os.close(write_end)
    supervise_in_thread(ours)  # before Linux 6.11, `supervise` ends only after the child was waited for
    os.waitpid(child, 0)
    with os.fdopen(read_end, "rb") as pipe:
        return pipe.read().decode()


def _listen_confined(supervisor: _socket.socket) -> str:
    try:
        confine_process(supervisor)
        server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        server.listen(1)
        tied = on_loopback(server)
    except OSError as error:
        return error.strerror or str(error)
    return "" if tied else "the kernel did not bind a socket to the loopback interface"


if __name__ == "__main__":
    sys.exit(_try() or 0)
