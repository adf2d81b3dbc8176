"""What a job reports is data for the shells of the example DAGs: it never becomes a part of a command."""

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PYTHON_FILES = sorted(file for folder in ("dags", "tests/docs") for file in (ROOT / folder).rglob("*.py"))
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
TEMPLATE = re.compile(r"{[{%]")
HOSTILE = {
    "quotes": "/work/'; touch owned; echo '/step-1",
    "double quotes": '/work/"; touch owned; echo "/step-1',
    "a substitution": "/work/$(touch owned)/step-1",
    "backquotes": "/work/`touch owned`/step-1",
    "an option": "-x$(touch owned)/step-1",
    "two lines": "/work/a\ntouch owned/step-1",
}


def calls_of_shells() -> Iterator[tuple[str, ast.Call, ast.expr]]:
    """Each call that has a `bash_command`, with that argument."""
    for file in PYTHON_FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                if keyword.arg == "bash_command":
                    assert isinstance(node, ast.Call)
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node, keyword.value


SHELLS = [pytest.param(call, command, id=where) for where, call, command in calls_of_shells()]


def test_there_are_shells_to_look_at() -> None:
    """The tables of shells and commands below are not empty."""
    assert len(SHELLS) >= 3


@pytest.mark.parametrize(("call", "command"), SHELLS)
def test_no_command_is_a_template(call: ast.Call, command: ast.expr) -> None:
    """A command is a constant; values, such as XComs, come by `env`."""
    assert isinstance(command, ast.Constant), ast.unparse(command)
    assert not TEMPLATE.search(str(command.value)), command.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_shows_a_templated_command(page: Path) -> None:
    """The documentation shows no shell command with a template tag in it."""
    shown = re.findall(r"^.*bash_command.*(?:\n.*){0,6}", page.read_text(), re.MULTILINE)
    assert not [text for text in shown if TEMPLATE.search(text.partition("env=")[0])]


@pytest.mark.parametrize("row", HOSTILE)
@pytest.mark.parametrize(("call", "command"), SHELLS)
def test_a_hostile_checkpoint_is_only_an_argument(
    call: ast.Call, command: ast.Constant, row: str, tmp_path: Path
) -> None:
    """Whatever a program reports as its checkpoint, the command runs only the evaluation, with that text as
    its argument."""
    env: dict[str, Any] = {keyword.arg or "": keyword.value for keyword in call.keywords}
    assert "CHECKPOINT" in ast.literal_eval(env["env"])
    values = {"PYTHON": "printf", "PROGRAM": "%s", "CHECKPOINT": HOSTILE[row]}

    shown = subprocess.run(
        ["bash", "-c", str(command.value)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **values},
        capture_output=True,
        text=True,
        check=True,
    )

    folder = HOSTILE[row].rpartition("/")[0]
    assert shown.stdout == f"--checkpoint-dir={folder}"
    assert not list(tmp_path.iterdir())
