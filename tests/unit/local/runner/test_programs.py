"""Files of programs that travel with their jobs: removed when no process needs them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.kubernetes import names
from edl_workflows.local.programs import programs_in_use, remove_programs
from edl_workflows.training.program import private_folder, write_program

ONE, OTHER = (TrainingProgram.of_script("train.py", f"print({number})") for number in range(2))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The agent's folder with two programs and a copy that was not completed."""
    folder = private_folder(tmp_path)
    for program in (ONE, OTHER):
        write_program(program, folder)
    (folder / ".new-x").mkdir()
    return folder


@pytest.fixture
def process() -> Iterator[None]:
    """A process of a pod that runs the first program."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    environment = {**os.environ, names.ENV_PROGRAM_DIGEST: ONE.digest}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()
        yield
        running.kill()


@pytest.mark.usefixtures("process")
def test_a_process_tells_which_program_it_runs() -> None:
    """The programs of all processes of this user are in use, of whichever cluster their pod is."""
    assert ONE.digest in programs_in_use()
    assert OTHER.digest not in programs_in_use()


def test_other_programs_are_removed(tmp_path: Path, files: Path) -> None:
    """The program of a running process stays, and a copy that may be being written."""
    remove_programs(tmp_path, {ONE.digest})

    assert {one.name for one in files.iterdir()} == {ONE.digest, ".new-x"}
    assert (files / ONE.digest / "train.py").read_text() == "print(0)"


@pytest.mark.usefixtures("files")
def test_nothing_stays_when_no_program_runs(tmp_path: Path) -> None:
    """Without running programs the folder goes, too. A second call finds nothing to do."""
    for _ in range(2):
        remove_programs(tmp_path, set())
        assert not list(tmp_path.iterdir())


def test_only_what_the_agent_wrote_is_removed(tmp_path: Path, files: Path) -> None:
    """Files of somebody else stay, and so does what a link of the folder's name leads to."""
    (files / "notes.txt").write_text("mine")
    remove_programs(tmp_path, set())
    assert [one.name for one in files.iterdir()] == ["notes.txt"]

    other = tmp_path / "other"
    other.mkdir()
    (other / ONE.digest).mkdir()
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / files.name).symlink_to(other)
    remove_programs(tmp_path / "base", set())
    assert (other / ONE.digest).is_dir()
