"""Runs a program that travels with its job: ``edl agent program ARGUMENTS``, under the
agent.

The pod's environment holds the program and its digest (`edl_workflows.core.jobs.elastic_job.program`). The
program is written to files, so that tracebacks show its lines and processes that it spawns can import it, and
is then run in place of this process.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.kubernetes import names

INVALID = 2
"""Exit code of the agent's programs for wrong usage or environment, as argparse's own."""
PROGRAMS = "edl-programs-"
"""How the name of the folder begins in which the programs of a user are."""


def read_program(environ: Mapping[str, str]) -> TrainingProgram:
    """The program in the environment.

    Raises:
        InvalidError: there is none, or it is not the one that was submitted.
    """
    text, digest = environ.get(names.ENV_PROGRAM, ""), environ.get(names.ENV_PROGRAM_DIGEST, "")
    if not text or not digest:
        raise InvalidError(
            f"the environment variables {names.ENV_PROGRAM} and {names.ENV_PROGRAM_DIGEST} are not set: this "
            "pod's job was not submitted with a program"
        )
    if hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() != digest:
        raise InvalidError(
            f"the program in {names.ENV_PROGRAM} is not the one that was submitted: its SHA-256 is not "
            f"{digest}. Was the job's ConfigMap replaced? Submit the job again"
        )
    return TrainingProgram.model_validate_json(text)


def write_program(program: TrainingProgram, folder: Path) -> Path:
    """Write a program to a folder that is named after its digest, and return its main file.

    Several processes may write it at the same time.

    Args:
        program: the program.
        folder: the parent folder.
    """
    target = folder / program.digest
    if _holds(target, program):
        return target / program.main
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    for name, text in program.files.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).write_text(text, encoding="utf-8", newline="")
    with contextlib.suppress(OSError):  # another process was faster, or a file was damaged
        fresh.rename(target)
    if not _holds(target, program):
        target = fresh
    elif fresh.exists():
        shutil.rmtree(fresh, ignore_errors=True)
    return target / program.main


def _holds(folder: Path, program: TrainingProgram) -> bool:
    try:
        return all((folder / name).read_bytes() == text.encode() for name, text in program.files.items())
    except OSError:
        return False


def private_folder(base: Path) -> Path:
    """A folder below `base` that only this user can access.

    Raises:
        InvalidError: somebody else owns it.
    """
    folder = base / f"{PROGRAMS}{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise InvalidError(f"{folder} is not a private folder of this user; remove it")
    return folder


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the program of this pod with these arguments, in place of this process."""
    try:
        program = read_program(os.environ)
        file = write_program(program, private_folder(Path(tempfile.gettempdir())))
    except (EdlError, OSError) as error:
        sys.stderr.write(f"edl-agent: {error}\n")
        raise SystemExit(INVALID) from error
    os.environ.pop(names.ENV_PROGRAM)  # processes that the program starts need no copy
    os.execv(sys.executable, [sys.executable, str(file), *arguments])  # noqa: S606 - no shell is wanted
