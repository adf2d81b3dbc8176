"""YAML as the Kubernetes API server and kubectl read it, which differs from PyYAML.

Dates and 12:30 are strings, 1e3 and 0o17 are numbers, y is true. Each difference was observed on a real API
server.
"""

import re
from typing import Any

import yaml

MAX_DEPTH = 100
"""Nesting levels of maps and lists. Workflows have about 20."""
MAX_DIGITS = 1000
"""Longer integers are strings: Python writes at most 4,300 digits as JSON, and the API server has 64 bits."""
MAX_MERGED = 200_000
"""Entries that the merge keys (``<<``) of a text may copy together."""

PARSE_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
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


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader. It overflows the C stack on texts nested about ten thousand levels deep: call `too_deep`
    first.

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


def too_deep(text: str) -> int:
    """The line at which the nesting exceeds `MAX_DEPTH`; 0 if it does not."""
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return event.start_mark.line + 1 if event.start_mark else 1
    return 0


def quote_for_server(dumper: type[yaml.SafeDumper]) -> None:
    """Make a dumper also quote the strings that only the server would read as another type."""
    for tag, pattern, first in _SCALARS:
        dumper.add_implicit_resolver(tag, pattern, list(first))


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


for _tag, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(_tag, _pattern, list(_first))
Loader.add_constructor(_INT, _integer)
Loader.add_constructor(_FLOAT, _float)
Loader.add_constructor(_MERGE, yaml.SafeLoader.construct_yaml_str)  # << as a value
