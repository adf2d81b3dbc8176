"""What a test started ends with it: threads of this process, and processes that carry this run's mark."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import orphans

_mark = 0
"""This run's (`orphans.choose_mark`)."""
_SECONDS = 120.0
"""How long threads and processes that were told to end may take. Most end at once."""

# Libraries keep these until the process ends: idle workers of thread pools, and Airflow's API for tasks in
# this process.
_POOLS = (
    "asyncio_",
    "ThreadPoolExecutor-",
    "AnyIO worker thread",
    "tqdm_monitor",
    "QueueFeederThread",
    "fsspecIO",
    "InProcessExecutionAPI-loop",
)
_OLD_LOOP = "(run_forever)"
"""How the name of that thread ends in Airflow 3.0 and 3.1."""


def mark_processes(*, worker: bool) -> None:
    """Let every process that this one starts carry the run's mark, and end with it if it is killed.

    Args:
        worker: whether this is a worker of xdist, which also ends with its run, and all that it started.
    """
    global _mark  # noqa: PLW0603 - a process has one mark
    _mark = orphans.choose_mark()
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("orphans.py"))]
    subprocess.run(
        [*program, str(os.getpid()), str(_mark)],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    orphans.mark_process(
        _mark, keep_outer=worker
    )  # after that program has started, which must not find itself


def _threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(_POOLS) and not thread.name.endswith(_OLD_LOOP)
    }


def _processes() -> set[psutil.Process]:
    """Processes of this run, its own left out."""
    found = set()
    for pid in orphans.find_processes(_mark):
        try:
            process = psutil.Process(pid)
            if not _is_pythons_own(process):
                found.add(process)
        except psutil.Error:
            continue
    return found


def _is_pythons_own(process: psutil.Process) -> bool:
    """Whether it is a helper of `multiprocessing`, which ends with this process."""
    return any("multiprocessing.resource_tracker" in word for word in process.cmdline())


def _left(running: Callable[[], set[Any]], before: set[Any]) -> set[Any]:
    """What runs now and did not before, once it had time to end."""
    deadline = time.monotonic() + _SECONDS
    while (left := running() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.fixture(autouse=True)
def _threads_end_with_their_test() -> Iterator[None]:
    """A thread that outlives its test goes on asking servers that are gone, and disturbs the tests after
    it."""
    before = _threads()
    yield
    if left := _left(_threads, before):
        pytest.fail(f"threads outlive the test: {', '.join(sorted(thread.name for thread in left))}")


@pytest.fixture(autouse=True, scope="session")
def _processes_end_with_the_run() -> Iterator[None]:
    """A process that outlives the tests is never stopped by anybody. The message names the test that started
    it."""
    yield
    left = _left(_processes, set())
    told = [_described(process) for process in left]
    for process in left:
        process.kill()
    if told:
        pytest.fail(f"processes outlive their tests: {'; '.join(told)}")


def _described(process: psutil.Process) -> str:
    try:
        test = process.environ().get("PYTEST_CURRENT_TEST", "a fixture")
        return f"{' '.join(process.cmdline())} (started by {test})"
    except psutil.Error:
        return f"{process.pid} (ended meanwhile)"
