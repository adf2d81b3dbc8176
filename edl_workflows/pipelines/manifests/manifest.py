"""Parsing of manifests that users write, in YAML or JSON, with bounds on their size. Fields are not
interpreted here.

Texts are parsed as kubectl parses them, so that a file means the same job to both.
"""

import math
from typing import Any

from edl_workflows.core.exceptions import InvalidError

MAX_CHARACTERS = 3 * 2**20
"""Limit for a text, and for all strings of a manifest after the expansion of YAML aliases. It is the API
server's own limit of a request."""
MAX_VALUES = 200_000
"""Values of a manifest after the expansion of YAML aliases: a few nested aliases make billions."""
_MAX_QUOTED = 1000


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a text that holds one object.

    Args:
        text: YAML or JSON.
        where: the file or argument of the text, for messages.

    Raises:
        InvalidError: it is too large, is not YAML, does not hold one object, or holds a value that JSON does
            not have.
    """
    documents = [document for document in _documents(text, where) if document is not None]
    if len(documents) != 1 or not isinstance(documents[0], dict):
        types = f" of type {type(documents[0]).__name__}" if documents else ""
        raise InvalidError(
            f"{where}: the manifest of one job is required, this has {len(documents)} documents{types}"
        )
    manifest: dict[str, Any] = documents[0]
    check_values(manifest, where)
    return manifest


def parse_objects(text: str, where: str) -> list[dict[str, Any]]:
    """Parse all objects in a text: its documents, and the items of a ``kind: List``.

    Raises:
        InvalidError: as `parse_object`; or the text holds no object.
    """
    manifests: list[dict[str, Any]] = []
    for number, document in enumerate(_documents(text, where), start=1):
        if document is None:
            continue
        place = f"{where}, document {number}"
        if not isinstance(document, dict):
            raise InvalidError(f"{place}: an object is required, this is {str(document)[:80]!r}")
        check_values(document, place)
        items = document.get("items") if document.get("kind") == "List" else [document]
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise InvalidError(f"{place}: items of a List must be objects")
        manifests += items
    if not manifests:
        raise InvalidError(f"{where}: contains no object")
    return manifests


def parse_values(text: str, where: str) -> dict[str, Any] | list[Any]:
    """Parse a text that holds one map or list; raises as `parse_object`."""
    documents = _documents(text, where)
    if len(documents) != 1 or not isinstance(documents[0], dict | list):
        raise InvalidError(f"{where}: a YAML map or list is required, this is {text[:80]!r}")
    document: dict[str, Any] | list[Any] = documents[0]
    check_values(document, where)
    return document


def _documents(text: str, where: str) -> list[Any]:
    import yaml

    from edl_workflows.pipelines.manifests.server_yaml import MAX_DEPTH, PARSE_ERRORS, Loader, too_deep

    if len(text) > MAX_CHARACTERS:
        raise InvalidError(f"{where}: the text is larger than {MAX_CHARACTERS >> 20} MiB")
    try:
        if line := too_deep(text):
            raise InvalidError(f"{where}: line {line} is nested deeper than {MAX_DEPTH} levels")
        return list(yaml.load_all(text, Loader))
    except PARSE_ERRORS as error:
        raise InvalidError(
            f"{where}: not valid YAML: {' '.join(str(error).split())[:_MAX_QUOTED]}"
        ) from error


def check_values(document: dict[str, Any] | list[Any], where: str) -> None:
    """Check that the values are JSON values, not too many, not too long together, and not nested too deeply:
    the API server rejects others.

    Raises:
        InvalidError: with the path of the value.
    """
    from edl_workflows.pipelines.manifests.server_yaml import MAX_DEPTH

    waiting: list[tuple[_Path, int, Any]] = [((), 1, document)]
    values = characters = 0
    while waiting:
        path, depth, value = waiting.pop()
        values += 1
        characters += _characters(value)
        if values > MAX_VALUES:
            raise InvalidError(
                f"{where}: the manifest has more than {MAX_VALUES} values; use fewer YAML aliases"
            )
        if characters > MAX_CHARACTERS:
            raise InvalidError(
                f"{where}: the strings of the manifest are larger than {MAX_CHARACTERS >> 20} MiB; "
                "use fewer YAML aliases"
            )
        if isinstance(value, dict | list) and depth > MAX_DEPTH:
            raise InvalidError(f"{where}: the manifest is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            waiting += [((path, str(key)), depth + 1, child) for key, child in value.items()]
        elif isinstance(value, list):
            waiting += [((path, index), depth + 1, child) for index, child in enumerate(value)]
        elif not isinstance(value, str | int | float | None) or (
            isinstance(value, float) and not math.isfinite(value)
        ):
            kind = type(value).__name__
            # Never written out: the aliases in a tuple of !!pairs may stand for billions of values.
            shown = "this" if isinstance(value, tuple | set) else repr(str(value)[:_MAX_QUOTED])
            raise InvalidError(
                f"{where}: {_written(path)}: {shown} is read as a {kind}, which JSON does not have; "
                "put it in quotes"
            )


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
    if isinstance(value, dict):
        return sum(map(_characters, value))
    return value.bit_length() // 3 if isinstance(value, int) else 0
