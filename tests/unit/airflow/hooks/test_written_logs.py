"""Training lines in the log of a deferred task whose triggerer is stopped, with and without a remote log."""

import asyncio
import json
import os
import queue
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.airflow.hooks import written_logs
from edl_workflows.airflow.hooks.airflow_versions import conf
from edl_workflows.pipelines.waiting.training_logs import PodLine
from edl_workflows.runtime.kube.log_stream import LogPosition

TI = SimpleNamespace(dag_id="train", run_id="r", task_id="t", map_index=-1, try_number=1)
LINES = 10_000


class ObjectStore:
    """A remote log as Airflow's for S3: the triggerer uploads the whole file of a trigger when the trigger
    ends, and a second upload of the same file is appended."""

    processors = ()

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}
        self.base = Path()
        self.is_reachable = True

    def upload(self, path: str, ti: Any = None) -> None:
        self.objects[path] = self.objects.get(path, "") + (self.base / path).read_text()

    def read(self, relative_path: str, ti: Any) -> tuple[list[str], list[str] | None]:
        if not self.is_reachable:
            raise ConnectionError("no route to the store")
        found = [text for name, text in self.objects.items() if name.startswith(relative_path)]
        return ["somewhere"], found or None


class Bench:
    """Machines with triggerers, and a job whose pod can be read from any position."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, store: ObjectStore | None) -> None:
        self.folder, self.patch, self.store = folder, patch, store
        self.triggerers = 0

    def trigger(self, machine: str, until: int, *, ends: bool = False, has_pod: bool = True) -> None:
        """A new triggerer process on this machine runs the trigger until the line with this number."""
        self.triggerers += 1
        base = self.folder / machine
        self.patch.setattr(conf, "get", lambda *_args, **_options: str(base))
        for file in base.rglob("*.log"):
            os.utime(file, (0, file.stat().st_mtime - 10))  # older than this process
        self.patch.setattr(written_logs, "_IMPORTED", time.time() - 1)
        name = f"dag_id=train/run_id=r/task_id=t/attempt=1.log.trigger.{self.triggerers}.log"
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        with (base / name).open("w") as log:
            self.patch.setattr(
                written_logs,
                "_log",
                SimpleNamespace(
                    info=lambda text, **keys: log.write(json.dumps({"event": text, **keys}) + "\n"),
                    warning=lambda text, *values: log.write(json.dumps({"event": text % values}) + "\n"),
                ),
            )
            log.write('{"event": "trigger starting"}\n')
            log.flush()
            position = written_logs.take_over_lines(TI).get("p0", LogPosition())
            for number in range(1, until + 1) if has_pod else ():
                here = LogPosition(f"2026-01-01T00:00:{number // 1000:02}Z", number % 1000)
                if (here.time, here.count) > (position.time, position.count):
                    written_logs.write_line(PodLine("p0", "chief", f"line {number}", here))
        if ends and self.store is not None:
            self.store.base = base
            self.store.upload(name)

    def remote_lines(self) -> Counter[str]:
        """What users of the finished task see."""
        assert self.store is not None
        return self._training_lines("\n".join(self.store.objects.values()))

    def local_lines(self, machine: str) -> Counter[str]:
        """What users of the running task see of this machine."""
        files = (self.folder / machine).rglob("attempt=1.log*")
        return self._training_lines("\n".join(file.read_text() for file in files))

    @staticmethod
    def _training_lines(text: str) -> Counter[str]:
        events = [json.loads(line)["event"] for line in text.splitlines() if line]
        return Counter(event for event in events if event.startswith("[chief]"))


@pytest.fixture(params=[ObjectStore], ids=["remote"])
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bench:
    store = request.param() if request.param else None
    monkeypatch.setattr("airflow.sdk.log.load_remote_log_handler", lambda: store)
    template = "dag_id={ti.dag_id}/run_id={ti.run_id}/task_id={ti.task_id}/attempt={ti.try_number}.log"
    monkeypatch.setattr(
        "airflow.utils.helpers.log_filename_template_renderer", lambda: lambda ti: template.format(ti=ti)
    )
    return Bench(tmp_path, monkeypatch, store)


def once(until: int) -> Counter[str]:
    return Counter(f"[chief] line {number}" for number in range(1, until + 1))


def test_a_restart_loses_and_doubles_no_line_of_the_remote_log(bench: Bench) -> None:
    """A triggerer is killed while it writes 10,000 numbered lines. In the remote log of the finished task,
    and meanwhile on the page of the running one, each line is there once."""
    bench.trigger("a", 6_000)

    bench.trigger("a", LINES, ends=True)

    assert bench.remote_lines() == once(LINES)
    assert bench.local_lines("a") == once(LINES)


def test_lines_of_a_pod_that_is_gone_are_kept(bench: Bench) -> None:
    """Nobody can read the log of a deleted pod again, so its lines come from the former triggerer's file."""
    bench.trigger("a", 600)

    bench.trigger("a", 600, has_pod=False, ends=True)

    assert bench.remote_lines() == once(600)


@pytest.mark.parametrize("machines", ["aaa", "aba", "aab", "abab", "abba"])
def test_triggerers_of_several_machines(bench: Bench, machines: str) -> None:
    """A trigger moves between machines with disks of their own."""
    for number, machine in enumerate(machines, start=1):
        bench.trigger(machine, 100 * number, ends=number == len(machines))

    assert bench.remote_lines() == once(100 * len(machines))


def test_what_was_uploaded_is_not_written_again(bench: Bench) -> None:
    """A task that is deferred again continues after the lines that its earlier trigger uploaded, wherever it
    runs."""
    bench.trigger("a", 100, ends=True)
    bench.trigger("a", 200)
    bench.trigger("b", 300)

    bench.trigger("a", 400, ends=True)

    assert bench.remote_lines() == once(400)


def test_a_store_that_does_not_answer_loses_nothing(bench: Bench) -> None:
    """Without an answer of the store, lines may be there twice, but all are there."""
    bench.trigger("a", 100, ends=True)
    bench.trigger("a", 200)
    assert bench.store is not None
    bench.store.is_reachable = False

    bench.trigger("a", 300, ends=True)

    assert bench.remote_lines().keys() == once(300).keys()


@pytest.mark.parametrize("bench", [None], indirect=True, ids=["local"])
def test_without_remote_logging_files_stay_as_they_are(bench: Bench) -> None:
    """Users see the files of all triggerers: the next one continues after them and copies nothing."""
    bench.trigger("a", 100)
    bench.trigger("a", 200)

    bench.trigger("a", 300)

    assert bench.local_lines("a") == once(300)


class Supervisor(threading.Thread):
    """Writes the lines of a trigger to its file, each a moment later, as a triggerer's supervisor on a busy
    machine does. Once it has been told that the trigger has ended, it writes no more of them."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.file = file
        self.lines: queue.Queue[str] = queue.Queue()
        self.has_ended = threading.Event()

    def run(self) -> None:
        with self.file.open("w", buffering=1) as log:
            while not self.has_ended.wait(0.01):
                with suppress(queue.Empty):
                    log.write(json.dumps({"event": self.lines.get_nowait()}) + "\n")


@pytest.mark.parametrize("bench", [None], indirect=True, ids=["local"])
def test_a_trigger_ends_when_its_last_line_is_in_its_file(bench: Bench) -> None:
    """Airflow closes the file of a trigger that has ended, and drops the lines that it has not read until
    then. All lines of a trigger are in its file when it ends, the last ones, too."""
    bench.trigger("a", 1)
    [former] = (bench.folder / "a").rglob("*.log")
    os.utime(former, (0, 0))
    supervisor = Supervisor(former.with_name("attempt=1.log.trigger.2.log"))
    supervisor.start()
    for number in range(50):
        supervisor.lines.put(f"[chief] line {number}")
    supervisor.lines.put("The wait is over (success)")

    asyncio.run(written_logs.await_line(TI, "The wait is over"))
    supervisor.has_ended.set()
    supervisor.join()

    assert [json.loads(line)["event"] for line in supervisor.file.read_text().splitlines()] == [
        *(f"[chief] line {number}" for number in range(50)), "The wait is over (success)"
    ]  # fmt: skip


@pytest.mark.parametrize("bench", [None], indirect=True, ids=["local"])
def test_a_line_that_is_never_written_holds_no_trigger(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger without a file here ends at once, and one whose lines are filtered out after a while."""
    monkeypatch.setattr(written_logs, "WRITTEN_SECONDS", 0.3)
    start = time.monotonic()
    monkeypatch.setattr(conf, "get", lambda *_args, **_options: str(bench.folder / "empty"))
    asyncio.run(written_logs.await_line(TI, "The wait is over"))
    bench.trigger("a", 1)

    asyncio.run(written_logs.await_line(TI, "The wait is over"))

    assert time.monotonic() - start >= 0.3
