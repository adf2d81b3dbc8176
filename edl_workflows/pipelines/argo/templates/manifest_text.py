"""Renders a manifest as text with Argo's tags, so that every value keeps its type whatever its parameter
contains.

Parameters are strings. If a manifest has a tag between quotes, a number becomes a string, and a quote in a
value breaks the YAML. Here Argo's expressions convert a string with ``toJson`` and a number with ``int``, and
indent YAML to its position.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates.step import StepInput

INDENT = 2


@dataclass(frozen=True)
class Tag:
    """A text that contains tags itself, whose values need no quotes in YAML: names and uids."""

    text: str


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """The manifest as YAML.

    Args:
        manifest: maps, lists of maps, constants, and values of the types `StepInput` and `Tag`. Keys have no
            tags.

    Raises:
        InvalidError: a key contains a tag.
    """
    return "\n".join(_lines(manifest, 0)) + "\n"


def _lines(values: Mapping[Any, Any], depth: int) -> Iterator[str]:
    pad = " " * depth
    for key, value in values.items():
        if not isinstance(key, str) or "{{" in key:
            raise InvalidError(
                f"the manifest's key {key!r} contains a tag: Argo reads the manifest as YAML before it fills "
                "tags in, so only values can have them"
            )
        match value:
            case StepInput():
                yield f"{pad}{key}: {_input(value, depth + INDENT)}"
            case Tag():
                yield f"{pad}{key}: {value.text}"
            case Mapping() if value:
                yield f"{pad}{key}:"
                yield from _lines(value, depth + INDENT)
            case [*items] if items:
                yield f"{pad}{key}:"
                for item in items:
                    first, *remaining_lines = _lines(item, depth + INDENT)
                    yield f"{pad}- {first.lstrip()}"
                    yield from remaining_lines
            case _:
                yield f"{pad}{key}: {json.dumps(value)}"


def _input(given: StepInput, depth: int) -> str:
    value = given.variable
    match given.kind:
        case "yaml":
            return f"{{{{=sprig.nindent({depth}, {value})}}}}"
        case "integer":
            written = f"string(int({value}))"
        case "text":
            written = f"toJson({value})"
    # Argo requires valid YAML even before it evaluates the expressions, so each expression is the whole value
    # of a key.
    return f"{{{{={value} == '' ? 'null' : {written}}}}}" if given.default == "" else f"{{{{={written}}}}}"
