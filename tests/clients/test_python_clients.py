"""Clients in Python that others wrote, each in an environment without this project: every check of each
program is a row."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from edl_workflows.runtime.kube.connect import Cluster
from tests.clients.environments import HERE, python_environment
from tests.local_cluster import LocalCluster

ENVIRONMENTS = {
    "kopf_operator": "python",
    "kr8s_client": "python",
    "lightkube_client": "python",
    "kubernetes_asyncio_client": "python",
    "kubeflow_training_client": "kubeflow-training",
}
"""Program → its requirements."""


def checks(program: str) -> list[str]:
    """The functions of a program that are rows."""
    tree = ast.parse(source(program).read_text())
    found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [name for name in found if name.startswith("check_")]


def source(program: str) -> Path:
    return HERE / "programs" / f"{program}.py"


ROWS = [(program, check) for program in ENVIRONMENTS for check in checks(program)]


@pytest.mark.parametrize(
    ("program", "check"), ROWS, ids=[f"{program}-{check[6:]}" for program, check in ROWS]
)
def test_python_client(
    local: LocalCluster, handle: Cluster, tmp_path: Path, program: str, check: str
) -> None:
    """The check, whose docstring is the promise, passes in a process of its own."""
    python = python_environment(ENVIRONMENTS[program])
    settings = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": str(local.kubeconfig),
        "NAMESPACE": handle.namespace,
    }  # fmt: skip
    command = [str(python), "-P", str(source(program)), check]
    done = subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"


def test_every_program_has_rows() -> None:
    """Each program in the folder has a row in the table."""
    assert {path.stem for path in (HERE / "programs").glob("*.py")} == {program for program, _ in ROWS}
