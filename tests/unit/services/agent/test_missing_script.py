"""A command that names a Python script which is not there: a mistake that no other attempt mends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.protocol.nodes import ExitReport
from edl_workflows.services.agent.processes import TrainingProcess
from edl_workflows.training.program import private_folder, write_program
from tests.unit.training.fake_master import FakeMaster, cluster

EXITS_WITH_2 = "import sys; sys.exit(2)"
SAYS_SO_AND_EXITS_WITH_2 = """
import sys
sys.exit(print("python: can't open file '/data.py': [Errno 2] No such file or directory") or 2)
"""


def ended(command: list[str], env: dict[str, str] | None = None) -> tuple[int | None, str]:
    """The exit code of a training process, and its output."""
    process = TrainingProcess(1, command, {**os.environ, **(env or {})}, lambda: None)
    assert process.wait(60.0)
    return process.code, process.last_lines


@pytest.mark.parametrize("options", [[], ["-u"], ["-u", "-OO", "-bB"]])
def test_a_script_that_is_not_there_is_a_fatal_error(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process counts as ended with 1, as by an uncaught error, and the last line names the script and the
    directory."""
    monkeypatch.chdir(tmp_path)
    code, said = ended([sys.executable, *options, "nosuch.py", "--steps", "3"])
    assert code == 1
    assert "can't open file" in said
    assert said.splitlines()[-1] == (
        f"edl agent: there is no file nosuch.py in the working directory {tmp_path}; is the script in the "
        "image or a volume, and is the command's path to it right?"
    )


def test_an_absolute_path_is_named_as_such() -> None:
    """The message does not speak of the working directory if that has nothing to do with it."""
    code, said = ended([sys.executable, "/nosuch/train.py"])
    assert code == 1
    assert said.splitlines()[-1].startswith("edl agent: there is no file /nosuch/train.py; is the script in")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("open('data/digits.csv')", id="open"),
        pytest.param("import os; os.listdir('data/digits.csv')", id="a folder"),
        pytest.param(
            "import atexit; atexit.register(print, '[W123] Warning: not destroyed'); open('data/digits.csv')",
            id="output after it",
        ),
        pytest.param(
            "import sys; sys.excepthook = lambda _, error, __: print("
            "f'[rank0]: FileNotFoundError: {error}') or exit(1)\nopen('data/digits.csv')",
            id="PyTorch's prefix",
        ),
    ],
)
def test_a_relative_path_that_is_not_there_gets_a_hint(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line names the path and the directory in which it was looked for, and what to do: on a
    cluster the files beside the script are not there. The exit code is the program's."""
    monkeypatch.chdir(tmp_path)
    code, said = ended([sys.executable, "-c", program])
    assert code == 1
    assert said.splitlines()[-1] == (
        f"edl agent: there is no data/digits.csv in the working directory {tmp_path}; files beside the "
        "script don't travel with it: put them into the image or a volume, and give their absolute path"
    )


def test_a_path_beside_a_program_that_travels_gets_a_hint(tmp_path: Path) -> None:
    """A program that looks for a file beside itself: there is only the text that travelled."""
    text = "from pathlib import Path\nopen(Path(__file__).parent / 'data' / 'points.npy')\n"
    program = TrainingProgram(main="train.py", files={"train.py": text})
    file = write_program(program, private_folder(tmp_path))
    code, said = ended([sys.executable, str(file)])
    assert code == 1
    assert said.splitlines()[-1] == (
        f"edl agent: there is no {file.parent}/data/points.npy: the script runs as a copy in that folder, "
        "without the files beside it; put them into the image or a volume, and give their absolute path, or "
        f"one relative to the working directory {Path.cwd()}"
    )


def test_a_coordinator_without_workers_gets_a_hint() -> None:
    """The last line says where a program with TensorFlow's ParameterServerStrategy runs."""
    code, said = ended([sys.executable, "-c", "raise ValueError('There must be at least one worker.')"])
    assert code == 1
    assert said.splitlines()[-1].endswith("ParameterServerStrategy runs as it is in a TFJob")


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("open('/nosuch/digits.csv')", id="an absolute path"),
        pytest.param("print(\"FileNotFoundError: [Errno 2] No such file or directory: 'a'\")", id="success"),
        pytest.param("try:\n open('a')\nexcept OSError as e:\n raise ValueError('b') from e", id="handled"),
        pytest.param("import os; os.mkdir('d'); os.chdir('d'); open('../../there')", id="there by now"),
    ],
)
def test_other_errors_get_no_hint(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that has nothing to do with the working directory, and an error that is not the cause."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder.parent.parent / "there").touch()
    monkeypatch.chdir(folder)
    assert "edl agent" not in ended([sys.executable, "-c", program])[1]


@pytest.mark.parametrize(
    "command",
    [
        ["train.py"],
        ["-c", EXITS_WITH_2, "nosuch.py"],
        ["-c", SAYS_SO_AND_EXITS_WITH_2, "nosuch.py"],
        ["-m", "timeit", "--nosuch", "nosuch.py"],
        ["-W", "error", "nosuch.py"],
        ["-X", "dev", "nosuch.py"],
        ["-uXdev", "nosuch.py"],
        ["-", "nosuch.py"],
        ["nosuch"],
        ["--nosuch", "nosuch.py"],
        ["-V", "nosuch.py"],
    ],
)
def test_other_commands_keep_their_exit_code(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that is there and exits with 2, and every command that is not plainly a script of Python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(EXITS_WITH_2)
    expected = subprocess.run([sys.executable, *command], stdin=subprocess.DEVNULL, check=False)
    code, said = ended([sys.executable, *command])
    assert code == expected.returncode
    assert "edl agent" not in said


def test_a_script_that_says_it_found_no_file_keeps_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that a script did not find may be there at the next attempt, even if it speaks of it as Python
    speaks of a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SAYS_SO_AND_EXITS_WITH_2)
    assert ended([sys.executable, "train.py"])[0] == 2


def test_a_working_directory_that_is_gone_ends_the_process_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent can't say where it looked, and leaves Python's exit code as it is."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert ended([sys.executable, "nosuch.py"])[0] == 2


def test_a_wrapper_that_changes_the_directory_is_believed(tmp_path: Path) -> None:
    """A program of the name python may find a script elsewhere; whatever it ends with is its own."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\ncd {tmp_path} && exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "elsewhere.py").write_text(EXITS_WITH_2)
    assert ended([str(wrapper), "elsewhere.py"])[0] == 2


@pytest.mark.slow
def test_the_master_hears_of_a_fatal_error(
    master: FakeMaster, pod_env: dict[str, str], tmp_path: Path
) -> None:
    """The agent reports exit code 1 with the message, and exits with it, so that the node is not replaced."""
    master.say(active=cluster(1))
    agent = [sys.executable, "-m", "edl_workflows", "agent", "run", "--", sys.executable, "nosuch.py"]
    root = str(Path(__file__).parents[4])
    env = {**os.environ, **pod_env, "PYTHONPATH": root}
    found = subprocess.run(agent, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert f"no file nosuch.py in the working directory {tmp_path}" in found.stdout
    (report,) = master.got(ExitReport)
    assert report.code == 1
    assert f"no file nosuch.py in the working directory {tmp_path}" in report.last_lines
