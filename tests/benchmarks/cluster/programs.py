"""Programs beside which our controller is measured, built from Go modules that pin what they need:
Kubeflow's training-operator 1.7.0 (`../training_operator`) and the limit client (`../limit_client`)."""

import os
import subprocess
from pathlib import Path

from tests.cluster.bed import build

_MODULES = Path(__file__).parents[1]
_OPERATOR = "github.com/kubeflow/training-operator"
PEER = build.BIN / "training-operator"
LIMIT_CLIENT = build.BIN / "limit-client"


def build_peer() -> Path:
    """Kubeflow's training-operator."""
    return _built(_MODULES / "training_operator", f"{_OPERATOR}/cmd/training-operator.v1", PEER)


def peer_definitions() -> list[Path]:
    """Its CRDs."""
    module = Path(_go(_MODULES / "training_operator", "list", "-m", "-f", "{{.Dir}}", _OPERATOR))
    return sorted((module / "manifests" / "base" / "crds").glob("kubeflow.org_*.yaml"))


def build_limit_client() -> Path:
    """The client that writes only."""
    return _built(_MODULES / "limit_client", ".", LIMIT_CLIENT)


def _built(sources: Path, package: str, program: Path) -> Path:
    """The program; built anew where a file of its module is newer than it."""
    newest = max(file.stat().st_mtime for file in sources.iterdir())
    with build.locked(build.CACHE / "lock"):
        if not program.exists() or program.stat().st_mtime < newest:
            _go(sources, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), package)
            program.touch()
    return program


def _go(sources: Path, *arguments: str) -> str:
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=sources,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()
