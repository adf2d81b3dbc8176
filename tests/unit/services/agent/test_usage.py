"""CPU and memory of a process tree."""

import os
import subprocess
import sys
import time

import psutil

from edl_workflows.services.agent.process_tree import UsageMeter


def test_children_are_counted() -> None:
    """The CPU and memory of child processes count for the parent."""
    meter = UsageMeter(os.getpid())
    alone = meter.read()
    child = subprocess.Popen([sys.executable, "-c", "b = b'x' * 50_000_000\nwhile True: pass"])
    of_child = psutil.Process(child.pid)
    try:
        before = time.monotonic()
        meter.read()
        seen = _cpu_seconds(of_child)
        # However few of its turns a busy machine gives the child, all that it gets is counted.
        while _cpu_seconds(of_child) < seen + 0.3:
            assert time.monotonic() < before + 240
            time.sleep(0.05)
        busy = meter.read()
        cpu_seconds = busy.cpu * (time.monotonic() - before)
    finally:
        child.kill()
        child.wait()
    assert cpu_seconds > 0.2
    assert busy.memory > alone.memory + 40


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_a_process_that_is_gone_uses_nothing() -> None:
    """A process that has ended has no children and uses nothing."""
    child = subprocess.Popen(["true"])
    child.wait()
    usage = UsageMeter(child.pid).read()
    assert (usage.cpu, usage.memory) == (0, 0)
