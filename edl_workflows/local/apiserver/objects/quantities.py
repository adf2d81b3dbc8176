"""Checks of the quantities in built-in objects.

Kubernetes rejects text that is not a quantity before any other check (400). This server answers 422 with the
field's path, as for other fields.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.core.schemas.structural import Schema, child_values, extend_path
from edl_workflows.local.apiserver.errors import Cause

QUANTITY = "x-edl-quantity"
"""Schema keyword that marks a quantity."""
_SHOWN = 60
_FORM = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_CPU_DIVISORS = {"1m": 1e-3, "1": 1.0}
_OTHER_DIVISORS = {
    text: parse_quantity(text) for text in ("1", *(f"1{unit}" for unit in "kMGTPE"),
    *(f"1{unit}i" for unit in "KMGTPE"))
}  # fmt: skip


def check_quantities(value: Any, old: Any, schema: Schema, path: str = "") -> Iterator[Cause]:
    """The problems of a value's quantities.

    Args:
        value: the value, which has the types that the schema requires.
        old: the value before the change. Unchanged values are not checked again, so that the status of an
            object stored by an earlier version can still be written.
        schema: the schema of the value.
        path: the field path of the value.
    """
    if value == old:
        return
    if schema.get(QUANTITY):
        yield from _check_quantity(value, path)
        return
    declared = schema.get("properties") or {}
    for step, child, below in child_values(value, schema):
        if below is None:
            continue
        key = step if isinstance(step, str) and step not in declared else None  # of a map
        at, before = extend_path(path, step) if key is None else f"{path}[{key}]", _entry(old, step)
        yield from check_quantities(child, before, below, at)
        if key is not None and below.get(QUANTITY) and child != before and _counted(key):
            yield from _check_whole(child, at)


def _entry(value: Any, step: str | int) -> Any:
    if isinstance(value, list):
        return value[step] if isinstance(step, int) and step < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def problem_of(value: Any) -> str:
    """Why a value is not a valid quantity; empty if it is."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return _FORM
    try:
        return "" if parse_quantity(str(value)) >= 0 else "must be greater than or equal to 0"
    except ValueError:
        return _FORM


def _check_quantity(value: Any, path: str) -> Iterator[Cause]:
    if problem := problem_of(value):
        yield invalid_value(value, problem, path)


def _counted(resource: str) -> bool:
    """Whether amounts of a resource must be integers: pods, and the resources of device plugins
    (``nvidia.com/gpu``)."""
    domain, slash, _ = resource.partition("/")
    return resource == "pods" or (bool(slash) and not domain.endswith("kubernetes.io"))


def _check_whole(value: Any, path: str) -> Iterator[Cause]:
    if not problem_of(value) and not parse_quantity(str(value)).is_integer():
        yield invalid_value(value, "must be an integer", path)


def check_divisor(reference: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """The problems of the divisor of a ``resourceFieldRef``. An absent divisor and zero mean one."""
    divisor, resource = reference.get("divisor"), str(reference.get("resource") or "")
    if divisor is None or problem_of(divisor):
        return  # absent, or `check_quantities` reports it
    cpu = resource.endswith(".cpu")
    divisors = _CPU_DIVISORS if cpu else _OTHER_DIVISORS
    if parse_quantity(str(divisor)) not in (0.0, *divisors.values()):
        kind = resource.partition(".")[2]
        problem = f"only divisor's values {', '.join(divisors)} are supported with the {kind} resource"
        yield invalid_value(divisor, problem, f"{path}.divisor")


def check_requests(resources: Mapping[str, Any], path: str) -> Iterator[Cause]:
    """A problem for each request of a container that exceeds its limit."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name, amount in requests.items():
        limit = limits.get(name, amount)
        if not (problem_of(amount) or problem_of(limit)) and (
            parse_quantity(str(amount)) > parse_quantity(str(limit))
        ):
            problem = f"must be less than or equal to {name} limit of {limit}"
            yield invalid_value(amount, problem, f"{path}.requests")


def invalid_value(value: Any, problem: str, path: str) -> Cause:
    """The cause for an invalid value; long values are truncated in the message."""
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {problem}", path)
