"""What a failing property test prints."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAILING = """
from hypothesis import given, settings
from hypothesis import strategies as st

@given(st.integers(10, 20), st.just("a word"))
@settings(database=None)
def test_small(number, text):
    assert number < 10
"""


def test_a_failing_example_prints_its_values(tmp_path: Path) -> None:
    """A failing Hypothesis example prints the values of its arguments, even in a process that has loaded the
    plugin of schemathesis."""
    file = tmp_path / "test_small.py"
    file.write_text(FAILING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "pyproject.toml",
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
    ]
    plugins = ["-p", "tests.conftest", "-p", "tests.contract.conftest"]
    run = subprocess.run(
        [*command, *plugins, str(file)],
        cwd=ROOT,
        env=os.environ | {"HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "hypothesis")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "number=10," in run.stdout
    assert "text='a word'," in run.stdout
