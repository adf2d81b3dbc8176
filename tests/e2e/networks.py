"""Networks and disks that a test makes for itself, and takes away again. They need root and Linux."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000


def missing(*programs: str) -> str:
    """Why such things can't be made here; "" if they can."""
    if os.geteuid() != 0:
        return "it needs root"
    absent = [program for program in programs if shutil.which(program) is None]
    return f"it needs {', '.join(absent)}" if absent else ""


@contextmanager
def private_network() -> Iterator[None]:
    """A network namespace with only a loopback device, for this thread and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        if libc.unshare(_CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            libc.setns(before, _CLONE_NEWNET)
    finally:
        os.close(before)


@contextmanager
def cut_off(group: int) -> Iterator[None]:
    """Nothing that the processes of a group send arrives, not even what acknowledges other packets."""
    rule = ["OUTPUT", "-m", "owner", "--gid-owner", str(group), "-j", "DROP"]
    subprocess.run(["iptables", "--wait", "-A", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "--wait", "-D", *rule], check=True)


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[None]:
    """A file system of this size at the folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def grow_disk(folder: Path, kilobytes: int) -> None:
    """Give such a file system another size."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(folder)], check=True)
