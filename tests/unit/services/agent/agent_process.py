"""The agent as a process, with small training programs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.unit.training.fake_master import eventually

Agent = subprocess.Popen[str]
Start = Callable[..., Agent]

AGENT = (sys.executable, "-m", "edl_workflows", "agent", "run")
NOTE = """
import os, pathlib, sys, time
note = pathlib.Path(sys.argv[1], os.environ["EDL_CLUSTER_VERSION"])
note.write_text(f"{os.getpid()} {os.environ['TF_CONFIG']}")
time.sleep(600)
"""
"""Leaves its process id under the name of its version."""
SAVES_ON_SIGTERM = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep({seconds})
    pathlib.Path(sys.argv[1], "saved").write_text("yes")
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
"""


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the file is opened, or before it is read
        return False


def pid_of(folder: Path, version: int) -> int:
    """Process id that the program of a version has noted."""
    file = folder / str(version)
    return int(
        eventually(lambda: file.exists() and file.read_text(), what=f"version {version} runs").split()[0]
    )
