"""Files that people expect in a repository are correct: changelog, fragments, hooks and forms."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FRAGMENTS = sorted(file for file in (ROOT / "changelog.d").iterdir() if file.name != "README.md")
FORMS = sorted(file for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml")
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")
INSTALLS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
INSTALLS += [file for folder in ("docs", "dags") for file in (ROOT / folder).rglob("*.*")]


def _types() -> dict[str, str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    return {entry["directory"]: entry["name"] for entry in settings["type"]}


def _draft(folder: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "9.9.9", "--dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_fragments_have_a_known_type() -> None:
    """Each fragment has a name ``+name.type.md`` with a known type; towncrier leaves others out silently."""
    name = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(_types())})\.md")

    assert not [file.name for file in FRAGMENTS if not name.fullmatch(file.name)]


def test_fragments_become_the_changelog(tmp_path: Path) -> None:
    """The text of each fragment, and one of each type, is in the draft below the title of its type."""
    (tmp_path / "changelog.d").mkdir()
    for file in [ROOT / "pyproject.toml", *FRAGMENTS]:
        (tmp_path / file.relative_to(ROOT)).write_bytes(file.read_bytes())
    for kind in _types():
        (tmp_path / "changelog.d" / f"+example.{kind}.md").write_text(f"An example of a {kind}.\n")

    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", _draft(tmp_path), re.MULTILINE | re.DOTALL))
    assert list(sections) == ["Added", "Changed", "Removed", "Fixed", "Security"]
    for kind, title in _types().items():
        assert f"- An example of a {kind}." in sections[title]
    for file in FRAGMENTS:
        assert file.read_text().split()[0] in sections[_types()[file.name.split(".")[1]]]


@pytest.mark.parametrize("page", [ROOT / "CHANGELOG.md", *FRAGMENTS], ids=lambda page: page.name)
def test_links_of_the_changelog_lead_somewhere(page: Path) -> None:
    """Each link is relative to the root of the repository and leads to a file."""
    assert not [target for target in LINK.findall(page.read_text()) if not (ROOT / target).exists()]


def test_hooks_run_commands_of_the_environment() -> None:
    """Each hook of pre-commit is local, and starts a program that `make` installs."""
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in settings["repos"] for hook in repository["hooks"]]

    assert [repository["repo"] for repository in settings["repos"]] == ["local"]
    for hook in hooks:
        program = Path(hook["entry"].split()[0])
        assert program.parent == Path(".venv/bin")
        assert (Path(sys.executable).parent / program.name).exists()


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_are_valid(form: Path) -> None:
    """Forms keep the rules without which GitHub does not show them."""
    content: dict[str, Any] = yaml.safe_load(form.read_text())
    fields = [field for field in content["body"] if field["type"] != "markdown"]
    options = [option for field in fields for option in field["attributes"].get("options", ())]

    assert content["name"]
    assert content["description"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    for key in ("id", "label"):
        names = [field.get(key) or field["attributes"][key] for field in fields]
        assert len(set(names)) == len(names)
    assert all(isinstance(option, str) or option["label"] for option in options)
    assert "none" not in [str(option).lower() for option in options], "GitHub reserves this word"


def test_nothing_is_installed_by_name() -> None:
    """No page tells readers to install the package from an index, where others could register its name."""
    by_name = re.compile(r"pip install[^`\n]*[\s'\"]edl-workflows\b")
    pages = [file for file in INSTALLS if file.suffix in {".md", ".ipynb", ".py", ".yaml"}]

    assert not [str(file.relative_to(ROOT)) for file in pages if by_name.search(file.read_text())]
