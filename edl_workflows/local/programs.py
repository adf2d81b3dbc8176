"""Removes the files of programs that travel with their jobs when no process needs them any more.

The agent writes a program into a folder of the user below the folder for temporary files, by its digest
(`edl_workflows.training.program`). On a real cluster that is inside the container and ends with it. Pods of
embedded clusters share the machine's, and so do several clusters of one user.
"""

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path

import psutil

from edl_workflows.core.kubernetes import names

_WRITTEN = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".new-"
"""Begins the name of a copy that is being written, or that stands for a damaged one."""


def remove_unused_programs() -> None:
    """Remove the programs that no process of this user runs. A program that a pod needs again is written
    again."""
    with contextlib.suppress(OSError):
        remove_programs(Path(tempfile.gettempdir()), programs_in_use())


def programs_in_use() -> set[str]:
    """The digests of the programs of all running processes.

    The agent has the digest in its environment before it writes the program, and while the program runs.
    """
    digests = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            digests.add(process.environ().get(names.ENV_PROGRAM_DIGEST, ""))
    return digests - {""}


def remove_programs(base: Path, in_use: AbstractSet[str]) -> None:
    """Remove all programs of this user except those in use.

    Args:
        base: the folder for temporary files.
        in_use: digests. While there are any, unfinished copies stay, too.
    """
    folder = base / f"edl-programs-{os.getuid()}"
    if not _is_own(folder):
        return
    for path in folder.iterdir():
        unfinished = not in_use and path.name.startswith(_UNFINISHED)
        if unfinished or (_WRITTEN.fullmatch(path.name) and path.name not in in_use):
            shutil.rmtree(path, ignore_errors=True)
    if not in_use:
        with contextlib.suppress(OSError):  # it holds something else
            folder.rmdir()


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user and no link."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
