"""Arguments after templating: values, or the texts that Jinja rendered from them.

Without ``render_template_as_native_obj`` in the DAG, Jinja renders everything as text: a dict as its
``repr``, None as ``None``, and with the filter ``tojson`` as JSON.
"""

import ast
import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from edl_workflows.core.exceptions import InvalidError

if TYPE_CHECKING:
    from edl_workflows.pipelines.stages.description import RequestField

_NOTHING = ("", "None", "null")


def read_path(value: Any) -> Any:
    """The text of a file if its `Path` was given; any other value as it is. Airflow looks for templates in
    the folder of the DAG file only, and takes only texts for their names."""
    # The line feed keeps Airflow from taking a text that ends in ".yaml" for the name of a file.
    return f"{Path(value).read_text(encoding='utf-8')}\n" if isinstance(value, PurePath) else value


def given_or_none(value: Any) -> Any:
    """The value; None if a template rendered nothing."""
    return None if isinstance(value, str) and value.strip() in _NOTHING else value


def rendered_field(value: Any, name: str, field: "RequestField") -> Any:
    """The value of a request's field.

    Args:
        value: the argument after templating.
        name: name of the argument, for messages.
        field: description of the field.

    Raises:
        InvalidError: the field is a map or a list, and the value is not.
    """
    if field.shape == "text":
        return value
    given = value if field.required else given_or_none(value)
    if given is None or field.shape == "integer":
        return given
    return rendered_map(given, name) if field.shape == "map" else rendered_list(given, name)


def rendered_map(value: Mapping[Any, Any] | str, name: str) -> dict[Any, Any]:
    """A map, or the map in a text.

    Args:
        value: the value after templating.
        name: name of the argument, for messages.

    Raises:
        InvalidError: it is not a map.
    """
    mapping = _read(value, name) if isinstance(value, str) else value
    if not isinstance(mapping, Mapping):
        raise InvalidError(f"{name}: a map is required, this is {str(value)[:80]!r}")
    return dict(mapping)


def rendered_list(value: Iterable[str] | str, name: str) -> list[Any]:
    """A list, or the list in a text, which may be separated by commas. Raises errors as `rendered_map`
    does."""
    if not isinstance(value, str):
        return list(value)
    if not value.lstrip().startswith(("[", "(")):
        return [word.strip() for word in value.split(",")]
    elements = _read(value, name)
    if not isinstance(elements, list):
        raise InvalidError(f"{name}: a list is required, this is {value[:80]!r}")
    return elements


def _read(text: str, name: str) -> Any:
    """Parse a text. YAML is tried last, since it reads Python's None as a string and ignores escapes in
    single quotes."""
    from edl_workflows.pipelines.manifests.manifest import MAX_CHARACTERS, check_values, parse_object

    if len(text) > MAX_CHARACTERS:
        raise InvalidError(f"{name}: the text is larger than {MAX_CHARACTERS >> 20} MiB")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        try:
            # Converted through JSON, which rejects values that a request can't contain, such as sets and
            # bytes.
            document = json.loads(json.dumps(_read_literal(text.strip()), allow_nan=False))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return parse_object(text, name)
    if isinstance(document, dict | list):
        check_values(document, name)
    return document


def _read_literal(text: str) -> Any:
    """The value of a Python literal. Keys that are numbers become texts before a map is built, and sets are
    refused: Python builds both in quadratic time if the hashes of the numbers are equal."""
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Set):
            raise TypeError("a set is not a JSON value")
        if isinstance(node, ast.Dict):
            node.keys = [ast.Constant(_text_key(key)) for key in node.keys]
    return ast.literal_eval(tree)


def _text_key(node: ast.expr | None) -> str:
    """The key as JSON writes it: a Boolean in lower case, None as null."""
    key = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else ()
    if isinstance(key, str):
        return key
    if isinstance(key, bool | int | float | None):
        return json.dumps(key, allow_nan=False)
    raise TypeError(f"a {type(key).__name__} can't be a key")
