"""Small parts of the runner: thresholds of probes, memory, refusals, volumes on disk, tails of logs."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.subresources import LogRequest
from edl_workflows.local.pods import Probe
from edl_workflows.local.runner import log_files, logs, processes, volumes
from edl_workflows.local.runner.attempts import Attempt
from edl_workflows.local.runner.log_files import LogFiles
from edl_workflows.local.runner.probes import ProbeResult, ProbeState
from edl_workflows.local.runner.processes import ProcessSnapshot
from edl_workflows.local.runner.support import unsupported_fields


def verdicts(probe: Probe, passing: bool, results: str) -> str:
    """The verdict after each result; ``+`` is success."""
    health, found = ProbeState(passing), ""
    for one in results:
        health = health.after(ProbeResult(one == "+"), probe)
        found += "+" if health.passing else "-"
    return found


@pytest.mark.parametrize(
    ("passing", "results", "expected"),
    [
        (True, "--+---", "+++++-"),
        (False, "-+-++", "----+"),
        (True, "---++-", "++--+" + "+"),
    ],
)
def test_probe_thresholds(passing: bool, results: str, expected: str) -> None:
    """A probe's verdict changes only after as many equal results in a row as the threshold says."""
    probe = Probe(failure_threshold=3, success_threshold=2)

    assert verdicts(probe, passing, results) == expected


def test_memory_of_a_tree() -> None:
    """The memory of a process tree includes grandchildren. A process that has ended has none."""
    grow = "x = bytearray(50 * 2**20); x[::4096] = b'1' * len(x[::4096]); print(flush=True); input()"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grow!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        snapshot = ProcessSnapshot.take()
        over, under = snapshot.over_limit(os.getpid(), 40 * 2**20), snapshot.over_limit(os.getpid(), 2**40)
        child.communicate(b"\n")

    assert (over, under) == (True, False)
    assert not snapshot.over_limit(2**22 + 1, 1)


def test_marked_processes_are_found_and_killed() -> None:
    """All processes with the mark of a pod are killed. Those of a pod whose uid only begins with the same
    characters stay."""
    environments = [{**os.environ, processes.MARK: f"{uid}/main/0"} for uid in ("uid-1", "uid-10")]
    marked, other = (subprocess.Popen(["sleep", "60"], env=env) for env in environments)
    with marked, other:
        killed = processes.kill_marked("uid-1")
        marked.wait(240)
        alive = other.poll() is None
        other.kill()

    assert (killed, alive) == (1, True)


def test_a_process_that_overwrites_its_environment_is_found(tmp_path: Path) -> None:
    """A program may overwrite its environment, as `setproctitle` does, and outlive its shim; it is still
    found by its pod and by its attempt, and is no other pod's."""
    overwrites = "import setproctitle, time; setproctitle.setproctitle('x' * 10_000); print(1, flush=True)"
    (tmp_path / "spec.json").write_text(json.dumps({"mark": processes.mark_number("uid-1/main/0")}))
    marking = (
        "import os, sys; from edl_workflows.local.runner import shim; "
        "shim.mark_process(shim._read(sys.argv[1])['mark']); "
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[2]])"
    )
    command = [sys.executable, "-c", marking, str(tmp_path / "spec.json"), overwrites + "; time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, processes.MARK: "x"}) as marked:
        assert marked.stdout is not None
        marked.stdout.readline()
        assert Path(f"/proc/{marked.pid}/environ").read_bytes().count(processes.MARK.encode()) == 0
        found = {
            prefix: [process.pid for process in processes.marked_processes(prefix)]
            for prefix in ("uid-1", "uid-1/main/0", "uid-1/main/1", "uid-10", "uid-2/main/0")
        }
        killed = processes.kill_marked("uid-1")
        marked.wait(240)
    expected = {"uid-1": [marked.pid], "uid-1/main/0": [marked.pid]}
    assert {prefix: pids for prefix, pids in found.items() if pids} == expected
    assert killed == 1


def refusals(
    container: dict[str, Any] | None = None, *, mounts: bool = True, uid: int = 1000, **spec: Any
) -> list[str]:
    """What is wrong with a pod of one container."""
    found = {"name": "main", "command": ["x"], **(container or {})}
    return [
        str(one)
        for one in unsupported_fields({"spec": {"containers": [found], **spec}}, mounts=mounts, uid=uid)
    ]


@pytest.mark.parametrize(
    ("container", "spec", "path"),
    [
        ({"command": []}, {}, "spec.containers[0].command"),
        ({"tty": True}, {}, "spec.containers[0].tty"),
        ({"livenessProbe": {"grpc": {"port": 1}}}, {}, "spec.containers[0].livenessProbe.grpc"),
        ({"securityContext": {"runAsUser": 7}}, {}, "spec.containers[0].securityContext.runAsUser"),
        ({"securityContext": {"privileged": True}}, {}, "spec.containers[0].securityContext.privileged"),
        ({}, {"volumes": [{"name": "v", "nfs": {}}]}, "spec.volumes[0].nfs"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/x"}]}, {}, "spec.containers[0].volumeMounts[0].name"),
        ({"args": ["x", "a\0b"]}, {}, "spec.containers[0].args[1]"),
        ({"workingDir": "/a\0b"}, {}, "spec.containers[0].workingDir"),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "a\0b"}]},
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            "spec.containers[0].volumeMounts[0].subPath",
        ),
        (
            {},
            {"volumes": [{"name": "v", "configMap": {"items": [{"key": "k", "path": "a\0b"}]}}]},
            "spec.volumes[0].configMap.items[0].path",
        ),
        (
            {},
            {"initContainers": [{"name": "i", "command": ["x"], "restartPolicy": "Always"}]},
            "spec.initContainers[0].restartPolicy",
        ),
    ],
)
def test_refusals_name_the_field(container: dict[str, Any], spec: dict[str, Any], path: str) -> None:
    """A field that the embedded cluster does not support is rejected with its path."""
    assert [one.partition(":")[0] for one in refusals(container, **spec)] == [path]


def test_without_mount_namespaces_only_volumes_in_place_work() -> None:
    """On a machine that allows no mounts, a hostPath at its own path is accepted, and any other volume is
    rejected."""
    spec: Any = {"volumes": [{"name": "h", "hostPath": {"path": "/data/"}}, {"name": "e", "emptyDir": {}}]}
    here = {"volumeMounts": [{"name": "h", "mountPath": "/data"}]}
    there = {"volumeMounts": [{"name": "h", "mountPath": "/other"}, {"name": "e", "mountPath": "/e"}]}
    read_only = {"volumeMounts": [{"name": "h", "mountPath": "/data", "readOnly": True}]}

    assert refusals(here, mounts=False, **spec) == []
    assert len(refusals(there, mounts=False, **spec)) == 2
    assert len(refusals(read_only, mounts=False, **spec)) == 1


def test_published_files_change_all_at_once(tmp_path: Path) -> None:
    """A volume of a ConfigMap has exactly the files of the ConfigMap. A change replaces all of them by one
    rename."""
    volumes._publish(tmp_path, {"a": b"1", "deep/b": b"2"})
    first = (tmp_path / "..data").readlink()
    volumes._publish(tmp_path, {"a": b"1", "deep/b": b"2"})
    same = (tmp_path / "..data").readlink()
    volumes._publish(tmp_path, {"a": b"3"})

    assert first == same
    assert sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith("..")) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"3"
    assert not (tmp_path / first).exists()


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"1\n2\n3\n", 2, b"2\n3\n"),
        (b"1\n2\n3", 2, b"2\n3"),
        (b"1\n2\n3\n", 9, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * 200_000 + b"\nend\n", 1, b"end\n"),
    ],
)
def test_the_last_lines_of_a_log(tmp_path: Path, content: bytes, lines: int, expected: bytes) -> None:
    """The tail of a log starts at the beginning of a line, whatever its size and end."""
    log = tmp_path / "log"
    log.write_bytes(content)

    assert content[logs._start(LogFiles(str(log)), lines) :] == expected


def record_output(folder: Path, *pieces: bytes) -> tuple[Attempt, list[datetime]]:
    """An attempt with an output that came in these pieces, and a time after each of them."""
    attempt = Attempt(folder, 0, "u/main")
    attempt.folder.mkdir()
    after = []
    for piece in pieces:
        read_end, write_end = os.pipe()
        os.write(write_end, piece)
        os.close(write_end)
        log_files.log_output(read_end, str(attempt.log))
        os.close(read_end)
        after.append(datetime.now(UTC))
    return attempt, after


def test_a_line_has_the_time_of_its_first_byte(tmp_path: Path) -> None:
    """A line that is written in pieces has the time of the first. A time between the pieces selects from the
    next whole line."""
    attempt, after = record_output(tmp_path, b"a\nbegun", b" ended\r\n", b"z")
    times = logs.LineTimes(attempt)
    content = attempt.log.read_bytes()
    stamps = [line.partition(b" ") for line in times.stamp(content, 0, begins_line=True).splitlines(True)]
    since = [content[logs._first_since(attempt.output, times, time) :] for time in after]

    assert [rest for _, _, rest in stamps] == [b"a\n", b"begun ended\r\n", b"z"]
    assert stamps[0][0] == stamps[1][0] < stamps[2][0]
    assert datetime.fromisoformat(stamps[1][0].decode()) <= after[0]
    assert since == [b"z", b"z", b""]


def test_a_log_without_times_counts_as_written_at_the_start(tmp_path: Path) -> None:
    """The output of a container that an earlier release started has no times, and is shown completely."""
    attempt = Attempt(tmp_path, 0, "u/main")
    attempt.folder.mkdir()
    attempt.log.write_bytes(b"a\nb\n")
    (attempt.folder / "shim.json").write_text('{"pid": 1, "start": 1, "startedAt": 1e9}')
    times = logs.LineTimes(attempt)
    start = datetime.fromtimestamp(1e9, UTC)

    assert times.stamp(b"b\n", 2, begins_line=True) == b"2001-09-09T01:46:40.000000000Z b\n"
    assert logs._first_since(attempt.output, times, start) == 0
    assert logs._first_since(attempt.output, times, start + timedelta(seconds=1)) == 4


def test_a_log_that_is_not_there_yet_is_empty_since_any_time(tmp_path: Path) -> None:
    """If the log file does not exist yet, because the container is just starting, its log is empty since any
    time."""
    attempt = Attempt(tmp_path, 0, "u/main")
    times = logs.LineTimes(attempt)

    for since in (datetime.fromtimestamp(0, UTC), datetime.now(UTC) + timedelta(hours=1)):
        assert logs._first_since(attempt.output, times, since) == 0


def test_a_container_that_never_started_has_no_log() -> None:
    """The log of a container that never started is a 400 with the kubelet's message."""

    async def first() -> bytes:
        return await anext(logs.read(LogRequest("default", "p", "u", "main"), None))

    with pytest.raises(ApiError, match="waiting to start: ContainerCreating"):
        asyncio.run(first())
