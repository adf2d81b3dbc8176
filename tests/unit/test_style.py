"""The figures of the code's form: what `python -m tests.style` counts."""

from pathlib import Path

import pytest

from tests import style

SOURCE = '''
class Place: ...

def run(job):
    """Run the job."""

def _hidden(): ...

def read_status(job):
    """The state that the master stored last; None before its first report."""

class Job:
    def run(self): ...
'''


def module(text: str, name: str = "a.py") -> style.Module:
    return style.Module(Path(name), text)


def named(text: str, name: str) -> style.Definition:
    return next(found for found in module(text).definitions() if found.name == name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("read_status", ["read", "status"]),
        ("TFJobStatus", ["tf", "job", "status"]),
        ("_hidden", ["hidden"]),
        ("HTTPServer2", ["http", "server2"]),
    ],
)
def test_names_are_split_into_words(name: str, expected: list[str]) -> None:
    """Names in snake case and camel case are split into words, with abbreviations kept whole."""
    assert style.words(name) == expected


def test_docstrings_that_repeat_the_name_are_found() -> None:
    """A docstring that only repeats the words of the name and the arguments is counted; one with other words
    is not."""
    assert style.restates(named(SOURCE, "run"))
    assert not style.restates(named(SOURCE, "read_status"))
    assert not style.restates(named(SOURCE, "_hidden"))


def test_lines_of_code_are_those_without_words() -> None:
    """Blank lines, comments, and docstrings of modules, functions and fields are no code; a text that spans
    lines is."""
    text = '''"""Says.

More.
"""

# Why.
LIMIT = 3  # so many
"""Of what."""


def run() -> str:
    """Do it."""
    return """two
lines"""
'''
    assert module(text).code_lines == 4


def test_public_functions_are_those_of_the_top_level() -> None:
    """Public functions are the module's functions without an underscore; methods do not count."""
    assert [function.name for function in style.public_functions(module(SOURCE))] == ["run", "read_status"]


def test_shared_class_names_are_told_with_their_places() -> None:
    """A class name that several modules use is listed with its places."""
    modules = [module(SOURCE), module("class Place: ...", "b.py")]
    definitions = [definition for each in modules for definition in each.definitions()]
    assert style.shared_class_names(definitions) == {"Place": ["a.py:2", "b.py:1"]}


def test_long_lines_are_counted_by_characters() -> None:
    """A line of exactly the limit does not count as long."""
    assert module("x" * 10 + "\n" + "y" * 11).lines_over(10) == ["a.py:2"]


def test_the_report_names_places_when_asked() -> None:
    """The report has the figures alone, or with the first places of each."""
    figures = list(style.report([module(SOURCE)], limit=60, show=0))
    assert len(figures) == 7
    places = [line for line in style.report([module(SOURCE)], limit=60, show=9) if line not in figures]
    assert places == [
        "    a.py:4 run",
        "    a.py:10",
        "    a.py:4 run",
    ]


def test_the_package_is_read_without_its_links() -> None:
    """Operators and sensors, which are linked into the package, are counted once."""
    paths = [module.path.as_posix() for module in style.read_modules(style.PACKAGE)]
    assert "operators/base.py" in paths
    assert not any(path.startswith("edl_workflows/operators") for path in paths)
