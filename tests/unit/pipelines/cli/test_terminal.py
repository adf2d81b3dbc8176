"""The output of `edl` cannot control the terminal, whatever pods and other users write into objects and
logs."""

import ast
import io
import json
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from edl_workflows.core import exceptions
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines import cli
from edl_workflows.pipelines.cli import output
from edl_workflows.pipelines.cli.jobs import logs as log_command
from edl_workflows.pipelines.cli.jobs import submit
from edl_workflows.pipelines.cli.options import LogFormat, OutputFormat, configure_logs
from edl_workflows.pipelines.cli.root import run
from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import elastic_job
from tests.unit.pipelines.cli.edl_command import Edl

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31mfailed\rSucceeded\x08\x7f\u202edne\u2028end"
"""Clears the screen, sets the window's title, rings, colours by C1, overwrites its line, turns the direction
of text."""
VISIBLE = r"\x1b[2J\x1b]0;title\x07\x9b31mfailed\x0dSucceeded\x08\x7f\u202edne\u2028end"
BEGAN = "2026-01-01T00:00:00Z"

PRINTERS = {"echo", "secho", "print", "pprint", "Console"}


@pytest.fixture
def edl(edl_alone: Edl) -> Edl:
    """Runs `edl` where each status stays as the test writes it."""
    return edl_alone


@pytest.fixture
def job(cluster: Cluster) -> str:
    """A job whose status is hostile wherever it contains free text."""
    client.create(cluster, elastic_job("mnist"))
    condition = {"type": "Running", "status": "True", "lastTransitionTime": BEGAN}
    restart = {"time": BEGAN, "subject": HOSTILE, "cause": "Killed", "message": HOSTILE}
    status = {
        "phase": "Running",
        "observedGeneration": 1,
        "conditions": [{**condition, "reason": HOSTILE, "message": f"{HOSTILE}\nPhase:  Succeeded"}],
        "replicaStatuses": {HOSTILE: {"desired": 1, "ready": 1, "active": 1}},
        "warnings": [f"{HOSTILE}\nElasticJob x/mnist is Succeeded"],
        "checkpoint": {"uri": HOSTILE, "step": 1},
        "autoscaling": {"optimizer": "local", "reasons": {HOSTILE: HOSTILE}, "notes": [HOSTILE]},
        "restarts": {"counts": {HOSTILE: 1}, "recent": [restart]},
        "failure": {"reason": "x", "pod": HOSTILE, "lastLines": HOSTILE},
        "history": [{"time": BEGAN, "step": n, "records": n, "nodes": {HOSTILE: 1}} for n in range(2)],
    }
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)
    return "mnist"


@pytest.fixture
def _logging() -> Iterator[None]:
    """Restore the logging of the process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def raw_controls(text: str, kept: str = "\n") -> set[str]:
    """The characters of a text that a terminal interprets as commands."""
    return {one for one in text if unicodedata.category(one) in {"Cc", "Cf", "Zl", "Zp", "Cs"}} - set(kept)


@pytest.mark.parametrize(
    "command",
    [
        ["get"],
        ["describe", "mnist"],
        ["wait", "mnist", "--for", "Running", "--timeout", "20"],
        ["timeline", "mnist"],
        ["plan", "mnist", "--explain"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("form", OutputFormat)
def test_a_hostile_status_is_shown_harmlessly(
    edl: Edl, job: str, command: list[str], form: OutputFormat
) -> None:
    """Control characters are escaped in the text output. JSON and YAML have escapes of their own."""
    assert job == "mnist"
    code, out, err = edl(*command, "-o", form)

    assert (code, raw_controls(out), raw_controls(err)) == (0, set(), set()), err
    if form is OutputFormat.TABLE:
        assert VISIBLE in out


def test_a_line_break_makes_no_second_line(edl: Edl, job: str) -> None:
    """A reported text with a line break can't look like a line of the command itself."""
    _, out, _ = edl("describe", job)
    _, _, err = edl("wait", job, "--for", "Succeeded", "--timeout", "0.1")

    assert [line for line in out.splitlines() if line.startswith("Phase:")] == ["Phase:       Running"]
    assert f"warns: {VISIBLE}\\x0aElasticJob x/mnist is Succeeded" in err
    assert not [line for line in err.splitlines() if line.startswith("ElasticJob x/mnist")]


def test_errors_are_shown_harmlessly(edl: Edl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters are escaped in errors that quote a manifest or a server's response, and no further
    line of an error begins as a line of the program does."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(elastic_job(HOSTILE)))
    code, out, err = edl("submit", str(manifest))
    assert (code, out, raw_controls(err)) == (2, "", set())

    def refuse(*_: object, **__: object) -> None:
        raise exceptions.ForbiddenError(f"refused: {HOSTILE}\nedl: done")

    monkeypatch.setattr(submit, "read_manifests", refuse)
    code, _, err = edl("submit", str(manifest))
    assert (code, err) == (5, f"edl: refused: {VISIBLE}\n  edl: done\n")


def test_text_that_is_no_unicode_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A lone surrogate, which JSON can contain but UTF-8 can't encode, does not end the command."""
    output.emit(OutputFormat.TABLE, None, output.Table(["name"], [["\ud83d"]]))
    assert capsys.readouterr().out == "NAME\n\\ud83d\n"


@pytest.mark.parametrize("form", [OutputFormat.JSON, OutputFormat.YAML])
def test_programs_read_what_was_there(form: OutputFormat, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML escape all control characters themselves, so that programs lose nothing."""
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA1), 0x202E, 0x2028, 0xFEFF, 0xE0001]))
    data = {every: every}
    output.emit(form, data, output.Table((), ()))
    printed = capsys.readouterr().out

    assert not raw_controls(printed)
    assert yaml.safe_load(printed) == data if form is OutputFormat.YAML else json.loads(printed) == data


def test_columns_fit_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A column is as wide as its escaped text."""
    output.emit(OutputFormat.TABLE, None, output.Table(["a", "b"], [["\x1b\n\t", 1], ["x", 2]]))
    assert [
        line.rindex(end) for line, end in zip(capsys.readouterr().out.splitlines(), "B12", strict=True)
    ] == [15] * 3


LOG = "10%\r20%\r\n\ta\x1b[31mred\x1b[0m\x07\x9b2J\n"


@pytest.mark.parametrize("follow", [False, True], ids=["so far", "followed"])
@pytest.mark.parametrize("terminal", [False, True], ids=["piped", "terminal"])
def test_logs_are_raw_for_programs_only(
    edl: Edl, monkeypatch: pytest.MonkeyPatch, *, follow: bool, terminal: bool
) -> None:
    """A file gets the unchanged output. On a terminal, all control characters except line breaks, tabs and
    carriage returns are escaped."""
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    monkeypatch.setattr(log_command, "_pods_by_node", lambda *_: {"worker-0": pod})
    monkeypatch.setattr(logs, "read", lambda *_, **__: LOG)
    monkeypatch.setattr(logs, "follow", lambda *_, **__: iter(LOG.removesuffix("\n").split("\n")))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    _, out, _ = edl("logs", "mnist", "worker-0", *(["--follow"] if follow else []))

    escaped = "10%\r20%\r\n\ta\\x1b[31mred\\x1b[0m\\x07\\x9b2J\n"
    assert out == (escaped if terminal else LOG)


OWN = (
    '{"event": "started\\u001b[2J", "level": "info", "logger": "edl_workflows.services.agent.supervisor", '
    '"timestamp": "2026-01-01T00:00:00+00:00", "pod": "p", "rank": 0, "version": 1}'
)
FOREIGN = '{"event":  "epoch", "level": "info", "pod": "p"}'


@pytest.mark.parametrize("follow", [False, True], ids=["so far", "followed"])
@pytest.mark.parametrize("terminal", [False, True], ids=["piped", "terminal"])
def test_agents_lines_are_readable_on_a_terminal(
    edl: Edl, monkeypatch: pytest.MonkeyPatch, *, follow: bool, terminal: bool
) -> None:
    """On a terminal, the agent's JSON lines are rendered and the program's lines are not. A file gets the
    unchanged output."""
    pod: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    monkeypatch.setattr(log_command, "_pods_by_node", lambda *_: {"worker-0": pod})
    monkeypatch.setattr(logs, "read", lambda *_, **__: f"{OWN}\n{FOREIGN}\n")
    monkeypatch.setattr(logs, "follow", lambda *_, **__: iter([OWN, FOREIGN]))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    _, out, _ = edl("logs", "mnist", "worker-0", *(["--follow"] if follow else []))

    rendered = "2026-01-01 00:00:00.000Z edl-agent INFO started\\x1b[2J rank=0 version=1"
    assert out == (f"{rendered}\n{FOREIGN}\n" if terminal else f"{OWN}\n{FOREIGN}\n")


def node_pod(role: str, index: int, state: str) -> dict[str, Any]:
    """A pod of an ElasticJob whose container is in this state."""
    labels = {names.JOB_LABEL: "mnist", names.REPLICA_TYPE_LABEL: role, names.REPLICA_INDEX_LABEL: str(index)}
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {state: {}}}]}
    if state == "terminated":
        status["phase"] = "Failed"
    spec = {"containers": [{"name": "main"}]}
    return {"metadata": {"name": f"{role}-{index}", "labels": labels}, "spec": spec, "status": status}


def node_pods(*states: tuple[str, int, str]) -> dict[str, dict[str, Any]]:
    """Pods by node."""
    return {f"{role}-{index}": node_pod(role, index, state) for role, index, state in states}


@pytest.mark.parametrize("follow", [False, True], ids=["so far", "followed"])
def test_logs_are_those_of_the_nodes_that_train(
    edl: Edl, monkeypatch: pytest.MonkeyPatch, *, follow: bool
) -> None:
    """Without a node, the logs are those of the chief and the workers that run, with their names; the
    master's comes on request."""
    pods = node_pods(
        ("dlrover-master", 0, "terminated"), ("dlrover-master", 1, "running"), ("ps", 0, "running"),
        ("worker", 0, "terminated"), ("worker", 1, "running"), ("worker", 2, "running"),
    )  # fmt: skip
    monkeypatch.setattr(log_command, "_pods_by_node", lambda *_: pods)
    monkeypatch.setattr(logs, "read", lambda _, pod, **__: f"of {pod}\nend\n")
    monkeypatch.setattr(logs, "follow", lambda _, pod, **__: iter([f"of {pod}", "end"]))
    options = ["--follow"] if follow else []

    _, out, _ = edl("logs", "mnist", *options)
    expected = [f"worker-{n} | {text}" for n in (1, 2) for text in (f"of worker-{n}", "end")]
    assert sorted(out.splitlines()) == sorted(expected)
    assert edl("logs", "mnist", "--master", *options)[1] == "of dlrover-master-1\nend\n"
    assert edl("logs", "mnist", "worker-0", *options)[1] == "of worker-0\nend\n"
    assert edl("logs", "mnist", "worker-0", "--master")[0] == 2


def test_logs_before_and_after_the_training(edl: Edl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a node has started, the log is the master's; after the last has ended, all that have trained
    are shown."""
    pods = node_pods(("dlrover-master", 0, "running"), ("worker", 0, "waiting"))
    monkeypatch.setattr(log_command, "_pods_by_node", lambda *_: pods)
    monkeypatch.setattr(logs, "read", lambda _, pod, **__: f"of {pod}\n")

    _, out, err = edl("logs", "mnist")
    assert out == "of dlrover-master-0\n"
    assert "this is the master's log" in err

    pods |= node_pods(("ps", 0, "running"))
    assert edl("logs", "mnist")[1] == "of dlrover-master-0\n"
    pods |= node_pods(("worker", 0, "terminated"), ("worker", 1, "terminated"))
    assert edl("logs", "mnist")[1] == "worker-0 | of worker-0\nworker-1 | of worker-1\n"


def test_logs_of_a_worker_that_crashes_again_and_again() -> None:
    """While the kubelet waits before it starts a worker again, a server that runs does not take its place."""
    kind = kind_of("TFJob")
    pods = node_pods(("ps", 0, "running"), ("worker", 0, "waiting"))
    for node, pod in pods.items():
        role, _, index = node.partition("-")
        pod["metadata"]["labels"] |= {kind.labels[1]: role, kind.labels[2]: index}

    assert log_command.choose_nodes(kind, pods, "", master=False) == ["worker-0"]


@pytest.mark.usefixtures("_logging")
def test_console_logs_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control characters are escaped in the event, fields, lists and tracebacks of console logs."""
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure_logs(LogFormat.CONSOLE, verbose=False, whose={"job": HOSTILE})
    log = structlog.get_logger("x")
    event = f"{HOSTILE}\nsecond"
    log.error(event, said=HOSTILE, several=[HOSTILE], exc_info=ValueError(HOSTILE))
    log.info("plain", cause=HOSTILE.replace("\x1b", ""))
    printed = stderr.getvalue()

    assert VISIBLE in printed
    assert "ValueError: " + VISIBLE in printed
    assert f"{VISIBLE}\\x0asecond" in printed
    assert not raw_controls(printed) - {"\x1b"}
    assert not any(foreign in printed for foreign in ("\x1b[2J", "\x1b]"))


def test_findings_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters of other users' manifests are escaped in the text and JSON of `edl argo lint`."""
    manifest = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "hello"},
        "spec": {
            "entrypoint": HOSTILE,
            "templates": [{"name": "main", HOSTILE: 1, "container": {"image": "b"}}],
        },
    }
    file = tmp_path / "hostile.yaml"
    file.write_text(yaml.safe_dump(manifest))
    for form in ("text", "json"):
        assert run(["argo", "lint", str(file), "-o", form]) == 2
        printed = capsys.readouterr().out
        assert not raw_controls(printed)
        assert "[2J" in printed


def test_commands_print_by_the_one_module_only() -> None:
    """No command prints except through `edl_workflows.pipelines.cli.output`, which escapes control
    characters. The package's `__init__` is exempt, since it prints before typer is known to be installed."""
    folder = Path(cli.__file__).parent
    calls = {
        f"{file.name}:{node.lineno}"
        for file in folder.rglob("*.py")
        if file.name not in {"output.py", "__init__.py"}
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PRINTERS)
        or (isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.stdout", "sys.stderr.write"})
    }
    assert calls == set()
