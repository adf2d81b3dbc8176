"""What a test started ends with it: threads of this process, and processes that carry this run's mark."""

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

_VARIABLE = "EDL_TEST_RUN"
_MARK = f"{os.getpid()}-{uuid.uuid4().hex}"
_SECONDS = 120.0
"""How long threads and processes that were told to end may take. Most end at once."""

# Libraries keep these until the process ends: idle workers of thread pools, and Airflow's API for tasks in
# this process.
_POOLS = (
    "asyncio_",
    "ThreadPoolExecutor-",
    "AnyIO worker thread",
    "QueueFeederThread",
    "fsspecIO",
    "InProcessExecutionAPI-loop",
)
_OLD_LOOP = "(run_forever)"
"""How the name of that thread ends in Airflow 3.0 and 3.1."""


def mark_processes() -> None:
    """Let every process that this one starts carry the run's mark in its environment, and end with it if it
    is killed."""
    os.environ[_VARIABLE] = _MARK
    program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("orphans.py"))]
    subprocess.run(
        [*program, str(os.getpid()), f"{_VARIABLE}={_MARK}"],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


def _threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(_POOLS) and not thread.name.endswith(_OLD_LOOP)
    }


def _processes() -> set[psutil.Process]:
    """Processes of this run, its own left out. Others' cannot be read, and zombies have ended."""
    found = set()
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.environ().get(_VARIABLE) == _MARK
            if ours and process.status() != psutil.STATUS_ZOMBIE and not _is_pythons_own(process):
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
