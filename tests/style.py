"""Figures of the code's form, with their limits: `python -m tests.style` prints them and fails if a limit is
broken.

`--show N` names up to N places after each figure: those that a reader would mend first.
"""

import argparse
import ast
import io
import re
import statistics
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parent.parent
# `edl_workflows/operators` and `edl_workflows/sensors` are links to these two.
PACKAGE = ("edl_workflows", "operators", "sensors")
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"

MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FOLDER_MODULES = 16
MAX_PACKAGES = 10
MAX_SHARED_NAMES = 13
MAX_FILLER_PERCENT = 0.5
MAX_GENERIC_NAMES = 920
MAX_PLAN_CLASSES = 12
MAX_LINES = 92_000
REGISTRIES = (
    "edl_workflows/pipelines/argo/lint/rules",
    "edl_workflows/pipelines/stages",
    "edl_workflows/services/brain/store/migrations",
)
"""Folders in which each module is a row of a registry: they may have any number of modules."""
FILLER_NAMES = set(re.findall(r"\w+", "one ones found row rows said told there wanted known what why others"))
"""Names that say nothing about what they stand for."""
GENERIC_NAMES = {"result", "item", "value", "data", "info", "entry"}
"""Names that are right for a few things, and the next fillers elsewhere."""

_VERBS = (
    "Accepts|Adds|Allocates|Applies|Asks|Begins|Builds|Calls|Carries|Checks|Closes|Connects|Converts|Creates|"
    "Decides|Deletes|Describes|Does|Draws|Drops|Emits|Ends|Enters|Evaluates|Exits|Fetches|Finds|Follows|"
    "Forgets|Gets|Gives|Handles|Has|Keeps|Lets|Loads|Makes|Merges|Moves|Opens|Parses|Persists|Prints|Puts|"
    "Raises|Reads|Registers|Rejects|Releases|Removes|Replaces|Returns|Runs|Saves|Selects|Sends|Serves|Sets|"
    "Shows|Sorts|Starts|Stops|Stores|Submits|Takes|Tells|Trains|Tries|Updates|Waits|Writes|Yields"
)
# Elsewhere these are nouns: "Records of all epochs" is no sentence.
_BEFORE_AN_ARTICLE = (
    "Changes|Copies|Counts|Lists|Logs|Maps|Marks|Names|Notes|Records|Reports|Requests|Restarts"
)
_THIRD_PERSON = re.compile(rf"(?:{_VERBS}|(?:{_BEFORE_AN_ARTICLE}) (?:an?|the|its|whether))\b")
_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_NO_CODE = {tokenize.COMMENT, *_LAYOUT}
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
# Words of a docstring that carry no meaning of their own.
_EMPTY_WORDS = set(
    re.findall(r"\w+", "a an and as at by for from in is it its of on or that the this to with")
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A class or a function of a module, and where it stands."""

    node: Function | ast.ClassDef
    path: Path

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def place(self) -> str:
        return f"{self.path}:{self.node.lineno}"

    @property
    def named_place(self) -> str:
        return f"{self.place} {self.name}"


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def code_lines(self) -> int:
        """Lines with code: without blank lines, comments and docstrings, those of fields included."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        spans = [range(token.start[0], token.end[0] + 1) for token in tokens if token.type not in _NO_CODE]
        documented = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        return len(set().union(*spans) - set().union(*documented))

    def definitions(self) -> Iterator[Definition]:
        """All classes and functions, those inside others included."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function | ast.ClassDef):
                yield Definition(node, self.path)

    def lines_over(self, limit: int) -> list[str]:
        """Places of the lines that are longer than `limit` characters."""
        numbered = enumerate(self.text.splitlines(), start=1)
        return [f"{self.path}:{number}" for number, line in numbered if len(line) > limit]

    def bindings(self) -> Iterator[tuple[str, str]]:
        """Name, without leading underscores, and place of each target of an assignment and each parameter."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                name = node.name
            else:
                continue
            yield name.lstrip("_"), f"{self.path}:{node.lineno}"


@dataclass(frozen=True)
class Figure:
    """A figure, what else is printed beside it, and up to which value it is kept.

    Attributes:
        enforced: whether a value above the limit is a failure.
    """

    name: str
    value: float
    remark: str = ""
    places: Sequence[str] = ()
    limit: float | None = None
    enforced: bool = True

    @property
    def broken(self) -> bool:
        return self.enforced and self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" (at most {self.limit:g})"
        return f"{self.name:<23}{self.value:g}{self.remark}{limit}{', LIMIT BROKEN' if self.broken else ''}"


def words(name: str) -> list[str]:
    """The words of a name in snake case or camel case: `_readStatus_of` is read, status, of."""
    return [word.lower() for word in _WORD.findall(name)]


def definitions_of(modules: Iterable[Module]) -> list[Definition]:
    """All classes and functions of these modules."""
    return [definition for module in modules for definition in module.definitions()]


def public_functions(module: Module) -> list[Definition]:
    """The functions at a module's top level whose names don't begin with an underscore."""
    functions = [Definition(node, module.path) for node in module.tree.body if isinstance(node, Function)]
    return [function for function in functions if not function.name.startswith("_")]


def shared_class_names(definitions: Iterable[Definition]) -> dict[str, list[str]]:
    """Names that several classes have, with their places."""
    places = defaultdict(list)
    for definition in definitions:
        if isinstance(definition.node, ast.ClassDef):
            places[definition.name].append(definition.place)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def restates(definition: Definition) -> bool:
    """Whether a docstring says nothing that the name, the arguments and their types do not say."""
    docstring = ast.get_docstring(definition.node)
    if not docstring:
        return False
    node = definition.node
    signature = node.name
    if isinstance(node, Function):
        signature += " " + ast.unparse(node.args) + (f" {ast.unparse(node.returns)}" if node.returns else "")
    signature_words = {_stem(word) for word in words(signature)}
    return all(_stem(word) in signature_words for word in words(docstring) if word not in _EMPTY_WORDS)


def _stem(word: str) -> str:
    return re.sub(r"(ies|es|s|ed|ing|e)$", "", word) or word


def is_in_third_person(definition: Definition) -> bool:
    """Whether a function's docstring says what the function does instead of what to do: "Returns the job"."""
    docstring = isinstance(definition.node, Function) and ast.get_docstring(definition.node)
    return bool(docstring and _THIRD_PERSON.match(docstring))


def is_named_after_plan(definition: Definition) -> bool:
    """Whether it is a class in whose name *plan* is, in any form."""
    named = any(word.startswith("plan") for word in words(definition.name))
    return named and isinstance(definition.node, ast.ClassDef)


def listed_plan_classes(glossary: str) -> set[str]:
    """The classes in the glossary's table of those that are named after a plan."""
    section = glossary.partition("## Classes named after a plan\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def modules_of_folders(modules: Iterable[Module]) -> Counter[str]:
    """The number of modules of each folder that is no registry, without `__init__.py`."""
    folders = (module.path.parent.as_posix() for module in modules if module.path.name != "__init__.py")
    return Counter(folder for folder in folders if folder not in REGISTRIES)


def folders_of_one_module(modules: Sequence[Module]) -> list[str]:
    """The folders that have one module and no folder, without registries."""
    parents = {parent.as_posix() for module in modules for parent in module.path.parent.parents}
    counts = modules_of_folders(modules)
    return [folder for folder, count in counts.items() if count == 1 and folder not in parents]


def packages(modules: Iterable[Module]) -> set[str]:
    """The folders directly in the package; operators and sensors are linked into it."""
    folders = (module.path.parent.as_posix().removeprefix(f"{PACKAGE[0]}/") for module in modules)
    return {folder.split("/")[0] for folder in folders} - {PACKAGE[0], "."}


def read_modules(folders: Sequence[str]) -> list[Module]:
    """The modules below these folders of the repository; links are not followed."""
    paths = (path for folder in folders for path in _python_files(ROOT / folder))
    return [Module(path.relative_to(ROOT), path.read_text()) for path in sorted(paths)]


def _python_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from _python_files(path)
        elif path.suffix == ".py":
            yield path


def _spread(counts: Sequence[int]) -> str:
    p90 = statistics.quantiles(counts, n=10)[-1] if len(counts) > 1 else counts[0]
    return f" the longest; median {statistics.median(counts):.0f}, 90 % up to {p90:.0f}"


def size_figures(modules: Sequence[Module]) -> Iterator[Figure]:
    """How much code there is, and in how long parts."""
    definitions = [d for d in definitions_of(modules) if isinstance(d.node, Function)]
    functions = [d.lines for d in definitions]
    long_functions = [f"{d.named_place} {d.lines}" for d in definitions if d.lines > MAX_FUNCTION_LINES]
    code = sum(module.code_lines for module in modules)
    counts = [module.lines for module in modules]
    long_modules = [f"{m.path} {m.lines}" for m in modules if m.lines > MAX_MODULE_LINES]
    yield Figure("modules", len(modules))
    yield Figure("lines", sum(counts), f", {code} of them code", limit=MAX_LINES, enforced=False)
    yield Figure("lines of a module", max(counts), _spread(counts), long_modules, MAX_MODULE_LINES)
    yield Figure(
        "lines of a function", max(functions), _spread(functions), long_functions, MAX_FUNCTION_LINES
    )


def folder_figures(modules: Sequence[Module]) -> Iterator[Figure]:
    """How the modules are divided among folders."""
    counts = modules_of_folders(modules)
    largest = [f"{folder} {count}" for folder, count in counts.most_common()]
    lonely = folders_of_one_module(modules)
    yield Figure("packages", len(packages(modules)), places=sorted(packages(modules)), limit=MAX_PACKAGES)
    yield Figure("modules of a folder", max(counts.values()), places=largest, limit=MAX_FOLDER_MODULES)
    yield Figure("folders of one module", len(lonely), places=lonely, limit=0)


def name_figures(modules: Sequence[Module], glossary: str) -> Iterator[Figure]:
    """Of which words the names are made."""
    definitions = definitions_of(modules)
    shared = shared_class_names(definitions)
    public = [function for module in modules for function in public_functions(module)]
    one_word = [function.named_place for function in public if len(words(function.name)) == 1]
    bindings = [binding for module in modules for binding in module.bindings()]
    fillers = [f"{place} {name}" for name, place in bindings if name in FILLER_NAMES]
    generic = [f"{place} {name}" for name, place in bindings if name in GENERIC_NAMES]
    plans = [definition for definition in definitions if is_named_after_plan(definition)]
    unlisted = [plan.named_place for plan in plans if plan.name not in listed_plan_classes(glossary)]
    percent = round(100 * len(fillers) / max(len(bindings), 1), 3)
    places = [f"{name}: {' '.join(where)}" for name, where in shared.items()]
    yield Figure("class names shared", len(shared), places=places, limit=MAX_SHARED_NAMES)
    yield Figure("functions of one word", len(one_word), f" of {len(public)} public ones", one_word)
    yield Figure("filler names", percent, f" % of {len(bindings)} bindings", fillers, MAX_FILLER_PERCENT)
    yield Figure("generic names", len(generic), places=generic, limit=MAX_GENERIC_NAMES)
    yield Figure("classes of plans", len(plans), "", [p.named_place for p in plans], MAX_PLAN_CLASSES)
    yield Figure("not in the glossary", len(unlisted), " of these", unlisted, 0)


def text_figures(modules: Sequence[Module], width: int) -> Iterator[Figure]:
    """How lines and docstrings read."""
    definitions = definitions_of(modules)
    over = [place for module in modules for place in module.lines_over(width)]
    restating = [definition.named_place for definition in definitions if restates(definition)]
    third_person = [definition.named_place for definition in definitions if is_in_third_person(definition)]
    yield Figure(f"lines over {width}", len(over), places=over, limit=0)
    yield Figure("docstrings restating", len(restating), places=restating)
    yield Figure("in the third person", len(third_person), " docstrings of functions", third_person, 0)


def report(measured: Iterable[Figure], show: int) -> Iterator[str]:
    """The figures line by line, with up to `show` places after each, or up to ten if its limit is broken."""
    for figure in measured:
        yield str(figure)
        yield from (f"    {place}" for place in figure.places[: max(show, 10 * figure.broken)])


def main() -> int:
    """Print the figures of the package, or of the folders named. Return 1 if a limit is broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folders", nargs="*", default=PACKAGE)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="places to name after each figure")
    arguments = parser.parse_args()
    width = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    modules = read_modules(arguments.folders)
    measured = [
        *size_figures(modules),
        *folder_figures(modules),
        *name_figures(modules, GLOSSARY.read_text()),
        *text_figures(modules, width),
    ]
    print(*report(measured, arguments.show), sep="\n")
    return int(any(figure.broken for figure in measured))


if __name__ == "__main__":
    sys.exit(main())
