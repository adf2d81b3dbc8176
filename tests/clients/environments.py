"""Where the clients, and PyTorch, come from: Python environments built with uv and the program in Go, kept
between runs.

They lie in the user's cache, each by a digest of what it is made of: another version is another folder.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "edl-workflows" / "clients"
_GO_SETTINGS = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
_BUILD_SECONDS = 900


def python_environment(name: str) -> Path:
    """The interpreter of an environment with ``requirements/<name>.txt``."""
    requirements = HERE / "requirements" / f"{name}.txt"

    def build(folder: Path) -> None:
        _run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)], HERE)
        install = ["uv", "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
        _run([*install, "--requirement", str(requirements)], HERE)

    content = requirements.read_bytes() + sys.version.encode()
    return _kept(name, content, build) / "bin" / "python"


def go_program(name: str) -> Path:
    """The compiled ``go/<name>``."""
    sources = HERE / "go"
    files = [sources / "go.mod", sources / "go.sum", *sorted((sources / name).glob("*.go"))]

    def build(folder: Path) -> None:
        folder.mkdir()
        _run(["go", "build", "-trimpath", "-o", str(folder / name), f"./{name}"], sources)

    return _kept(name, b"".join(file.read_bytes() for file in files), build) / name


def _kept(name: str, content: bytes, build: Callable[[Path], None]) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = CACHE / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
    done = folder / ".complete"
    with _locked(CACHE / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            build(folder)  # in its place: an environment can't be moved
            done.touch()
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], folder: Path) -> None:
    path = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # uv stands beside this interpreter
    )
    program = shutil.which(command[0], path=path)
    assert program is not None, f"{command[0]} is not on PATH"
    settings = os.environ | _GO_SETTINGS
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=settings,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


if __name__ == "__main__":  # prints the interpreter of an environment, built if it is not there
    print(python_environment(sys.argv[1]))
