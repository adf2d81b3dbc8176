"""The public API: examples use, and the modules export, what `docs/reference/public-api.md` lists."""

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "public-api.md"
GUIDES = sorted(
    [
        ROOT / "README.md",
        *(page for part in ("tutorial", "how-to") for page in (ROOT / "docs" / part).glob("*.md")),
    ]
)
PYTHON_FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE_FENCE = re.compile(r"^```(python|yaml|console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MAX_LINE = 100
"""Characters of a line of code that a page shows without scrolling sideways."""
LAZY = (
    "edl_workflows.training",
    "edl_workflows.training.collective",
    "edl_workflows.operators",
    "edl_workflows.sensors",
    "edl_workflows.airflow",
)
"""Packages whose names are imported on first use."""


def _listed() -> dict[str, list[str]]:
    """The names on the page, by module."""
    rows = re.findall(r"^\| `(edl_workflows[\w.]*)` \| [^|]* \| ([^|]*) \|$", PAGE.read_text(), re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


PUBLIC = _listed()


def _exported(module: str) -> list[str]:
    """The `__all__` of a module, which is not imported: its framework may not be installed."""
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    (value,) = [
        node.value
        for node in ast.parse(Path(spec.origin).read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    names: list[str] = ast.literal_eval(value)
    return names


def test_the_page_lists_what_the_modules_export() -> None:
    """The page lists exactly the names in the `__all__` of each public module."""
    assert len(PUBLIC) > 20
    differing = {module: sorted({*_exported(module)} ^ {*PUBLIC[module]}) for module in PUBLIC}
    assert not any(differing.values()), (
        f"docs/reference/public-api.md and __all__ differ: { {m: n for m, n in differing.items() if n} }; "
        "a name that users may import is in both"
    )


def test_every_adapter_is_public() -> None:
    """The page lists each adapter with its extra, and what else is imported on first use."""
    page = PAGE.read_text()
    for adapter in ADAPTERS:
        assert re.search(rf"^\| `{adapter.module}` \| [^|]*\(`{adapter.extra}`\) \|", page, re.MULTILINE), (
            adapter
        )

    assert {adapter.module for adapter in ADAPTERS} | set(LAZY) <= set(PUBLIC)


@pytest.mark.parametrize("package", LAZY)
def test_names_that_are_imported_on_first_use_exist(package: str) -> None:
    """Each name in a package's table of lazily imported names is public and can be imported, and no other."""
    module = import_module(package)

    assert set(vars(module)["_MODULES"]) <= set(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


# --- Examples ---


def _programs() -> Iterator[Any]:
    """The examples and the excerpts of pages, with a text that Python can parse."""
    files = [*(ROOT / "dags").rglob("*.py"), *(ROOT / "tests" / "docs").glob("*.py")]
    for file in sorted(files):
        if not file.name.startswith("test_"):
            yield pytest.param(file.read_text(), id=str(file.relative_to(ROOT)))
    for file in sorted((ROOT / "docs").rglob("*.ipynb")):
        cells = json.loads(file.read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield pytest.param("\n".join(code), id=str(file.relative_to(ROOT)))
    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        for number, match in enumerate(PYTHON_FENCE.finditer(page.read_text())):
            imports = re.findall(
                r"^ *((?:from|import) edl_workflows(?:.*\([^)]*\)|.*))$", match[1], re.MULTILINE
            )
            if imports:
                yield pytest.param("\n".join(imports), id=f"{page.relative_to(ROOT)}-{number}")


def _foreign(program: str) -> Iterator[str]:
    """What a program uses of this package that is not public."""
    modules: dict[str, str] = {}
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("edl_workflows")]
            yield from (name for name in names if name not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("edl_workflows"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if alias.name not in PUBLIC.get(str(node.module), ()):
                    yield full
                elif full in PUBLIC:
                    modules[alias.asname or alias.name] = full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if node.attr not in PUBLIC[module]:
                yield f"{module}.{node.attr}"


@pytest.mark.parametrize("program", list(_programs()))
def test_examples_import_public_names_only(program: str) -> None:
    """Examples, tutorials, how-to pages, the README and notebooks import nothing but the public API."""
    assert list(_foreign(program)) == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_guides_name_public_modules_only(page: Path) -> None:
    """The prose of tutorials, how-to pages and the README names no other module or name of the package."""
    named = set(re.findall(r"\bedl_workflows(?:\.\w+)+", page.read_text()))

    assert [
        name
        for name in sorted(named)
        if name not in PUBLIC and name.rpartition(".")[2] not in PUBLIC.get(name.rpartition(".")[0], ())
    ] == []


def test_manifests_start_programs_by_the_command() -> None:
    """Manifests start the agent and the master by a command that names no folder of the package."""
    files = [*(ROOT / "dags").rglob("*.*"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.yaml")]
    texts = {
        str(file.relative_to(ROOT)): file.read_text()
        for file in files
        if file.suffix in {".md", ".py", ".yaml"}
    }
    started = {name: re.findall(r"-m[\s\"',-]+(edl_workflows[\w.]*)", text) for name, text in texts.items()}

    assert {module for modules in started.values() for module in modules} == {"edl_workflows"}


def _shown() -> Iterator[Any]:
    for file in sorted([*(ROOT / "dags").rglob("*.py"), *(ROOT / "dags").rglob("*.yaml")]):
        yield pytest.param(file.read_text(), id=str(file.relative_to(ROOT)))
    for page in GUIDES:
        code = [
            line
            for language, block in CODE_FENCE.findall(page.read_text())
            for line in block.splitlines()
            if language != "console" or line.startswith("$ ")
        ]
        yield pytest.param("\n".join(code), id=str(page.relative_to(ROOT)))


@pytest.mark.parametrize("text", list(_shown()))
def test_examples_are_what_a_user_would_write(text: str) -> None:
    """Examples have no comments for checkers, and lines that fit a page."""
    lines = text.splitlines()

    assert [line for line in lines if len(line) > MAX_LINE] == []
    assert [line for line in lines if re.search(r"# (noqa|type: ignore|pylint|pragma|fmt:)", line)] == []
