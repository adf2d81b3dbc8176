"""Violations of structural schemas as causes, in the words of the Kubernetes API server; simple JSON paths.

`edl_workflows.core.schemas.structural` finds the violations. `rules` has the CEL rules.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.core.schemas.structural import (
    INT_OR_STRING,
    LIST_TYPE,
    Schema,
    SchemaChecker,
    Violation,
    spell_path,
)
from edl_workflows.local.apiserver.errors import Cause

_BOUNDS: Mapping[str, str] = {
    "minimum": "should be greater than or equal to {}",
    "maximum": "should be less than or equal to {}",
    "minLength": "should be at least {} chars long",
    "maxLength": "should be at most {} chars long",
    "minItems": "should have at least {} items",
    "maxItems": "should have at most {} items",
    "minProperties": "should have at least {} properties",
    "maxProperties": "should have at most {} properties",
    "pattern": "should match '{}'",
    "multipleOf": "should be a multiple of {}",
}
_COMBINATIONS: Mapping[str, str] = {
    "not": "{0!r} should not be valid under {1!r}",
    "anyOf": "{0!r} is not valid under any of the given schemas",
    "oneOf": "{0!r} is not valid under exactly one of the given schemas",
}
_CHECKER = SchemaChecker()


def find_schema_errors(value: Any, schema: Schema) -> list[Cause]:
    """All violations of `schema` in `value`, with their paths."""
    violations = sorted(_CHECKER.violations(value, schema), key=lambda violation: spell_path(violation.node))
    return [_cause(violation) for violation in violations]


def _cause(violation: Violation) -> Cause:
    keyword, limit, path = violation.keyword, violation.limit, spell_path(violation.path)
    if keyword == "required":
        return Cause("FieldValueRequired", "Required value", path)
    if keyword == LIST_TYPE:
        return Cause("FieldValueDuplicate", f"Duplicate value: {json.dumps(violation.value)}", path)
    shown = _spell(violation.value)
    lead = f"Invalid value: {shown}: {path} in body"
    if keyword == "type":
        return Cause("FieldValueTypeInvalid", f"{lead} must be of type {limit}: {shown}", path)
    if keyword == INT_OR_STRING:
        return Cause("FieldValueTypeInvalid", f"{lead} must be of type integer or string", path)
    if keyword == "enum":
        allowed = ", ".join(json.dumps(entry) for entry in limit)
        return Cause(
            "FieldValueNotSupported", f"Unsupported value: {shown}: supported values: {allowed}", path
        )
    if keyword in _COMBINATIONS:
        text = _COMBINATIONS[keyword].format(violation.value, limit)
        return Cause("FieldValueInvalid", f"Invalid value: {shown}: {text}", path)
    bound = _BOUNDS[keyword].format(limit)
    if violation.schema.get(f"exclusive{keyword.capitalize()}"):
        bound = bound.replace(" or equal to", "")
    return Cause("FieldValueInvalid", f"{lead} {bound}", path)


def _spell(value: Any) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, dict):
        return '"object"'
    if isinstance(value, list):
        return '"array"'
    return json.dumps(value, ensure_ascii=False)


def value_at_path(obj: Mapping[str, Any], path: str) -> Any:
    """The value at a simple JSON path of a CRD (``.spec.replicas``); None if absent or if the path is not
    simple."""
    value: Any = obj
    for step in _steps(path):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def set_at_path(obj: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a simple JSON path, creating the objects on the way."""
    *parents, last = _steps(path)
    for step in parents:
        obj = obj.setdefault(step, {})
    obj[last] = value


def _steps(path: str) -> Sequence[str]:
    return [step for step in path.lstrip(".").split(".") if step]
