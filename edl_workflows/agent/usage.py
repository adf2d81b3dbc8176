"""What a process tree uses of CPU and memory, from ``/proc``."""

import os
import time
from pathlib import Path

from edl_workflows.protocol.nodes import Usage

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class UsageMeter:
    """Measures a process and its descendants between two calls.

    Args:
        root: process id of the tree's root.
        proc: where procfs is mounted.
    """

    def __init__(self, root: int, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc
        self._seconds: dict[int, float] = {}
        self._at = time.monotonic()

    def read(self) -> Usage:
        """Mean CPU cores since the last call, and memory now. A process's CPU counts from the call that first saw it."""
        now = time.monotonic()
        tree = _tree(self._root, _processes(self._proc))
        used = sum(max(0.0, seconds - self._seconds.get(pid, seconds)) for pid, (seconds, _) in tree.items())
        cpu = used / max(now - self._at, 1e-3)
        self._seconds = {pid: seconds for pid, (seconds, _) in tree.items()}
        self._at = now
        return Usage(cpu=round(cpu, 3), memory=round(sum(memory for _, memory in tree.values()), 1))


def _processes(proc: Path) -> dict[int, tuple[int, float, float]]:
    """Parent, CPU seconds and resident MiB of each process."""
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:  # it ended between the listing and the reading
            continue
        # The command's name stands in parentheses and may itself contain any character.
        fields = stat[stat.rindex(")") + 2 :].split()
        seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        found[int(entry.name)] = (int(fields[1]), seconds, int(fields[21]) * _PAGE_MIB)
    return found


def _tree(root: int, processes: dict[int, tuple[int, float, float]]) -> dict[int, tuple[float, float]]:
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
