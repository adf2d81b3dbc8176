"""A PostgreSQL server from Debian's package, in a folder of its own, which listens only on a socket in that
folder."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

USER = "postgres"


def programs() -> Path | None:
    """The folder of the newest installed version; None if there is none."""
    found = Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    return max((file.parent for file in found), key=lambda folder: int(folder.parent.name), default=None)


@contextlib.contextmanager
def server() -> Iterator[Path]:
    """Run a server. Yields the folder of its socket. Its durability settings are the defaults of
    PostgreSQL."""
    bin_folder = programs()
    assert bin_folder is not None, "PostgreSQL is needed: apt-get install postgresql"
    folder = Path(tempfile.mkdtemp(prefix="edl-pg-"))  # short: a socket's path has at most 107 characters
    folder.chmod(0o755)
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    data = folder / "data"
    options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c unix_socket_permissions=0777"
    control: list[str | Path] = [bin_folder / "pg_ctl", "--pgdata", data, "--wait", "--timeout", "120"]
    try:
        _run(
            bin_folder / "initdb",
            "--pgdata",
            data,
            "--username",
            USER,
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
        )
        _run(*control, "--log", folder / "log", "--options", options, "start")
        yield folder
    finally:
        if (data / "postmaster.pid").exists():
            _run(*control, "--mode", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def create_database(folder: Path, name: str) -> str:
    """Create a database. Returns its URL."""
    bin_folder = programs()
    assert bin_folder is not None
    _run(bin_folder / "createdb", "--host", folder, "--username", USER, name)
    return f"postgresql://{USER}@/{name}?host={quote(str(folder))}"


def _run(*words: str | Path) -> None:
    """Run a program as the user who owns the server: PostgreSQL does not run as root."""
    command = [str(word) for word in words]
    if os.geteuid() == 0:
        command = ["runuser", "-u", USER, "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=240)
    assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
