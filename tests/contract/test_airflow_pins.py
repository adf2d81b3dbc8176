"""The extra ``airflow`` can be installed beside each Airflow with the versions that Airflow pins."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).parent / "airflow_pins"
"""By Airflow version, constraints: Airflow's own where they could be had; the head of each file tells."""
ROWS = [
    *(("3.0", python) for python in ("3.11", "3.12")),  # it refuses Python 3.13
    *(("3.1", python) for python in ("3.11", "3.12", "3.13")),
    *((airflow, python) for airflow in ("3.2", "3.3") for python in ("3.11", "3.12", "3.13", "3.14")),
]
WITHOUT_WHEEL = {"3.0": ("--no-binary", "dill")}
"""By Airflow version, options for packages that it pins to a release without a wheel."""
Resolves = dict[tuple[str, str], subprocess.Popen[str]]


@pytest.fixture(scope="module")
def resolves() -> Iterator[Resolves]:
    """All resolves at once, because each waits for the package registry most of the time."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv, "uv is not installed"
    processes = {
        (airflow, python): subprocess.Popen(
            [
                *(uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"),
                *WITHOUT_WHEEL.get(airflow, ()),
                *("--python-version", python, "--constraint", str(PINS / f"{airflow}.txt")),
                *("--extra", "airflow", "pyproject.toml"),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for airflow, python in ROWS
    }
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("airflow", "python"), ROWS)
def test_the_extra_resolves_with_the_pins_of_airflow(resolves: Resolves, airflow: str, python: str) -> None:
    """``edl-workflows[airflow]`` needs nothing newer than what this Airflow pins, and no compiler: each
    package has a wheel for this Python."""
    process = resolves[airflow, python]

    output, errors = process.communicate(timeout=600)

    assert process.returncode == 0, errors
    pinned = re.search(r"^apache-airflow==(.+)$", (PINS / f"{airflow}.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert pinned[0] in output.splitlines()
