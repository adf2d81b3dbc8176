"""The image of `Containerfile`, built without a registry: the base from Debian packages, the rest from a
wheelhouse.

Everything is cached by its content beside the test bed's programs. Needs root and Debian's buildah and
mmdebstrap.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.build import CACHE, locked
from tests.cluster.bed.process import BedError

_REPOSITORY = Path(__file__).parents[2]
_CACHE = CACHE.parent / "image"
_SOURCES = (
    "Containerfile",
    "pyproject.toml",
    "requirements",
    "README.md",
    "LICENSE",
    "edl_workflows",
    "operators",
    "sensors",
)
"""What `Containerfile` takes from the repository, and itself."""
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
# mmdebstrap takes these from the machine; they say where it stands.
_OF_THE_MACHINE = ("etc/apt/sources.list", "etc/resolv.conf", "etc/hostname")
_BASE = "localhost/base:1"
_KEPT = 3
"""Images; each edit of the package makes another."""


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        name: what pods call it.
        archive: in docker's format, to import into a node.
    """

    name: str
    archive: Path


def missing() -> str:
    """Why no image can be built on this machine, in one line; "" where it can."""
    lack = [program for program in ("buildah", "mmdebstrap") if not shutil.which(program)]
    if lack:
        return f"Debian packages are needed: apt-get install {' '.join(lack)}"
    return "" if os.geteuid() == 0 else "root is needed"


def build() -> Image:
    """Build what is absent or out of date.

    Raises:
        BedError: this machine lacks something, or a build failed.
    """
    if lack := missing():
        raise BedError(f"cannot build the image: {lack}")
    with locked(_CACHE / "lock"):
        base = _base()
        wheels = _wheels(_python_of(base))
        digest = hashlib.sha256(f"{base} {wheels}".encode())
        for file in sorted(_files()):
            digest.update(f"\0{file.relative_to(_REPOSITORY)}\0".encode() + file.read_bytes())
        key = digest.hexdigest()[:16]
        image = Image(f"localhost/edl-workflows:{key}", _CACHE / f"image-{key}.tar")
        if not image.archive.exists():
            _make_image(image, base, wheels)
        image.archive.touch()
        _forget_old()
    return image


def _base() -> Path:
    suite = platform.freedesktop_os_release()["VERSION_CODENAME"]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    command += [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    command += [f'--customize-hook=rm -f "$1/{file}"' for file in _OF_THE_MACHINE]
    key = hashlib.sha256(json.dumps([command, suite]).encode()).hexdigest()[:16]
    base = _CACHE / f"base-{key}.tar"
    if not base.exists():
        draft = base.with_suffix(".new.tar")
        _run(*command, suite, str(draft))
        draft.replace(base)
    return base


def _python_of(base: Path) -> str:
    """The version of a base's Python, as ``3.11``."""
    with tarfile.open(base) as tar:
        return tar.getmember("./usr/bin/python3").linkname.removeprefix("python")


def _wheels(python: str) -> Path:
    """A folder with all that the image installs, for that Python."""
    locks = [_REPOSITORY / "requirements" / name for name in ("image.txt", "build.txt")]
    inputs = [file.read_bytes() for file in locks]
    key = hashlib.sha256(b"\0".join((*inputs, python.encode()))).hexdigest()[:16]
    wheels = _CACHE / f"wheels-{key}"
    if wheels.exists():
        return wheels
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        draft = Path(scratch) / "all"
        where = ["--dest", str(draft), "--only-binary", ":all:", "--python-version", python]
        for lock in locks:
            _run(*pip, "download", *where, "--require-hashes", "--no-deps", "--requirement", str(lock))
        draft.rename(wheels)
    return wheels


def _make_image(image: Image, base: Path, wheels: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        buildah = [
            "buildah",
            "--storage-driver",
            "vfs",
            "--root",
            f"{scratch}/root",
            "--runroot",
            f"{scratch}/run",
        ]
        container = _run(*buildah, "from", "scratch").strip()
        _run(*buildah, "add", "--quiet", container, str(base), "/")
        _run(*buildah, "commit", "--quiet", "--rm", container, _BASE)
        arguments = {"BASE": _BASE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        # chroot: neither user namespaces nor a container runtime are needed.
        how = ["--isolation", "chroot", "--quiet", "--volume", f"{wheels}:/wheels:ro", "--tag", image.name]
        _run(*buildah, "build", *how, *given, "--file", "Containerfile", str(_REPOSITORY))
        draft = Path(scratch) / "image.tar"
        _run(*buildah, "push", "--quiet", image.name, f"docker-archive:{draft}:{image.name}")
        draft.rename(image.archive)


def _files() -> Iterable[Path]:
    for name in _SOURCES:
        path = _REPOSITORY / name
        found = path.rglob("*") if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


def _forget_old() -> None:
    by_age = sorted(_CACHE.glob("image-*.tar"), key=lambda file: file.stat().st_mtime)
    for file in by_age[:-_KEPT]:
        file.unlink()


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=_REPOSITORY)
    if done.returncode:
        raise BedError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout
