"""Checks that several kinds share."""

import json
import re
from collections.abc import Iterator
from typing import Any

from edl_workflows.local.apiserver.errors import Cause


def required_problem(field: str) -> Cause:
    return Cause("FieldValueRequired", "Required value", field)


def unsupported_problems(field: str, value: Any, allowed: tuple[str, ...]) -> list[Cause]:
    """The problem of a value that is not allowed, in a list; an empty list if it is allowed."""
    if value in allowed:
        return []
    supported = ", ".join(json.dumps(choice) for choice in allowed)
    return [
        Cause(
            "FieldValueNotSupported",
            f"Unsupported value: {json.dumps(value)}: supported values: {supported}",
            field,
        )
    ]


MAX_DEPTH, MAX_VALUES, MAX_STORED_VALUES, MAX_DEFINITION_VALUES = 100, 10_000, 100_000, 200_000
"""Limits of an object: nesting levels, and fields and list entries in total. Checking larger objects would
delay all other requests. An object that was created within its limit grows by defaults and by its status."""


def size_problem(obj: Any, most: int) -> str:
    """Why an object is too large to be checked; empty if it is small enough."""
    count, level = 0, [obj]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for parent in level:
            if isinstance(parent, dict):
                below += parent.values()
            elif isinstance(parent, list):
                below += parent
        count += len(below)
        if count > most:
            return f"it has more than {most} fields and entries"
        if not below:
            return ""
        level = below
    return f"it is nested deeper than {MAX_DEPTH} levels"


_MAX_PORT = 65535
_PORT_NAME = re.compile(r"(?=[-0-9]*[a-z])(?!.*--)[a-z0-9](?:[-a-z0-9]{0,13}[a-z0-9])?\Z")


def out_of_range(value: int, least: int, most: int, field: str) -> list[Cause]:
    """The problem of a number outside its bounds, in a list; an empty list if it is within them."""
    if least <= value <= most:
        return []
    bound = f"greater than or equal to {least}" if value < least else f"less than or equal to {most}"
    return [Cause("FieldValueInvalid", f"Invalid value: {value}: must be {bound}", field)]


def check_port(value: Any, field: str, *, named: bool = True) -> Iterator[Cause]:
    """Check a port number or, if `named`, a port name."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= _MAX_PORT:
            message = f"Invalid value: {value}: must be between 1 and {_MAX_PORT}, inclusive"
            yield Cause("FieldValueInvalid", message, field)
    elif not (named and isinstance(value, str) and _PORT_NAME.match(value)):
        shown = json.dumps(value)[:60]
        message = (
            f"Invalid value: {shown}: must be a port's number or its name: at most 15 lower case letters, "
            "digits and single '-', with a letter among them"
        )
        yield Cause("FieldValueInvalid", message, field)
