"""A training image carries the base install only: pydantic and urllib3."""

import subprocess
import sys

import pytest

# What the extras bring and a training image lacks.
HEAVY = (
    "airflow", "fastapi", "hera", "httpx", "kubernetes", "matplotlib", "numpy", "rich", "starlette",
    "structlog", "typer", "uvicorn", "yaml",
)  # fmt: skip

BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ImportError("not in the base install: " + name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import edl_workflows.training", id="library"),
        pytest.param(
            "from edl_workflows.pipelines.cli import main; main(['agent', 'run', '--help'])", id="command"
        ),
        pytest.param("import edl_workflows.core.jobs.kinds, edl_workflows.core.protocol.nodes", id="models"),
    ],
)
def test_base_install_is_enough(code: str) -> None:
    """The agent's library and command, and the models, import nothing that an extra brings."""
    run = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, timeout=240)

    assert run.returncode == 0, run.stderr
