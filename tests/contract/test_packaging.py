"""What is shipped is what is in the tree: most packaging mistakes are silent."""

import os
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SHIPPED = {".py", ".yaml", ".yml", ".json", ".jsonl", ".typed", ".html", ".css", ".js", ".svg"}


def _tree(*folders: str) -> set[str]:
    """Files under `folders` that belong in a distribution; the two links are not followed."""
    links = {ROOT / "edl_workflows" / "operators", ROOT / "edl_workflows" / "sensors"}
    return {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix in SHIPPED
        and "__pycache__" not in path.parts
        and not links.intersection(path.parents)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=240,
    )
    return out


@pytest.mark.slow
def test_wheel_holds_the_package(built: Path) -> None:
    """The wheel holds each file of the package, with operators and sensors inside it, and nothing else."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    expected = {
        name if name.startswith("edl_workflows/") else f"edl_workflows/{name}"
        for name in _tree("edl_workflows", "operators", "sensors")
    }
    assert names == expected


def test_sdist_holds_the_sources(built: Path) -> None:
    """The source distribution holds package, operators, sensors, DAGs, tests and docs."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}

    missing = _tree("edl_workflows", "operators", "sensors", "dags", "tests", "docs") - names
    assert not missing


def test_wheel_names_the_airflow_provider(built: Path) -> None:
    """Airflow finds the provider by its entry point, and the command by its script."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("entry_points.txt")]
        text = archive.read(name).decode()

    assert "provider_info = edl_workflows.get_provider_info:get_provider_info" in text
    assert "edl = edl_workflows.pipelines.cli:main" in text


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `pip install` of the wheel without extras brings, and no other package."""
    folder = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (own,) = Distribution.discover(path=[str(folder)])
    needed = list(own.requires or ())
    while needed:
        requirement = Requirement(needed.pop())
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = distribution(requirement.name)
        for name in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(found.locate_file(name))))
        needed += found.requires or ()
    return folder


@pytest.mark.parametrize(
    ("options", "arguments", "prints"),
    [
        pytest.param(["-S"], ["agent", "--help"], "usage: edl agent", id="the agent, without extras"),
        pytest.param(["-S"], ["agent", "run", "--help"], "--nproc-per-node", id="its command"),
        pytest.param([], ["--version"], "edl 0.1.0", id="the command line, with extras"),
    ],
)
def test_installed_wheel_runs(installed: Path, options: list[str], arguments: list[str], prints: str) -> None:
    """The wheel's command runs where only the wheel is: no module or data file comes from the checkout."""
    (own,) = Distribution.discover(path=[str(installed)], name="edl-workflows")
    (script,) = own.entry_points.select(group="console_scripts", name="edl")
    code = f"import sys; from {script.module} import {script.attr}; sys.exit({script.attr}(sys.argv[1:]))"
    run = subprocess.run(
        [sys.executable, *options, "-c", code, *arguments],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},  # before the checkout, which -S leaves out
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert run.returncode == 0, run.stderr
    assert prints in run.stdout


def test_folders_refuse_their_bare_names() -> None:
    """`import operators` from a checkout is refused: its classes would be other objects than Airflow's."""
    code = "import sys; sys.path.insert(0, '.')\nimport operators"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)

    assert run.returncode != 0
    assert "import edl_workflows.operators" in run.stderr
