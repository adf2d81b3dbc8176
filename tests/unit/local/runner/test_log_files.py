"""A container's output is kept in files of bounded size, which readers see as one."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from edl_workflows.local.apiserver.subresources import LogRequest
from edl_workflows.local.pods import Container
from edl_workflows.local.runner import log_files, logs
from edl_workflows.local.runner.attempts import Attempt
from edl_workflows.local.runner.containers import ContainerCallbacks, ContainerRunner
from edl_workflows.local.runner.lifecycle import ContainerState
from edl_workflows.local.runner.log_files import LogFiles
from tests.local_cluster import LocalCluster
from tests.unit.local.support import WAIT_SECONDS, Pods, container

LINE = b"%07d\n"
FILE_LINES = 100


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["Output"]:
    """The output of a container that runs, in files of 100 lines and no more than five of them."""
    monkeypatch.setattr(log_files, "MAX_BYTES", FILE_LINES * len(LINE % 0))
    monkeypatch.setattr(log_files, "LINE_BYTES", 50)
    found = Output(tmp_path)
    yield found
    found.end()


class Output:
    """What a container writes, and what a reader of its log gets."""

    def __init__(self, folder: Path) -> None:
        self.container = ContainerRunner(
            Container(name="main"),
            folder,
            "uid/main",
            ContainerCallbacks(lambda: None, lambda *_: None, lambda _: None),
        )
        self.attempt = Attempt(folder, 0, "uid/main")
        self.attempt.folder.mkdir()
        self.attempt.log.touch()
        (self.attempt.folder / "shim.json").write_text('{"pid": 1, "start": 1, "startedAt": 1e9}')
        self.container.state = ContainerState(starts=1, running_since=datetime.now(UTC))
        read_end, self.pipe = os.pipe()
        self._keeper = threading.Thread(target=log_files.log_output, args=(read_end, str(self.attempt.log)))
        self._keeper.start()

    def write(self, piece: bytes) -> None:
        """Write a piece, and wait until it is kept."""
        before = self.attempt.output.end()
        os.write(self.pipe, piece)
        deadline = time.monotonic() + WAIT_SECONDS
        while self.attempt.output.end() < before + len(piece):
            assert time.monotonic() < deadline
            time.sleep(0.0002)

    def lines(self, first: int, end: int) -> None:
        """Write numbered lines, ten in a piece."""
        for number in range(first, end, 10):
            self.write(b"".join(LINE % one for one in range(number, number + 10)))

    def end(self) -> None:
        """The container ends."""
        if self._keeper.is_alive():
            os.close(self.pipe)
            self._keeper.join()
            record = '{"code": 0, "startedAt": 1e9, "finishedAt": 2e9}'
            (self.attempt.folder / "exit.json").write_text(record)
            self.container.state = ContainerState(starts=1)

    def request(self, **options: object) -> bytes:
        """The whole answer to a request for the log."""

        async def read() -> bytes:
            request = LogRequest("default", "p", "uid", "main", **options)  # type: ignore[arg-type]
            return b"".join([piece async for piece in logs.read(request, self.container)])

        return asyncio.run(read())


def numbers(answer: bytes) -> list[int]:
    """The numbers of the lines, whether or not they have times."""
    return [int(line.split()[-1]) for line in answer.splitlines()]


def test_old_output_is_removed(output: Output) -> None:
    """Five files are kept, each with its times, none longer than a file may be."""
    output.lines(0, 750)
    names = sorted(one.name for one in output.attempt.folder.iterdir() if one.name.startswith("log"))

    assert names == sorted(
        f"log.{begin}{end}" for begin in (2400, 3200, 4000, 4800, 5600) for end in ("", ".times")
    )
    assert max((output.attempt.folder / name).stat().st_size for name in names) == 800
    assert numbers(output.request()) == list(range(300, 750))


@pytest.mark.parametrize("tail", [1, 49, 50, 51, 149, 150, 151, 449, 450, 1000])
def test_the_last_lines_are_found_over_all_files(output: Output, tail: int) -> None:
    """`--tail` counts lines of all files that are left."""
    output.lines(0, 750)

    assert numbers(output.request(tail_lines=tail)) == list(range(max(750 - tail, 300), 750))


@pytest.mark.parametrize("number", [0, 290, 300, 310, 390, 400, 410, 740, 750])
def test_lines_since_a_time_are_found_over_all_files(output: Output, number: int) -> None:
    """`--since-time` leaves out older lines, even if the file of that time was removed, and the times of
    lines are right."""
    output.lines(0, number)
    since = datetime.now(UTC)
    output.lines(number, 750)
    stamped = output.request(since=since, timestamps=True)

    assert numbers(output.request(since=since)) == list(range(max(number, 300), 750))
    assert numbers(stamped) == list(range(max(number, 300), 750))
    assert all(datetime.fromisoformat(line.split()[0].decode()) >= since for line in stamped.splitlines())


def test_a_reader_follows_into_the_next_file(output: Output) -> None:
    """`--follow` gives each line once and in order across rotated files; a reader that is too slow continues
    with the oldest line that is left."""

    async def follow() -> list[int]:
        request = LogRequest("default", "p", "uid", "main", follow=True)
        answer = logs.read(request, output.container)
        found = b""
        for first in range(0, 700, 50):
            await asyncio.to_thread(output.lines, first, first + 50)
            while len(found) < (first + 50) * len(LINE % 0):
                found += await anext(answer)
        await asyncio.to_thread(output.lines, 700, 1500)
        output.end()
        async for piece in answer:
            found += piece
        return numbers(found)

    assert asyncio.run(follow()) == [*range(700), *range(1000, 1500)]


@pytest.mark.parametrize(
    "starts", [pytest.param(1, id="the pod is deleted"), pytest.param(3, id="later starts replace it")]
)
def test_a_followed_log_ends_although_the_record_of_its_end_is_gone(output: Output, starts: int) -> None:
    """The folder of a start goes with its pod, or when it is two starts old. A reader that has not looked
    since the container ended gets to the end all the same."""

    async def follow() -> list[int]:
        answer = logs.read(LogRequest("default", "p", "uid", "main", follow=True), output.container)
        found = await anext(answer)
        output.end()
        shutil.rmtree(output.attempt.folder)
        since = datetime.now(UTC) if starts > 1 else None
        output.container.state = ContainerState(starts=starts, running_since=since)
        async with asyncio.timeout(WAIT_SECONDS):
            return numbers(found + b"".join([piece async for piece in answer]))

    output.lines(0, 10)

    assert asyncio.run(follow()) == list(range(10))


def test_a_line_without_end_is_bounded_too(output: Output) -> None:
    """A log file rotates at the end of a line, or within a very long line, which readers get complete and
    with one time."""
    output.write(b"x" * 820)
    output.write(b"y" * 50)
    output.write(b"z\n")

    assert output.attempt.output.begins() == [0, 870]
    assert output.request(tail_lines=1) == b"x" * 820 + b"y" * 50 + b"z\n"
    assert output.request(timestamps=True).count(b"Z ") == 1


def test_many_small_pieces_are_bounded_too(output: Output) -> None:
    """The recorded times count towards the size of a file, so that a program that writes byte by byte does
    not fill the disk with them."""
    for number in range(120):
        output.write(b"\n" if number % 2 else b"x")

    assert output.attempt.output.begins() == [0, 50, 100]


def test_the_end_of_the_output_is_read_over_files(output: Output) -> None:
    """A termination message that falls back to the log has as much of its end as is left."""
    output.lines(0, 210)

    assert output.attempt.output.tail(800) == b"".join(LINE % number for number in range(110, 210))


def test_a_full_disk_stops_no_container(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no further file can be created, output is lost but no container waits; logging continues when there
    is room."""
    refused = threading.Event()
    output.lines(0, 100)

    def refuse(_path: str) -> int:
        refused.set()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(log_files, "_open_to_append", refuse)
        os.write(output.pipe, LINE % 100)
        assert refused.wait(WAIT_SECONDS)
    output.lines(200, 300)

    assert numbers(output.request()) == [*range(100), *range(200, 300)]


def test_the_log_of_a_pod_rotates(local: LocalCluster, pods: Pods) -> None:
    """Of 60 MB of output, a running cluster keeps five files of 10 MiB, including the last line."""
    pods.create("talks", container("seq 1 8000000; echo end"))
    pods.end("talks")

    assert pods.logs("talks", tail_lines=2) == "8000000\nend"
    files = LogFiles(
        str(
            local.folder / "pods" / pods.get("talks")["metadata"]["uid"] / "containers" / "main" / "0" / "log"
        )
    )
    sizes = [Path(files.path(begin)).stat().st_size for begin in files.begins()]
    assert len(sizes) == 5
    assert max(sizes) < 11 * 1024 * 1024
