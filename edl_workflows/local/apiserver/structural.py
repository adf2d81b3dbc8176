"""Schemas of definitions, checked before they are used: keywords of the right shape, and structural as
Kubernetes wants."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from edl_workflows.local.apiserver import schemas
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.schemas import SchemaDict

_OPEN, _INT_OR_STRING = "x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string"
_FORBIDDEN = frozenset({"$ref", "additionalItems", "definitions", "dependencies", "id", "patternProperties"})
_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf"})
Shape = tuple[Callable[[Any], bool], str]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_rule(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("rule")) and all(map(_is_text, _texts_of(value)))


def _texts_of(rule: Mapping[str, Any]) -> Iterable[Any]:
    return (
        rule[key] for key in ("rule", "message", "messageExpression", "reason", "fieldPath") if key in rule
    )


_TEXT: Shape = (_is_text, "must be a string")
_FLAG: Shape = (lambda value: isinstance(value, bool), "must be true or false")
_NUMBER: Shape = (_is_number, "must be a number")
_COUNT: Shape = (_is_count, "must be a non-negative integer")
_SHAPES: Mapping[str, Shape] = {
    **dict.fromkeys(("type", "format", "title", "description", "pattern"), _TEXT),
    **dict.fromkeys(("x-kubernetes-list-type", "x-kubernetes-map-type"), _TEXT),
    **dict.fromkeys(("nullable", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems"), _FLAG),
    **dict.fromkeys((_OPEN, _INT_OR_STRING, "x-kubernetes-embedded-resource"), _FLAG),
    **dict.fromkeys(("minimum", "maximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    _COUNT),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "must be a number above 0"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "must be a list of values"),
    "required": (_is_texts, "must be a list of names"),
    "x-kubernetes-list-map-keys": (_is_texts, "must be a list of names"),
    "x-kubernetes-validations": (
        lambda value: isinstance(value, list) and all(map(_is_rule, value)),
        "must be a list of rules, each with a rule's text",
    ),
}  # fmt: skip


def check_definition_schema(schema: Any, path: str) -> list[Cause]:
    """The problems of a definition's `schema`; those of its form first, which all other checks rely on."""
    return list(_shape_problems(schema, path)) or list(_structural_problems(schema, path))


def _shape_problems(schema: Any, path: str) -> Iterator[Cause]:
    if not isinstance(schema, dict):
        yield _invalid("must be a schema", path)
        return
    for keyword, value in schema.items():
        at = f"{path}.{keyword}"
        if keyword in _FORBIDDEN:
            yield Cause("FieldValueForbidden", f"Forbidden: {keyword} is not supported", at)
        elif keyword in _SHAPES:
            yield from _keyword_problems(keyword, value, at)
        else:
            yield from _below(keyword, value, at)


def _below(keyword: str, value: Any, path: str) -> Iterator[Cause]:
    if keyword == "properties":
        if isinstance(value, dict):
            for name, child in value.items():
                yield from _shape_problems(child, f"{path}[{name}]")
        else:
            yield _invalid("must be an object of schemas", path)
    elif keyword in _SCHEMAS:
        if isinstance(value, list):
            for index, child in enumerate(value):
                yield from _shape_problems(child, f"{path}[{index}]")
        else:
            yield _invalid("must be a list of schemas", path)
    elif keyword in ("items", "not") or (keyword == "additionalProperties" and not isinstance(value, bool)):
        yield from _shape_problems(value, path)


def _keyword_problems(keyword: str, value: Any, path: str) -> Iterator[Cause]:
    good, wanted = _SHAPES[keyword]
    if not good(value):
        yield _invalid(wanted, path)
    elif keyword == "type" and value and value not in schemas.TYPES:
        known = ", ".join(sorted(schemas.TYPES))
        yield Cause(
            "FieldValueNotSupported", f'Unsupported value: "{value}": supported values: {known}', path
        )
    elif keyword == "uniqueItems" and value:
        yield Cause(
            "FieldValueForbidden",
            "Forbidden: uniqueItems cannot be set to true; its runtime is quadratic",
            path,
        )
    elif keyword == "pattern" and (problem := schemas.pattern_problem(value)):
        yield _invalid(f"must be a valid regular expression, but isn't: {problem}", path)


def _invalid(problem: str, path: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {problem}", path)


def _structural_problems(schema: SchemaDict, path: str) -> Iterator[Cause]:
    if not (schema.get("type") or schema.get(_OPEN) or schema.get(_INT_OR_STRING)):
        message = "Required value: must not be empty for specified object fields"
        yield Cause("FieldValueRequired", message, f"{path}.type")
    if schema.get("properties") and schema.get("additionalProperties"):
        message = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause("FieldValueForbidden", message, f"{path}.additionalProperties")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
        yield Cause("FieldValueRequired", "Required value: must be specified for arrays", f"{path}.items")
    for field, child in (schema.get("properties") or {}).items():
        yield from _structural_problems(child, f"{path}.properties[{field}]")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), Mapping):
            yield from _structural_problems(schema[keyword], f"{path}.{keyword}")
