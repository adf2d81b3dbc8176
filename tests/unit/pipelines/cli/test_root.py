"""The root of the command line: its commands, errors and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edl_workflows import __version__
from edl_workflows.core import exceptions
from edl_workflows.pipelines.cli import main
from edl_workflows.pipelines.cli.lazy import Command
from edl_workflows.pipelines.cli.options import OutputFormat
from edl_workflows.pipelines.cli.output import Table, emit
from edl_workflows.pipelines.cli.root import COMMANDS, exit_code


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`edl --version` prints the version of the package."""
    assert main(["--version"]) == 0
    assert f"edl {__version__}\n" == capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    """`edl --help` names every command, and imports neither the Kubernetes client nor pydantic, FastAPI or
    structlog."""
    code = (
        "import sys; from edl_workflows.pipelines.cli import main; main(['--help']); "
        "print([m for m in sys.modules if m.split('.')[0] in ('kubernetes', 'pydantic', 'fastapi', "
        "'structlog')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)

    assert run.stdout.rstrip().endswith("[]"), run.stdout[-500:] + run.stderr
    assert all(command.name in run.stdout for command in COMMANDS)


def test_the_first_process_of_a_container_ends_on_sigterm() -> None:
    """Linux lets it ignore a signal that it does not handle. While a command is imported, nothing else
    handles SIGTERM."""
    code = (
        "import os, signal, sys; pid = os.getpid(); os.getpid = lambda: 1; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "import edl_workflows.services.agent.command as command; "
        "command.main = lambda arguments: os.kill(pid, signal.SIGTERM) or 0; "
        "from edl_workflows.pipelines.cli import main; sys.exit(main(['agent', 'run']))"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=240).returncode == 143


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_is_there(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """Each row of the table leads to a command with a help page."""
    assert main([command.name, "--help"]) == 0
    assert f"edl {command.name}" in capsys.readouterr().out


def test_agent_needs_no_typer(capsys: pytest.CaptureFixture[str]) -> None:
    """`edl agent` uses the agent's own parser, which the base install contains."""
    with pytest.raises(SystemExit):
        main(["agent", "run", "--help"])

    assert "edl agent run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.InvalidError("x"), 2),
        (exceptions.ManifestError("x", []), 2),
        (exceptions.NotFoundError("x"), 3),
        (exceptions.ConflictError("x"), 4),
        (exceptions.AlreadyExistsError("x"), 4),
        (exceptions.ForbiddenError("x"), 5),
        (exceptions.UnavailableError("x"), 6),
        (exceptions.JobFailedError("x"), 7),
        (exceptions.JobDisappearedError("x"), 7),
        (exceptions.StageTimeoutError("x"), 8),
        (exceptions.QueueTimeoutError("x"), 8),
        (exceptions.CheckpointError("x"), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_exit_codes(error: Exception, code: int) -> None:
    """Each error and its subclasses have the documented exit code."""
    assert code == exit_code(error)


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An error is one line on stderr, without a traceback."""
    assert main(["controller", "run", "--kubeconfig", str(tmp_path / "absent")]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("edl: cannot read the kubeconfig")


@pytest.mark.parametrize("arguments", [["nonsense"], ["controller", "run", "--workers", "0"], []])
def test_wrong_usage(arguments: list[str]) -> None:
    """Wrong usage exits with code 2."""
    assert main(arguments) == 2


def test_missing_extra() -> None:
    """A command whose extra is not installed says what to install."""
    block = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == {name!r}:\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from edl_workflows.pipelines.cli import main\n"
        "sys.exit(main(['controller', 'run']))\n"
    )
    for name in ("typer", "structlog"):
        run = subprocess.run(
            [sys.executable, "-c", block.format(name=name)], capture_output=True, text=True, timeout=240
        )
        assert "pip install 'edl-workflows[controller]'" in run.stderr, run.stderr
        assert run.returncode in (1, 2)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (OutputFormat.JSON, json.dumps([{"name": "a", "n": 1}], indent=2) + "\n"),
        (OutputFormat.YAML, "- name: a\n  n: 1\n"),
        (OutputFormat.TABLE, "NAME   N\na      1\n"),
    ],
)
def test_output(output: OutputFormat, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same data is printed as a table, JSON or YAML."""
    emit(output, [{"name": "a", "n": 1}], Table(["name", "n"], [["a", 1]]))

    assert expected == capsys.readouterr().out


def test_completion_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    """The root offers shell completion."""
    assert main(["--help"]) == 0
    assert "--install-completion" in capsys.readouterr().out
