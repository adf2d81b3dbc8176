"""Manifests in YAML or JSON, read as kubectl and the Kubernetes API server read them, within bounds, with the
lines of their fields. Fields are not interpreted here.

The server's YAML differs from PyYAML's: dates and 12:30 are strings, 1e3 and 0o17 are numbers, y is true, and
all keys are strings. Each difference was observed on a real API server.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube.yaml_keys import TextKeys

MAX_CHARACTERS = 3 * 2**20
"""Limit for a text, and for all strings of a manifest after the expansion of YAML aliases. It is the API
server's own limit of a request."""
MAX_VALUES = 200_000
"""Values of a manifest after the expansion of YAML aliases: a few nested aliases make billions."""
MAX_DEPTH = 100
"""Nesting levels of maps and lists. Workflows have about 20."""
MAX_DIGITS = 1000
"""Longer integers are strings: Python writes at most 4,300 digits as JSON, and the API server has 64 bits."""
MAX_MERGED = 200_000
"""Entries that the merge keys (``<<``) of a text may copy together."""
_MAX_QUOTED = 1000

_PARSE_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What parsing raises for a text that is no YAML. Some are PyYAML's own slips, as for ``!!bool foo`` and
``!!timestamp foo``."""

_INT, _FLOAT, _BOOL, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "merge"))
_SCALARS = (
    (_BOOL, re.compile(r"^[yYnN]$"), "yYnN"),
    (
        _INT,
        re.compile(r"^(?:[-+]?0b[01_]+|[-+]?0o?[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+)$"),
        "-+0123456789",
    ),
    (
        _FLOAT,
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        "-+0123456789.",
    ),
)
"""For each tag, the pattern of its plain scalars and their possible first characters."""

FieldPath = tuple[str | int, ...]


class YamlError(ValueError):
    """A text is not YAML, or it exceeds a bound.

    Attributes:
        line: the line of the problem, from 1; 0 if unknown.
    """

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(TextKeys, _SafeLoader):
    """A safe loader, whose maps have texts as keys. It overflows the C stack on texts nested about ten
    thousand levels deep: `read_yaml` rejects them first.

    Merge keys may copy at most `MAX_MERGED` entries: a few hundred characters of nested ones stand for
    billions, of which one is left when the map is built.
    """

    _merged = 0

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's interface
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if not tag.endswith((":timestamp", ":int", ":float", ":value"))
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}  # noqa: RUF012

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys of a map by the entries that they name.

        Raises:
            ConstructorError: the merge keys of the text copy too many entries.
        """
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(merged, yaml.MappingNode):
                    continue  # PyYAML's own method says what is wrong
                self.flatten_mapping(merged)
                self._merged += 1 + len(merged.value)
                if self._merged > MAX_MERGED:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"merge keys (<<) copy more than {MAX_MERGED} entries", key.start_mark
                    )
        super().flatten_mapping(node)


def _integer(loader: Any, node: Any) -> int | str:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    if len(digits) > MAX_DIGITS:
        return str(loader.construct_scalar(node))
    try:
        return sign * int(digits, 8 if re.fullmatch(r"0[0-7]+", digits) else 0)
    except ValueError:
        return str(loader.construct_scalar(node))  # as 0x_


def _float(loader: Any, node: Any) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _text(loader: Any, node: Any) -> str:
    return str(loader.construct_scalar(node))


for _tag, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(_tag, _pattern, list(_first))
Loader.add_constructor(_INT, _integer)
Loader.add_constructor(_FLOAT, _float)
Loader.add_constructor(_MERGE, _text)  # << as a value


def quote_for_server(dumper: type[yaml.SafeDumper]) -> None:
    """Make a dumper also quote the strings that only the server would read as another type."""
    for tag, pattern, first in _SCALARS:
        dumper.add_implicit_resolver(tag, pattern, list(first))


@dataclass(frozen=True)
class YamlDocument:
    """A document of a text.

    Attributes:
        value: plain values, whose maps have string keys.
        node: the parsed YAML, which has the line numbers.
    """

    value: Any
    node: Any

    def child(self, step: str | int) -> "YamlDocument":
        """The part at a key or index that exists."""
        place = _child(self.node, step)
        return YamlDocument(self.value[step], place[1] if place else None)

    def line(self, path: FieldPath = ()) -> int:
        """The line, from 1, of a field or of its closest existing parent."""
        node, line = self.node, 0 if self.node is None else self.node.start_mark.line + 1
        for step in path:
            child = _child(node, step)
            if child is None:
                break
            line, node = child
        return line

    def duplicate_keys(self) -> Iterator[tuple[FieldPath, int]]:
        """The path and line of each key that a map has already. Most readers keep the last value."""
        waiting: list[tuple[Any, FieldPath]] = [(self.node, ())]
        seen: set[int] = set()
        while waiting:
            node, path = waiting.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [(child, (*path, index)) for index, child in enumerate(node.value)]
            elif isinstance(node, yaml.MappingNode):
                keys: set[str] = set()
                for key, value in node.value:
                    waiting.append((value, (*path, str(key.value))))
                    if not isinstance(key.value, str):
                        continue
                    if key.value in keys and key.value != "<<":
                        yield (*path, key.value), key.start_mark.line + 1
                    keys.add(key.value)


def _child(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None


def read_yaml(
    text: str, most_characters: int = MAX_CHARACTERS, loader: type[Loader] = Loader
) -> Iterator[YamlDocument]:
    """Read the documents of a text. Empty ones, as between two lines of ``---``, have the value None.

    Args:
        text: YAML or JSON.
        most_characters: limit for the text, and for the strings of a document.
        loader: reads the values.

    Raises:
        YamlError: it is not YAML, exceeds a bound, or has a value that JSON does not have.
    """
    if len(text) > most_characters:
        raise YamlError(f"the text is larger than {most_characters >> 20} MiB")
    try:
        _check_depth(text)
        parser: Any = loader(text)
        try:
            while parser.check_node():
                node = parser.get_node()
                value = parser.construct_document(node)
                _check_document(value, node, most_characters)
                yield YamlDocument(_without_aliases(value), node)
        finally:
            parser.dispose()
    except YamlError:
        raise
    except _PARSE_ERRORS as error:
        raise _describe(error) from error


def _describe(error: Exception) -> YamlError:
    mark = getattr(error, "problem_mark", None)
    parts = [part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part]
    problem = ": ".join(parts) or " ".join(str(error).split())
    return YamlError(f"not valid YAML: {problem[:_MAX_QUOTED]}", mark.line + 1 if mark else 0)


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            line = event.start_mark.line + 1 if event.start_mark else 1
            raise YamlError(f"line {line} is nested deeper than {MAX_DEPTH} levels", line)


def _check_document(value: Any, node: yaml.Node, most_characters: int) -> None:
    if problem := find_problem(value, most_characters):
        raise YamlError(problem, node.start_mark.line + 1)


def _without_aliases(value: Any) -> Any:
    """A copy in which an alias is a value of its own, so that who changes one does not change the other."""
    if isinstance(value, dict):
        return {key: _without_aliases(child) for key, child in value.items()}
    return [_without_aliases(child) for child in value] if isinstance(value, list) else value


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a text that holds one object.

    Args:
        text: YAML or JSON.
        where: the file or argument of the text, for messages.

    Raises:
        InvalidError: it is too large, is not YAML, does not hold one object, or holds a value that JSON does
            not have.
    """
    documents = [document for document in _parse(text, where) if document is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        types = f" of type {type(documents[0]).__name__}" if documents else ""
        raise InvalidError(
            f"{where}: the manifest of one job is required, this has {len(documents)} documents{types}"
        )
    return documents[0]


def parse_objects(text: str, where: str) -> list[dict[str, Any]]:
    """Parse all objects in a text: its documents, and the items of a ``kind: List``.

    Raises:
        InvalidError: as `parse_object`; or the text holds no object.
    """
    manifests: list[dict[str, Any]] = []
    for number, document in enumerate(_parse(text, where), start=1):
        if document is None:
            continue
        place = f"{where}, document {number}"
        if not isinstance(document, dict):
            raise InvalidError(f"{place}: an object is required, this is {str(document)[:80]!r}")
        items = document.get("items") if document.get("kind") == "List" else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InvalidError(f"{place}: items of a List must be objects")
        manifests += items
    if not manifests:
        raise InvalidError(f"{where}: contains no object")
    return manifests


def parse_values(text: str, where: str) -> dict[str, Any] | list[Any]:
    """Parse a text that holds one map or list; raises as `parse_object`."""
    documents = _parse(text, where)
    if len(documents) != 1 or not isinstance(documents[0], dict | list):
        raise InvalidError(f"{where}: a YAML map or list is required, this is {text[:80]!r}")
    document: dict[str, Any] | list[Any] = documents[0]
    return document


def _parse(text: str, where: str) -> list[Any]:
    try:
        return [document.value for document in read_yaml(text)]
    except YamlError as error:
        line = f" (line {error.line})" if error.line > 1 else ""
        raise InvalidError(f"{where}: {error}{line}") from error


def check_values(document: dict[str, Any] | list[Any], where: str) -> None:
    """Check values that came from elsewhere than from YAML.

    Raises:
        InvalidError: with the path of the value; see `find_problem`.
    """
    if problem := find_problem(document):
        raise InvalidError(f"{where}: {problem}")


def find_problem(document: Any, most_characters: int = MAX_CHARACTERS) -> str:
    """Why a document can't be a request; empty if it can. The API server rejects values that JSON does not
    have, too many values, and strings that are too long together."""
    waiting: list[tuple[_Path, int, Any]] = [((), 1, document)]
    values = characters = 0
    while waiting:
        path, depth, value = waiting.pop()
        values += 1
        characters += _characters(value)
        if values > MAX_VALUES:
            return f"the manifest has more than {MAX_VALUES} values; use fewer YAML aliases"
        if characters > most_characters:
            limit = f"{most_characters >> 20} MiB"
            return f"the strings of the manifest are larger than {limit}; use fewer YAML aliases"
        if isinstance(value, Mapping | list) and depth > MAX_DEPTH:
            return f"the manifest is nested deeper than {MAX_DEPTH} levels, or contains itself"
        if isinstance(value, Mapping):
            waiting += [((path, str(key)), depth + 1, child) for key, child in value.items()]
        elif isinstance(value, list):
            waiting += [((path, index), depth + 1, child) for index, child in enumerate(value)]
        elif not isinstance(value, str | int | float | None) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            kind = type(value).__name__
            # Never written out: the aliases in a tuple of !!pairs may stand for billions of values.
            shown = "this" if isinstance(value, tuple | set) else repr(str(value)[:_MAX_QUOTED])
            return (
                f"{_written(path)}: {shown} is read as a {kind}, which JSON does not have; put it in quotes"
            )
    return ""


_Path = tuple[()] | tuple["_Path", str | int]
"""The path of a value: that of its map or list, and its key or index there. Nothing is copied, because a long
key may be above many values."""


def _written(path: _Path) -> str:
    steps = []
    while path:
        path, step = path
        steps.append(f".{step}" if isinstance(step, str) else f"[{step}]")
    return "".join(reversed(steps)).removeprefix(".")


def _characters(value: object) -> int:
    """The length of a value in JSON, roughly; that of a map are its keys."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value))
    return value.bit_length() // 3 if isinstance(value, int) else 0
