"""A manifest from the text that a person wrote: YAML or JSON, one object or several, bounded. Not here: what its fields mean.

It is read as kubectl reads it, so that the same file means the same job here and there.
"""

import math
from typing import Any

from edl_workflows.exceptions import InvalidError

MAX_CHARACTERS = 3 * 2**20
"""As the API server's own limit of a request."""
MAX_VALUES = 200_000
"""Values of a manifest once its YAML aliases are written out: a few nested ones make billions."""


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The one object in a text.

    Args:
        text: YAML or JSON.
        where: the file or argument that it comes from, for messages.

    Raises:
        InvalidError: it is too large, no YAML, holds anything but one object, or a value that JSON does not have.
    """
    documents = [document for document in _documents(text, where) if document is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        types = f" of type {type(documents[0]).__name__}" if documents else ""
        raise InvalidError(
            f"{where}: one job's manifest is needed, this has {len(documents)} documents{types}"
        )
    found: dict[str, Any] = documents[0]
    check_values(found, where)
    return found


def parse_objects(text: str, where: str) -> list[dict[str, Any]]:
    """All objects in a text: its documents, and the items of a ``kind: List``; errors as `parse_object`, and at none at all."""
    found: list[dict[str, Any]] = []
    for number, document in enumerate(_documents(text, where), start=1):
        if document is None:
            continue
        place = f"{where}, document {number}"
        if not isinstance(document, dict):
            raise InvalidError(f"{place}: an object is needed, this is {str(document)[:80]!r}")
        check_values(document, place)
        items = document.get("items") if document.get("kind") == "List" else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InvalidError(f"{place}: items of a List must be objects")
        found += items
    if not found:
        raise InvalidError(f"{where}: there is no object in it")
    return found


def parse_values(text: str, where: str) -> dict[str, Any] | list[Any]:
    """The one map or list in a text; errors as `parse_object`."""
    documents = _documents(text, where)
    if len(documents) != 1 or not isinstance(documents[0], dict | list):
        raise InvalidError(f"{where}: a YAML map or list is needed, this is {text[:80]!r}")
    found: dict[str, Any] | list[Any] = documents[0]
    check_values(found, where)
    return found


def _documents(text: str, where: str) -> list[Any]:
    import yaml

    from edl_workflows.stages.server_yaml import MAX_DEPTH, Loader, too_deep

    if len(text) > MAX_CHARACTERS:
        raise InvalidError(f"{where}: the text is larger than {MAX_CHARACTERS >> 20} MiB")
    try:
        if line := too_deep(text):
            raise InvalidError(f"{where}: line {line} is nested deeper than {MAX_DEPTH} levels")
        return list(yaml.load_all(text, Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidError(f"{where}: this is no YAML: {' '.join(str(error).split())}") from error


def check_values(found: dict[str, Any] | list[Any], where: str) -> None:
    """Refuse what an API server does not take: values that JSON does not have, too many, or nested too deep.

    Raises:
        InvalidError: with the value's path.
    """
    from edl_workflows.stages.server_yaml import MAX_DEPTH

    waiting: list[tuple[str, int, Any]] = [("", 1, found)]
    seen = 0
    while waiting:
        path, depth, value = waiting.pop()
        seen += 1
        if seen > MAX_VALUES:
            raise InvalidError(
                f"{where}: the manifest has more than {MAX_VALUES} values; use fewer YAML aliases"
            )
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            raise InvalidError(f"{where}: the manifest is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            waiting += [(f"{path}.{key}".lstrip("."), depth + 1, one) for key, one in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", depth + 1, one) for index, one in enumerate(value)]
        elif not isinstance(value, str | int | float | None) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            kind = type(value).__name__
            raise InvalidError(
                f"{where}: {path}: {str(value)!r} is read as a {kind}, which JSON does not have; put it between quotes"
            )
