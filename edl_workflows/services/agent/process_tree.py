"""A training program's processes: which they are, and how much CPU and memory they use."""

import os
import time
from pathlib import Path

from edl_workflows.core.protocol.nodes import Usage

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class UsageMeter:
    """Measures the CPU and memory use of a process and its descendants, from ``/proc``.

    Args:
        root: process id at the root of the tree.
        proc: where procfs is mounted.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc
        self._seconds: dict[int, float] = {}
        self._at = time.monotonic()

    def read(self) -> Usage:
        """Mean CPU cores since the last call, and current memory. CPU time before a process was first seen is
        ignored."""
        now = time.monotonic()
        tree = process_tree(self._root, self._proc)
        used = sum(max(0.0, seconds - self._seconds.get(pid, seconds)) for pid, (seconds, _) in tree.items())
        cpu = used / max(now - self._at, 1e-3)
        self._seconds = {pid: seconds for pid, (seconds, _) in tree.items()}
        self._at = now
        return Usage(cpu=round(cpu, 3), memory=round(sum(memory for _, memory in tree.values()), 1))


def _processes(proc: Path) -> dict[int, tuple[int, float, float]]:
    """Parent, CPU seconds and resident MiB of each process."""
    processes = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # the process exited meanwhile
            continue
        # The command name is in parentheses and may contain any character.
        fields = stat[stat.rindex(")") + 2 :].split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        processes[int(entry.name)] = (int(fields[1]), seconds, int(fields[21]) * _PAGE_MIB)
    return processes


def process_tree(root: int, proc: Path = Path("/proc")) -> dict[int, tuple[float, float]]:
    """CPU seconds and resident MiB of a process and each of its descendants."""
    processes = _processes(proc)
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    tree, todo = {}, [root]
    while todo:
        pid = todo.pop()
        if pid in processes:
            tree[pid] = processes[pid][1:]
        todo.extend(children.get(pid, []))
    return tree
