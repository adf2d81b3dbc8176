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


def figure(name: str, text: str, glossary: str = "") -> style.Figure:
    """The figure of this name of one module."""
    modules = [module(text)]
    named = [*style.name_figures(modules, glossary), *style.text_figures(modules, width=60)]
    return next(each for each in named if each.name == name)


def test_targets_and_parameters_are_counted_by_name() -> None:
    """Each assignment, loop, comprehension, ``with``, ``except``, pattern and parameter binds a name, also
    with underscores before it; what only reads a name does not."""
    text = """
def read(one, *, _value=None):
    self.found = [row for row in one]
    for other in one: known = other
    with open(one) as lines: print(lines)
    match one:
        case {"a": said}: pass
    try: data = 1
    except OSError as error: raise
    return (what := one)
"""
    assert sorted(name for name, _ in module(text).bindings()) == [
        "data", "error", "found", "known", "lines", "one", "other", "row", "said", "value", "what"
    ]  # fmt: skip
    assert figure("filler names", text).value == pytest.approx(100 * 6 / 11, abs=0.001)
    assert figure("filler names", text).broken
    assert figure("generic names", text).places == ["a.py:2 value", "a.py:8 data"]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Returns the job.", 1),
        ("Carries out a change and reports it.", 1),
        ("Records the exit of a node.", 1),
        ("Records of all epochs.", 0),
        ("Steps per second.", 0),
        ("Return the job.", 0),
        ("Whether it runs.", 0),
    ],
)
def test_docstrings_of_functions_are_imperative(docstring: str, expected: int) -> None:
    """A function's docstring that begins with a verb in the third person breaks the limit; a noun in the
    plural does not. Docstrings of classes say what the class does."""
    function = figure("in the third person", f'def a():\n    """{docstring}"""')
    assert (function.value, function.broken) == (expected, expected > 0)
    assert not figure("in the third person", f'class A:\n    """{docstring}"""').value


def test_classes_named_after_a_plan_are_in_the_glossary() -> None:
    """A class with any form of *plan* in its name must be in the glossary's table of them; other tables and
    other words with these letters do not count."""
    table = "## Classes named after a plan\n\n| `PlanStep` | y |\n"
    glossary = f"| `PlanRun` | x |\n\n{table}\n## More\n\n| `_Planner` | z |\n"
    names = ["PlanStep", "_Planner", "PlanRun", "Explanation"]
    text = "".join(f"class {name}: ...\n" for name in names) + "def plan(): ..."
    assert figure("classes of plans", text).value == 3
    unlisted = figure("not in the glossary", text, glossary)
    assert (unlisted.places, unlisted.broken) == (["a.py:2 _Planner", "a.py:3 PlanRun"], True)


def test_the_glossary_lists_the_plan_classes_that_there_are() -> None:
    """The glossary's table has exactly the classes of the package that are named after a plan."""
    definitions = style.definitions_of(style.read_modules(style.PACKAGE))
    plans = {definition.name for definition in definitions if style.is_named_after_plan(definition)}
    assert plans == style.listed_plan_classes(style.GLOSSARY.read_text())


def test_folders_are_of_limited_size() -> None:
    """No folder has more than 16 modules, or only one and no folder; `__init__.py` does not count, and
    folders of registries have any number. Each folder directly in the package counts, operators and sensors
    too."""
    paths = [
        *(f"edl_workflows/core/m{number}.py" for number in range(17)),
        *(f"edl_workflows/pipelines/stages/m{number}.py" for number in range(40)),
        *("edl_workflows/core/__init__.py", "edl_workflows/top.py", "operators/job.py", "operators/scale.py"),
        *("edl_workflows/local/one.py", "edl_workflows/airflow/one.py", "edl_workflows/airflow/tab/one.py"),
    ]
    packages, largest, lonely = style.folder_figures([module("", path) for path in paths])
    assert packages.places == ["airflow", "core", "local", "operators", "pipelines"]
    assert (largest.value, largest.places[0], largest.broken) == (17, "edl_workflows/core 17", True)
    assert (lonely.places, lonely.broken) == (["edl_workflows/local", "edl_workflows/airflow/tab"], True)


def test_a_module_has_at_most_500_lines() -> None:
    """A module of 501 lines breaks the limit and is named. The lines of the whole package only have a limit
    that is shown."""
    function = "def run(): ...\n"
    sizes = {
        each.name: each
        for each in style.size_figures([module(function * 500), module(function * 501, "b.py")])
    }
    assert (sizes["lines of a module"].places, sizes["lines of a module"].broken) == (["b.py 501"], True)
    whole = style.Figure("lines", style.MAX_LINES + 1, limit=style.MAX_LINES, enforced=False)
    assert not whole.broken
    assert str(whole).endswith("92001 (at most 92000)")


def test_the_report_names_places_when_asked() -> None:
    """The report has the figures alone, or with the first places of each; a broken limit is marked and always
    has places."""
    measured = [
        style.Figure("long", 2, " of 9", ["a.py:1", "a.py:2"]),
        style.Figure("shared", 3, places=["b.py:1"], limit=1),
    ]
    broken = f"{'shared':<23}3 (at most 1), LIMIT BROKEN"
    assert list(style.report(measured, show=0)) == [f"{'long':<23}2 of 9", broken, "    b.py:1"]
    assert list(style.report(measured, show=1))[:2] == [f"{'long':<23}2 of 9", "    a.py:1"]


@pytest.mark.parametrize(("lines", "expected"), [(500, 0), (501, 1)])
def test_a_broken_limit_fails_the_check(
    lines: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command exits with 1 exactly if a limit is broken, and its output says which."""
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\nline-length = 60\n")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text("def run(): ...\n" * lines)
    (tmp_path / "core" / "b.py").write_text("LIMIT = 1\n")
    monkeypatch.setattr(style, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["style", "core"])
    assert style.main() == expected
    assert ("lines of a module      501" in capsys.readouterr().out) == bool(expected)


def test_the_package_is_read_without_its_links() -> None:
    """Operators and sensors, which are linked into the package, are counted once."""
    paths = [module.path.as_posix() for module in style.read_modules(style.PACKAGE)]
    assert "operators/base.py" in paths
    assert not any(path.startswith("edl_workflows/operators") for path in paths)
