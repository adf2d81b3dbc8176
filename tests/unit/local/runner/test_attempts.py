"""One start of a container: its process and its record, without a cluster."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from edl_workflows.local.runner.attempts import Attempt, AttemptEnd, Launch


def run(folder: Path, script: str, act: Callable[[Attempt], Awaitable[None]] | None = None) -> AttemptEnd:
    """Start a script, do something to it, and wait for its end."""

    async def main() -> AttemptEnd:
        attempt = Attempt(folder, 0, "uid/main")
        attempt.start(Launch(["sh", "-c", script], {"PATH": os.environ["PATH"]}, str(folder)), crashes=0)
        if act is not None:
            await act(attempt)
        return await attempt.wait("Lost")

    return asyncio.run(main())


async def terminate(attempt: Attempt) -> None:
    attempt.terminate()


async def kill(attempt: Attempt) -> None:
    await attempt.kill("OOMKilled", "too much")


def test_an_end_is_recorded(tmp_path: Path) -> None:
    """The exit code, reason and times of a container are recorded for later readers."""
    ended = run(tmp_path, "exit 4")

    assert (ended.code, ended.reason) == (4, "Error")
    assert ended.started_at <= ended.finished_at
    assert Attempt(tmp_path, 0, "uid/main").ended() == ended


@pytest.mark.parametrize("repeat", range(5))
def test_a_signal_right_after_the_start_reaches_the_container(tmp_path: Path, repeat: int) -> None:
    """SIGTERM before the shim is ready reaches the container and does not end the shim."""
    ended = run(tmp_path, "exec sleep 60", terminate)

    assert (ended.code, ended.reason) == (143, "Error")


def test_a_kill_keeps_its_reason(tmp_path: Path) -> None:
    """The reason why a container was killed is recorded with its end."""
    ended = run(tmp_path, "exec sleep 60", kill)

    assert (ended.code, ended.reason, ended.message) == (137, "OOMKilled", "too much")


def test_only_two_attempts_are_kept(tmp_path: Path) -> None:
    """The folder of the attempt before the last is removed when a new one starts."""

    async def main() -> None:
        for number in range(4):
            attempt = Attempt(tmp_path, number, "uid/main")
            attempt.start(Launch(["true"], {"PATH": os.environ["PATH"]}, str(tmp_path)), crashes=number)
            await attempt.wait("Lost")

    asyncio.run(main())
    latest = Attempt.latest(tmp_path, "uid/main")

    assert sorted(one.name for one in tmp_path.iterdir()) == ["2", "3"]
    assert latest is not None
    assert (latest.number, latest.crashes) == (3, 3)
