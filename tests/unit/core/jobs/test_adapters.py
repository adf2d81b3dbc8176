"""The registry of training adapters."""

import ast
import tomllib
from pathlib import Path

import edl_workflows
from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS, FRAMEWORKS, PACKAGES, Framework

ROOT = Path(__file__).parents[4]
PACKAGE = Path(edl_workflows.__file__).parent


def test_each_adapter_has_a_row() -> None:
    """Each module of `training.frameworks` with an `__all__`, or with a function `training`, has a row, and
    each row of that package is such a module."""
    folder = PACKAGE / "training" / "frameworks"
    modules = {
        f"{FRAMEWORKS}.{file.stem}"
        for file in folder.glob("*.py")
        if "\n__all__ = " in (text := file.read_text()) or "\ndef training(" in text
    }

    assert modules == {adapter.module for adapter in ADAPTERS if adapter.module.startswith(FRAMEWORKS)}, (
        "each adapter needs a row in ADAPTERS of core/jobs/elastic_job/adapters.py"
    )
    assert len({adapter.module for adapter in ADAPTERS}) == len(ADAPTERS)


def test_the_docstring_of_the_package_names_each_adapter() -> None:
    """A reader of the package's docstring finds each adapter."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / "training/frameworks/__init__.py").read_text())) or ""
    modules = {adapter.module for adapter in ADAPTERS if adapter.module.startswith(FRAMEWORKS)}
    missing = sorted(
        name for module in modules if f"`{(name := module.rpartition('.')[2])}`" not in docstring
    )

    assert not missing, f"training/frameworks/__init__.py needs a line about {missing}"


def test_each_framework_is_recognized_and_can_be_named() -> None:
    """A program's framework follows from the package that it imports, except NumPy, which is what remains;
    and ``@task.elastic`` accepts each framework."""
    assert {*PACKAGES.values(), Framework.NUMPY} == {*Framework}, "each framework needs a package in PACKAGES"

    (accepted,) = (
        node.value.slice
        for node in ast.parse((PACKAGE / "airflow/decorators.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FrameworkName"
        if isinstance(node.value, ast.Subscript)
    )
    assert list(ast.literal_eval(accepted)) == [*Framework], "FrameworkName of airflow/decorators.py"


def test_each_row_names_a_module_and_an_extra() -> None:
    """A row's module exists, and `pyproject.toml` has its extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for adapter in ADAPTERS:
        path = PACKAGE.parent.joinpath(*adapter.module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), adapter
        assert adapter.extra in project["optional-dependencies"], adapter
