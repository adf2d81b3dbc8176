"""The process `edl brain run` from its start to SIGTERM, and the state after SIGKILL."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from edl_workflows.pipelines.cli import main
from edl_workflows.services.brain.store.records import JobKey
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.brain import support
from tests.unit.services.brain.support import TEAM, facts_json, sample_json

_postgres_folder, database_url = support._postgres_folder, support.database_url

NOW = time.time()
JOBS = 8
ENOUGH = 200
"""Acknowledged reports before the process is killed."""


@contextlib.contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A running `edl brain run`, and its log."""
    log = folder / f"log-{time.monotonic_ns()}"
    words = [
        sys.executable,
        "-m",
        "edl_workflows",
        "brain",
        "run",
        "--port",
        "0",
        "--log-format",
        "json",
        *options,
    ]
    with log.open("wb") as out:
        running = subprocess.Popen(words, stdout=out, stderr=out)
        try:
            yield running, log
        finally:
            running.kill()
            running.wait(240)


def logged(log: Path, event: str, field: str) -> str:
    """Wait for a log line and return one of its fields."""
    found: list[str] = []

    def look() -> bool:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                if (said := json.loads(line)).get("event") == event:
                    found.append(str(said[field]))
        return bool(found)

    eventually(look)
    return found[0]


@pytest.mark.slow
def test_kill_9_loses_nothing_acknowledged(database_url: str, tmp_path: Path) -> None:
    """A Brain is killed while eight masters report. Every acknowledged sample is in the store, and the next
    process starts with it. The optimizer process ends too."""
    options = [
        "--database-url",
        database_url,
        "--tokens-file",
        str(support.tokens_file(tmp_path)),
        "--metrics-port",
        "0",
    ]
    acknowledged: dict[str, list[int]] = {f"uid-{number}": [] for number in range(JOBS)}
    stop = threading.Event()

    def master(url: str, uid: str) -> None:
        with httpx.Client(headers={"Authorization": f"Bearer {TEAM}"}, timeout=240) as http:
            for step in range(100_000):
                body = {"job": facts_json(uid), "samples": [sample_json(NOW + step / 1_000, step=step)]}
                try:
                    answer = http.post(f"{url}/v1/metrics", json=body)
                except httpx.HTTPError:
                    return
                if answer.status_code == 200:
                    acknowledged[uid].append(step)
                if stop.is_set():
                    return

    with process(tmp_path, *options) as (running, log):
        url = logged(log, "Brain started", "url")
        threads = [threading.Thread(target=master, args=(url, uid)) for uid in acknowledged]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: sum(map(len, acknowledged.values())) >= ENOUGH, seconds=120)
            question = {"job": facts_json("uid-0"), "stage": "job_stage_create"}
            token = {"Authorization": f"Bearer {TEAM}"}
            assert (
                httpx.post(f"{url}/v1/optimize", json=question, headers=token, timeout=150).status_code == 200
            )
            optimizers = psutil.Process(running.pid).children(recursive=True)
        finally:
            running.send_signal(signal.SIGKILL)
            running.wait(240)
            stop.set()
            for thread in threads:
                thread.join(240)

    with BrainStore(database_url) as store:
        stored = {uid: {s.step for s in store.samples(JobKey("team", uid), 10**6)} for uid in acknowledged}
    lost = {uid: set(steps) - stored[uid] for uid, steps in acknowledged.items()}
    assert not any(lost.values()), lost
    assert all(acknowledged.values())
    assert optimizers
    eventually(lambda: not any(map(_runs, optimizers)))


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_sigterm_ends_it(tmp_path: Path) -> None:
    """On SIGTERM, the process ends with 0, and all reports are in the database. While it runs, it serves
    probes and metrics."""
    options = ["--database-url", f"sqlite:///{tmp_path}/brain.db", "--no-require-token", "--metrics-port"]
    port = _free_port()
    with process(tmp_path, *options, str(port)) as (running, log):
        url = logged(log, "Brain started", "url")
        report = {"job": facts_json(), "samples": [sample_json(NOW)]}
        assert httpx.post(f"{url}/v1/metrics", json=report).status_code == 200
        for path in ("healthz", "readyz"):
            assert httpx.get(f"http://127.0.0.1:{port}/{path}").text == "ok\n"
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert re.search(r'edl_brain_answers_total{call="metrics",code="200",method="POST"} 1\.0', metrics)
        assert "edl_brain_store_waiting 0.0" in metrics
        running.terminate()
        assert running.wait(240) == 0
        assert "tokens are not required" in log.read_text()
    with BrainStore(f"sqlite:///{tmp_path}/brain.db") as store:
        assert len(store.samples(JobKey("team", "uid-1"), 9)) == 1


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_token_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a tokens file, the service starts only if no tokens are required."""
    assert main(["brain", "run", "--database-url", f"sqlite:///{tmp_path}/brain.db"]) == 2
    assert "--tokens-file" in capsys.readouterr().err


WRONG_OPTIONS = {
    "no such database": ["--database-url", "mysql://h/x", "--no-require-token"],
    "no such tokens": ["--tokens-file", "nothing-there"],
    "no such certificate": [
        "--no-require-token",
        "--tls-cert-file",
        "nothing-there",
        "--tls-key-file",
        "nothing",
    ],
}


@pytest.mark.parametrize("options", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With wrong options the process exits with an error message."""
    monkeypatch.chdir(tmp_path)
    assert main(["brain", "run", *options]) == 2
    assert capsys.readouterr().err.startswith("edl: ")


def test_edl_brain_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the token once, on a line of its own. The file contains its hash only."""
    file = tmp_path / "tokens.json"
    assert main(["brain", "token", "team-a", "-n", "a", "-n", "b", "--tokens-file", str(file)]) == 0
    assert main(["brain", "token", "ops", "--operator", "--tokens-file", str(file)]) == 0
    printed = capsys.readouterr().out.split()
    rows = json.loads(file.read_text())["tokens"]
    assert [(row["tenant"], row["namespaces"]) for row in rows] == [("team-a", ["a", "b"]), ("ops", ["*"])]
    assert len(printed) == 2
    assert not any(token in file.read_text() for token in printed)


@pytest.mark.parametrize("options", [[], ["--operator", "-n", "a"]], ids=["neither", "both"])
def test_a_token_is_for_namespaces_or_an_operator(options: list[str], tmp_path: Path) -> None:
    """A token is created either for namespaces or for an operator, and one of the two must be given."""
    assert main(["brain", "token", "x", *options, "--tokens-file", str(tmp_path / "t")]) == 2
