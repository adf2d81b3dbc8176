"""The test bed's programs, built from source by Go into a cache that outlives the checkout.

Each part is built anew when its sources or Go change. Two builds at once are safe: the second waits for the
first.
"""

import fcntl
import functools
import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.bed.process import BedError

KUBERNETES = "1.34.4"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "edl-workflows" / "cluster"
BIN = CACHE / "bin"
ARGO_SOURCES = CACHE / "argo" / "src"
"""Argo's module as its authors published it: CRDs in manifests/, workflows in examples/."""
KWOK_STAGES = CACHE / "kwok" / "stages"

_SOURCES = Path(__file__).parent / "go"
_GO = (1, 26, 5)
_ARGO = "github.com/argoproj/argo-workflows/v4"
_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "kubectl": "kubernetes-client",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "sysctl": "procps",
}
"""Program → its Debian package."""


def missing() -> str:
    """Why no bed can be built and started on this machine, in one line; "" where it can."""
    if os.geteuid() != 0:
        return "root is needed"
    packages = {package for program, package in _PROGRAMS.items() if not shutil.which(program)}
    if not Path("/usr/lib/cni/ptp").exists():
        packages.add("containernetworking-plugins")
    if packages:
        return f"Debian packages are needed: apt-get install {' '.join(sorted(packages))}"
    if subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True
    ).returncode:
        return "the right to make namespaces (CAP_SYS_ADMIN) is needed"
    if _go_version() < _GO:
        wanted = ".".join(str(part) for part in _GO)
        return f"Go {wanted} or newer is needed (Debian's is older): https://go.dev/dl/, with go on the PATH"
    return ""


def build() -> None:
    """Build what is absent or out of date.

    Raises:
        BedError: this machine lacks something, or a build failed.
    """
    if lack := missing():
        raise BedError(f"cannot build the test bed: {lack}")
    BIN.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / "lock"):
        for name, part in _PARTS.items():
            stamp, key = BIN / f"{name}.key", _key(name)
            if not stamp.exists() or stamp.read_text() != key:
                print(f"test bed: building {name}", file=sys.stderr, flush=True)
                stamp.unlink(missing_ok=True)
                part(_SOURCES / name)
                stamp.write_text(key)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock that ends with this process at the latest."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _key(name: str) -> str:
    """What a part is built from: its sources, how it is built here, and Go."""
    how = "".join(inspect.getsource(function) for function in (_PARTS[name], _compile, _go))
    digest = hashlib.sha256(f"{_go_version()} {KUBERNETES} {how}".encode())
    for file in sorted((_SOURCES / name).iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


@functools.cache
def _go_version() -> tuple[int, ...]:
    if not shutil.which("go"):
        return (0,)
    said = _go(Path("/"), "env", "GOVERSION")
    return tuple(int(part) for part in re.findall(r"\d+", said)[:3])


def _go(folder: Path, *arguments: str) -> str:
    """Run a Go command; what it printed."""
    settings = {
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",
        "GONOSUMDB": "github.com/google/go-containerregistry/*",  # in no checksum database; go.sum pins it
    }
    done = subprocess.run(
        ["go", *arguments], cwd=folder, env=os.environ | settings, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise BedError(f"go {' '.join(arguments)} failed in {folder}; see above")
    return done.stdout.strip()


def _compile(folder: Path, package: str, name: str, *options: str, flags: str = "") -> None:
    """Build one program into BIN; a running one keeps its file."""
    with tempfile.TemporaryDirectory(dir=BIN) as draft:
        linker = f"-s -w {flags}"
        _go(folder, "build", *options, "-trimpath", "-ldflags", linker, "-o", f"{draft}/{name}", package)
        Path(draft, name).replace(BIN / name)


def _kube(sources: Path) -> None:
    major, minor, _ = KUBERNETES.split(".")
    version = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in version.items())
    _compile(sources, ".", "kubelab", flags=flags)


def _argo(sources: Path) -> None:
    """From a copy of the module: a file is missing in it, and nothing can be laid over the module cache."""
    folder = ARGO_SOURCES.parent
    shutil.rmtree(folder, ignore_errors=True)
    _go(sources, "mod", "download", _ARGO)
    shutil.copytree(
        _go(sources, "list", "-m", "-f", "{{.Dir}}", _ARGO), ARGO_SOURCES, copy_function=shutil.copy
    )
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.copy(
        sources / "signal_linux.go.txt", ARGO_SOURCES / "workflow/executor/osspecific/signal_linux.go"
    )
    replaced = f"{(sources / 'go.mod').read_text()}\nreplace {_ARGO} => ./src\n"
    (folder / "go.mod").write_text(replaced)
    shutil.copy(sources / "go.sum", folder / "go.sum")
    for name in ("workflow-controller", "argoexec"):
        _compile(folder, f"{_ARGO}/cmd/{name}", name, "-mod=mod")
    shutil.rmtree(BIN / "crds", ignore_errors=True)
    shutil.copytree(ARGO_SOURCES / "manifests/base/crds/full", BIN / "crds")


def _kwok(sources: Path) -> None:
    module = "sigs.k8s.io/kwok"
    _compile(sources, f"{module}/cmd/kwok", "kwok", "-mod=mod")
    stages = Path(_go(sources, "list", "-m", "-f", "{{.Dir}}", module)) / "kustomize" / "stage"
    shutil.rmtree(KWOK_STAGES, ignore_errors=True)
    KWOK_STAGES.mkdir(parents=True)
    for folder in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
        for file in (stages / folder).glob("*.yaml"):
            if file.name != "kustomization.yaml":
                (KWOK_STAGES / f"{folder.replace('/', '-')}-{file.name}").write_bytes(file.read_bytes())


def _pause(sources: Path) -> None:
    _compile(sources, ".", "pause")


def _s3(sources: Path) -> None:
    _compile(sources, "github.com/johannesboyne/gofakes3/cmd/gofakes3", "gofakes3", "-mod=mod")


_PARTS: dict[str, Callable[[Path], None]] = {
    "pause": _pause,
    "kube": _kube,
    "argo": _argo,
    "kwok": _kwok,
    "s3": _s3,
}
"""Folder below go/ → how it is built."""
