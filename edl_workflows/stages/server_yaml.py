"""YAML as a Kubernetes API server and kubectl read it, which is not quite as PyYAML does. Each difference was seen on a
real server.

Dates and 12:30 are texts, 1e3 and 0o17 are numbers, y is true.
"""

import re
from typing import Any

import yaml

MAX_DEPTH = 100
"""Maps and lists within each other. Workflows come to about 20."""

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
"""Tag, what a plain scalar of it looks like, and what it may begin with."""


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader. Its composing of nodes overruns C's stack on texts nested some ten thousand levels deep: ask
    `too_deep` first."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way of saying it
        first: [
            (tag, pattern)
            for tag, pattern in known
            if not tag.endswith((":timestamp", ":int", ":float", ":value"))
        ]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}  # noqa: RUF012


def too_deep(text: str) -> int:
    """The line at which values are nested deeper than `MAX_DEPTH`; 0 if they aren't."""
    depth = 0
    for event in yaml.parse(text, Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            return event.start_mark.line + 1 if event.start_mark else 1
    return 0


def quote_for_server(dumper: type[yaml.SafeDumper]) -> None:
    """Let a dumper quote also those texts that the server, and not PyYAML, would read as something else."""
    for tag, pattern, first in _SCALARS:
        dumper.add_implicit_resolver(tag, pattern, list(first))


def _integer(loader: Any, node: Any) -> int | str:
    text = str(node.value).replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.lstrip("+"))
    try:
        return sign * int(digits, 8 if re.fullmatch(r"0[0-7]+", digits) else 0)
    except ValueError:
        return str(loader.construct_scalar(node))  # as 0x_


def _float(_loader: Any, node: Any) -> float:
    text = str(node.value).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


for _tag, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(_tag, _pattern, list(_first))
Loader.add_constructor(_INT, _integer)
Loader.add_constructor(_FLOAT, _float)
Loader.add_constructor(_MERGE, yaml.SafeLoader.construct_yaml_str)  # << as a value
