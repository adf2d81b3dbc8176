"""Causes that several kinds' checks share."""

import json
from typing import Any

from edl_workflows.local.apiserver.errors import Cause


def required(field: str) -> Cause:
    """The field is absent."""
    return Cause("FieldValueRequired", "Required value", field)


def unsupported(field: str, value: Any, allowed: tuple[str, ...]) -> list[Cause]:
    """The field is none of its allowed values; empty if it is."""
    if value in allowed:
        return []
    known = ", ".join(json.dumps(one) for one in allowed)
    return [
        Cause(
            "FieldValueNotSupported",
            f"Unsupported value: {json.dumps(value)}: supported values: {known}",
            field,
        )
    ]
