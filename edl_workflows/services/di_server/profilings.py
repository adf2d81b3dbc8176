"""Merges programs' reports into a job's status, within bounds. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.reported_text import inert_value

MAX_BYTES = 64 * 1024
"""Largest size of a job's profilings as JSON. They are part of the job object, which is sent to all watchers
at every change.
"""
MAX_LEVELS = 16
"""Deepest nesting of objects and lists."""
_LARGEST = 2**63
"""An API server stores no larger integers."""


def merge_profilings(current: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7386) to the profilings.

    Raises:
        InvalidError: the result would be larger or more deeply nested than a status may hold.
    """
    _check_values(patch)
    merged = _merge(current, inert_value(patch))
    size = len(json.dumps(merged, separators=(",", ":")))
    if size > MAX_BYTES:
        raise InvalidError(
            f"profilings would have {size} bytes, at most {MAX_BYTES} are kept: report less, or remove "
            "fields by null"
        )
    return merged


def _merge(current: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(current) if isinstance(current, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value) if isinstance(value, Mapping) else value
    return merged


def _check_values(patch: Mapping[str, Any]) -> None:
    level: list[Any] = [patch]
    for _ in range(MAX_LEVELS):
        if any(isinstance(element, int) and not -_LARGEST <= element < _LARGEST for element in level):
            raise InvalidError(
                "profilings: whole numbers must be below 2^63; report it as a decimal fraction"
            )
        level = [child for element in level for child in _children(element)]
        if not level:
            return
    raise InvalidError(f"profilings are nested deeper than {MAX_LEVELS} levels: flatten them")


def _children(element: Any) -> Iterable[Any]:
    if isinstance(element, Mapping):
        return element.values()
    return element if isinstance(element, list) else ()
