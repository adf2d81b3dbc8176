"""Running a program that travels with its job."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.kubernetes import names
from edl_workflows.training import program as launcher

TEXT = """
import os, sys
from helper import WORD
print(WORD, sys.argv[1:], os.path.basename(__file__), "EDL_PROGRAM" in os.environ)
"""
PROGRAM = TrainingProgram.of_script("train.py", TEXT, {"helper.py": "WORD = 'größer'\n"})


def environment(program: TrainingProgram, folder: Path) -> dict[str, str]:
    own = {names.ENV_PROGRAM: program.text, names.ENV_PROGRAM_DIGEST: program.digest}
    return {**os.environ, **own, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"}


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edl_workflows", "agent", "program", *arguments]
    return subprocess.run(
        command, env=environ, check=False, capture_output=True, encoding="utf-8", timeout=240
    )


def test_the_program_runs_with_its_modules_and_arguments(tmp_path: Path) -> None:
    """The program runs from a file in a folder that only this user can read. Its child processes do not
    inherit its text in the environment."""
    done = run(environment(PROGRAM, tmp_path), "--epochs", "3")

    assert done.stdout.strip() == "größer ['--epochs', '3'] train.py False"
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [one.name for one in folder.iterdir()] == [PROGRAM.digest]


def test_packages_are_written_as_folders(tmp_path: Path) -> None:
    """The program imports the modules of a package that travels with it."""
    packages = {"models/__init__.py": "from .parts.net import SIZE\n", "models/parts/net.py": "SIZE = 3\n"}
    program = TrainingProgram.of_script("train.py", "import models\nprint(models.SIZE)\n", packages)

    assert run(environment(program, tmp_path)).stdout.strip() == "3"


def test_the_programs_exit_code_is_kept(tmp_path: Path) -> None:
    """The program's exit code becomes that of the launcher, by which the agent judges the program."""
    assert (
        run(environment(TrainingProgram.of_script("train.py", "raise SystemExit(42)"), tmp_path)).returncode
        == 42
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({names.ENV_PROGRAM: PROGRAM.text.replace("größer", "kleiner")}, "not the one that was submitted"),
        ({names.ENV_PROGRAM: ""}, "was not submitted with a program"),
        ({names.ENV_PROGRAM_DIGEST: ""}, "was not submitted with a program"),
    ],
)
def test_another_program_is_not_run(tmp_path: Path, change: dict[str, str], message: str) -> None:
    """A program that differs from the submitted one does not run, and the log says why."""
    done = run(environment(PROGRAM, tmp_path) | change)

    assert done.returncode == launcher.INVALID
    assert message in done.stderr
    assert not done.stdout


def test_processes_that_write_it_at_the_same_time(tmp_path: Path) -> None:
    """Processes that write the program at the same time all find it complete, and leave no other files."""
    with ThreadPoolExecutor(8) as pool:
        files = list(pool.map(lambda _: launcher.write_program(PROGRAM, tmp_path), range(32)))

    assert set(files) == {tmp_path / PROGRAM.digest / "train.py"}
    assert [one.name for one in tmp_path.iterdir()] == [PROGRAM.digest]


def test_a_damaged_copy_is_not_run(tmp_path: Path) -> None:
    """A program file that is incomplete or was edited is not run."""
    first = launcher.write_program(PROGRAM, tmp_path)
    first.write_text("print('torn')")
    second = launcher.write_program(PROGRAM, tmp_path)

    assert second.read_text() == TEXT
    assert second != first


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """A link or a folder that others can write to is rejected, so that another user of the machine can't
    replace the program."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / f"edl-programs-{os.getuid()}"
    folder.symlink_to(elsewhere)
    with pytest.raises(InvalidError, match="not a private folder"):
        launcher.private_folder(tmp_path)
    folder.unlink()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InvalidError, match="not a private folder"):
        launcher.private_folder(tmp_path)
