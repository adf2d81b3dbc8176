"""How a job that an earlier attempt created differs from the manifest of this attempt. Pure."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_LINES = 20
MAX_VALUE = 80
"""Characters of a value in a line."""
_HIDDEN = frozenset({"env", "envs", "args", "command"})
"""Fields whose values may contain passwords: a line says only that they differ."""


def describe_differences(manifest: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    """Lines such as ``spec.suspend: false in the manifest, true in the job``.

    Fields that only the job has are left out: the API server adds defaults.

    Args:
        manifest: as this attempt would create the job.
        job: the job.

    Returns:
        At most `MAX_LINES` lines, and one more that counts the others.
    """
    lines = list(_differences(manifest.get("spec"), job.get("spec"), "spec", hidden=False))
    more = len(lines) - MAX_LINES
    return lines if more <= 0 else [*lines[:MAX_LINES], f"and {more} more differences"]


def _differences(desired: Any, actual: Any, path: str, *, hidden: bool) -> Iterator[str]:
    if isinstance(desired, Mapping) and isinstance(actual, Mapping):
        for key, value in desired.items():
            below = f"{path}.{key}"
            yield from _differences(value, actual.get(key), below, hidden=hidden or key in _HIDDEN)
    elif isinstance(desired, list) and isinstance(actual, list) and len(desired) == len(actual):
        for index, (desired_element, actual_element) in enumerate(zip(desired, actual, strict=True)):
            yield from _differences(desired_element, actual_element, f"{path}[{index}]", hidden=hidden)
    elif desired != actual:
        values = "" if hidden else f": {_shown(desired)} in the manifest, {_shown(actual)} in the job"
        yield f"{path}{values}" if values else f"{path} differs"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a list" if isinstance(value, list) else "a map"
    text = json.dumps(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"
