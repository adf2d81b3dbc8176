"""CPU and memory of a process tree."""

import os
import subprocess
import sys
import time

from edl_workflows.agent.processes import UsageMeter


def test_children_are_counted() -> None:
    """A busy child's CPU and memory are its parent's."""
    meter = UsageMeter(os.getpid())
    alone = meter.read()
    child = subprocess.Popen([sys.executable, "-c", "b = b'x' * 50_000_000\nwhile True: pass"])
    try:
        meter.read()
        time.sleep(0.5)
        busy = meter.read()
        time.sleep(0.5)
        busy = max(busy, meter.read(), key=lambda usage: usage.cpu)
    finally:
        child.kill()
        child.wait()
    assert busy.cpu > 0.1
    assert busy.memory > alone.memory + 40


def test_a_process_that_is_gone_uses_nothing() -> None:
    """A tree without a root is empty."""
    child = subprocess.Popen(["true"])
    child.wait()
    usage = UsageMeter(child.pid).read()
    assert (usage.cpu, usage.memory) == (0, 0)
