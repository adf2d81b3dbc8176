"""Figures of the code's form: `python -m tests.style` prints them, with the places that a reader would mend
first.

It judges nothing: CI prints it, so that a change that makes the package harder to read is seen in its log.
"""

import argparse
import ast
import io
import re
import statistics
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# `edl_workflows/operators` and `edl_workflows/sensors` are links to these two.
PACKAGE = ("edl_workflows", "operators", "sensors")

_NO_CODE = frozenset(
    [
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    ]
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
# Words of a docstring that carry no meaning of their own.
_FILLERS = frozenset(
    [
        "a",
        "an",
        "and",
        "as",
        "at",
        "by",
        "for",
        "from",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "that",
        "the",
        "this",
        "to",
        "with",
    ]
)


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


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path
    text: str

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
            for node in ast.walk(ast.parse(self.text))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]
        return len(set().union(*spans) - set().union(*documented))

    def definitions(self) -> Iterator[Definition]:
        """All classes and functions, those inside others included."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, Function | ast.ClassDef):
                yield Definition(node, self.path)

    def lines_over(self, limit: int) -> list[str]:
        """Places of the lines that are longer than `limit` characters."""
        numbered = enumerate(self.text.splitlines(), start=1)
        return [f"{self.path}:{number}" for number, line in numbered if len(line) > limit]


def words(name: str) -> list[str]:
    """The words of a name in snake case or camel case: `_readStatus_of` is read, status, of."""
    return [word.lower() for word in _WORD.findall(name)]


def public_functions(module: Module) -> list[Definition]:
    """The functions at a module's top level whose names don't begin with an underscore."""
    top = ast.parse(module.text).body
    functions = [Definition(node, module.path) for node in top if isinstance(node, Function)]
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
    known = {_stem(word) for word in words(signature)}
    return all(_stem(word) in known for word in words(docstring) if word not in _FILLERS)


def _stem(word: str) -> str:
    return re.sub(r"(ies|es|s|ed|ing|e)$", "", word) or word


def read_modules(folders: Sequence[str]) -> list[Module]:
    """The modules below these folders of the repository; links are not followed."""
    paths = (path for folder in folders for path in _python_files(ROOT / folder))
    return [Module(path.relative_to(ROOT), path.read_text()) for path in sorted(paths)]


def _python_files(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _python_files(entry)
        elif entry.suffix == ".py":
            yield entry


def _spread(values: Sequence[int]) -> str:
    p90 = statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
    return f"median {statistics.median(values):.0f}, 90 % up to {p90:.0f}, longest {max(values)}"


def report(modules: Sequence[Module], *, limit: int, show: int) -> Iterator[str]:
    """The figures line by line, with up to `show` places after each that names any."""
    definitions = [definition for module in modules for definition in module.definitions()]
    functions = [definition for definition in definitions if isinstance(definition.node, Function)]
    public = [function for module in modules for function in public_functions(module)]
    one_word = [function for function in public if len(words(function.name)) == 1]
    shared = shared_class_names(definitions)
    over = [place for module in modules for place in module.lines_over(limit)]
    restating = [definition for definition in definitions if restates(definition)]

    lines, code = sum(module.lines for module in modules), sum(module.code_lines for module in modules)
    yield f"modules                {len(modules)}, {lines} lines, {code} of them code"
    yield f"lines of a module      {_spread([module.lines for module in modules])}"
    yield f"lines of a function    {_spread([function.lines for function in functions])}"
    yield f"class names shared     {len(shared)}"
    yield from (f"    {name}: {' '.join(places)}" for name, places in list(shared.items())[:show])
    yield f"functions of one word  {len(one_word)} of {len(public)} public ones"
    yield from (f"    {function.place} {function.name}" for function in one_word[:show])
    yield f"lines over {limit:<12}{len(over)}"
    yield from (f"    {place}" for place in over[:show])
    yield f"docstrings restating   {len(restating)}"
    yield from (f"    {definition.place} {definition.name}" for definition in restating[:show])


def main() -> None:
    """Print the figures of the package, or of the folders named."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folders", nargs="*", default=PACKAGE)
    parser.add_argument("--show", type=int, default=0, metavar="N", help="places to name after each figure")
    arguments = parser.parse_args()
    limit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    for line in report(read_modules(arguments.folders), limit=limit, show=arguments.show):
        print(line)


if __name__ == "__main__":
    main()
