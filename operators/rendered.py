"""Structured arguments as a template renders them: the value itself, or its text as JSON, Python or YAML.

Jinja makes a text of everything unless a DAG says ``render_template_as_native_obj``: of a dict its ``repr``, of None
``None``, and by the filter ``tojson`` JSON.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any

from edl_workflows.exceptions import InvalidError

_NOTHING = ("", "None", "null")


def given_or_none(value: Any) -> Any:
    """The value; None for what a template makes of an argument that has none."""
    return None if isinstance(value, str) and value.strip() in _NOTHING else value


def rendered_map(value: Mapping[Any, Any] | str, name: str) -> dict[Any, Any]:
    """A map, or one from its text.

    Args:
        value: what the task has after templating.
        name: of the argument, for messages.

    Raises:
        InvalidError: it is no map.
    """
    found = _read(value, name) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise InvalidError(f"{name}: a map is needed, this is {str(value)[:80]!r}")
    return dict(found)


def rendered_list(value: Iterable[str] | str, name: str) -> list[Any]:
    """A list, or one from its text, which may also be words with commas between; errors as `rendered_map`."""
    if not isinstance(value, str):
        return list(value)
    if not value.lstrip().startswith(("[", "(")):
        return [word.strip() for word in value.split(",")]
    found = _read(value, name)
    if not isinstance(found, list):
        raise InvalidError(f"{name}: a list is needed, this is {value[:80]!r}")
    return found


def _read(text: str, name: str) -> Any:
    """The value of a text. As YAML only at last: it reads Python's None as a text, and escapes between ' ' not at all."""
    from edl_workflows.stages.manifest import MAX_CHARACTERS, check_values, parse_object

    if len(text) > MAX_CHARACTERS:
        raise InvalidError(f"{name}: the text is larger than {MAX_CHARACTERS >> 20} MiB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            # By way of JSON: its values are what a request may hold. Of sets and bytes it says that it can't.
            found = json.loads(json.dumps(ast.literal_eval(text.strip()), allow_nan=False))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return parse_object(text, name)
    if isinstance(found, dict | list):
        check_values(found, name)
    return found
