"""Kubeflow's training-operator 1.7.0, built from its Go module, which pins what it needs in
`../training_operator`."""

import os
import subprocess
from pathlib import Path

from tests.cluster.bed import build

_SOURCES = Path(__file__).parents[1] / "training_operator"
_MODULE = "github.com/kubeflow/training-operator"
PROGRAM = build.BIN / "training-operator"


def built() -> Path:
    """The program; built anew where its module's pins are newer than it."""
    pins = max(file.stat().st_mtime for file in _SOURCES.iterdir())
    with build.locked(build.CACHE / "lock"):
        if not PROGRAM.exists() or PROGRAM.stat().st_mtime < pins:
            _go(
                "build",
                "-trimpath",
                "-ldflags",
                "-s -w",
                "-o",
                str(PROGRAM),
                f"{_MODULE}/cmd/training-operator.v1",
            )
            PROGRAM.touch()
    return PROGRAM


def definitions() -> list[Path]:
    """Its CRDs."""
    folder = Path(_go("list", "-m", "-f", "{{.Dir}}", _MODULE)) / "manifests" / "base" / "crds"
    return sorted(folder.glob("kubeflow.org_*.yaml"))


def _go(*arguments: str) -> str:
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    done = subprocess.run(
        ["go", *arguments],
        cwd=_SOURCES,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()
