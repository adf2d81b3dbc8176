"""Structural schemas of custom resources: pruning, defaulting and validation with field paths.

The walk over values for pruning and defaulting is ours; the JSON-schema keywords are checked by `jsonschema`, with the
Kubernetes keywords added. CEL rules are next door in `edl_workflows.local.apiserver.rules`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jsonschema
from jsonschema import Draft4Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from edl_workflows.local.apiserver.errors import Cause

SchemaDict = Mapping[str, Any]

_OPEN = "x-kubernetes-preserve-unknown-fields"
_EMBEDDED = "x-kubernetes-embedded-resource"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_TYPE_META = frozenset({"apiVersion", "kind", "metadata"})


def join(path: str, step: str | int) -> str:
    """The field path one step down: ``a.b``, ``a[0]``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def prune(value: Any, schema: SchemaDict, path: str = "", *, root: bool = False) -> list[str]:
    """Remove, in place, the fields that `schema` does not name; their paths are returned.

    Args:
        value: any JSON value.
        schema: its structural schema.
        path: where `value` stands.
        root: `value` is a whole object, whose apiVersion, kind and metadata are always known.
    """
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [lost for index, entry in enumerate(value) for lost in prune(entry, items, join(path, index))]
    if not isinstance(value, dict):
        return []
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    known = _TYPE_META if root or schema.get(_EMBEDDED) else frozenset()
    lost: list[str] = []
    for field in list(value):
        if field in properties:
            lost += prune(value[field], properties[field], join(path, field)) if field not in known else []
        elif isinstance(extra, Mapping):
            lost += prune(value[field], extra, join(path, field))
        elif not (extra or field in known or schema.get(_OPEN)):
            del value[field]
            lost.append(join(path, field))
    return lost


def default(value: Any, schema: SchemaDict) -> None:
    """Fill in, in place, the defaults of absent fields; nulls that may not be null count as absent."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        for entry in value:
            default(entry, items)
    if not isinstance(value, dict):
        return
    properties = schema.get("properties") or {}
    for field, child in properties.items():
        if "default" in child and (
            field not in value or (value[field] is None and not child.get("nullable"))
        ):
            value[field] = json.loads(json.dumps(child["default"]))
        if field in value:
            default(value[field], child)
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        for field in value.keys() - properties.keys():
            default(value[field], extra)


def _is_integer(value: Any) -> bool:
    # As upstream, whose integers have 64 bits.
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(value) or (isinstance(value, float) and value.is_integer()),
    "number": lambda value: _is_integer(value) or isinstance(value, float),
}


def _check_type(_validator: Any, kind: Any, value: Any, schema: SchemaDict) -> Iterator[ValidationError]:
    if value is None and schema.get("nullable"):
        return
    if not _TYPES[kind](value):
        yield ValidationError(kind)


def _check_int_or_string(
    _validator: Any, wanted: Any, value: Any, _schema: SchemaDict
) -> Iterator[ValidationError]:
    if wanted and not (isinstance(value, str) or _is_integer(value)):
        yield ValidationError("int-or-string")


def _check_enum(_validator: Any, allowed: Any, value: Any, schema: SchemaDict) -> Iterator[ValidationError]:
    if not (value is None and schema.get("nullable")) and value not in allowed:
        yield ValidationError("enum")


def _check_list_type(_validator: Any, kind: Any, value: Any, schema: SchemaDict) -> Iterator[ValidationError]:
    if kind not in ("set", "map") or not isinstance(value, list):
        return
    keys = schema.get("x-kubernetes-list-map-keys") or []
    seen: list[Any] = []
    for index, entry in enumerate(value):
        identity = (
            {key: entry.get(key) for key in keys} if kind == "map" and isinstance(entry, dict) else entry
        )
        if identity in seen:
            yield ValidationError(f"Duplicate value: {json.dumps(identity)}", path=(index,))
        seen.append(identity)


_Validator = extend(  # type: ignore[no-untyped-call]
    Draft4Validator,
    {
        "type": _check_type,
        "enum": _check_enum,
        _INT_OR_STRING: _check_int_or_string,
        "x-kubernetes-list-type": _check_list_type,
        "default": None,
        "$ref": None,
    },
)

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


def _spell(value: Any) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, dict):
        return '"object"'
    if isinstance(value, list):
        return '"array"'
    return json.dumps(value, ensure_ascii=False)


def _path(error: ValidationError) -> str:
    path = ""
    for step in error.absolute_path:
        path = join(path, step)
    return path


def _causes(error: ValidationError) -> Iterator[Cause]:
    path, keyword, value = _path(error), str(error.validator), error.instance
    if keyword == "required":
        missing = [field for field in error.validator_value if field not in value]  # type: ignore[union-attr, operator]
        named = next(field for field in missing if f"'{field}'" in error.message)
        yield Cause("FieldValueRequired", "Required value", join(path, named))
    elif keyword == "type":
        message = (
            f"Invalid value: {_spell(value)}: {path} in body must be of type {error.message}: {_spell(value)}"
        )
        yield Cause("FieldValueTypeInvalid", message, path)
    elif keyword == _INT_OR_STRING:
        message = f"Invalid value: {_spell(value)}: {path} in body must be of type integer or string"
        yield Cause("FieldValueTypeInvalid", message, path)
    elif keyword == "enum":
        allowed = ", ".join(json.dumps(entry) for entry in error.validator_value)  # type: ignore[union-attr]
        yield Cause(
            "FieldValueNotSupported", f"Unsupported value: {_spell(value)}: supported values: {allowed}", path
        )
    elif keyword == "x-kubernetes-list-type":
        yield Cause("FieldValueDuplicate", error.message, path)
    elif keyword in _BOUNDS:
        text = _BOUNDS[keyword].format(error.validator_value)
        if isinstance(error.schema, Mapping) and error.schema.get(f"exclusive{keyword.capitalize()}"):
            text = text.replace(" or equal to", "")
        yield Cause("FieldValueInvalid", f"Invalid value: {_spell(value)}: {path} in body {text}", path)
    else:
        yield Cause("FieldValueInvalid", f"Invalid value: {_spell(value)}: {error.message}", path)


def validate(value: Any, schema: SchemaDict) -> list[Cause]:
    """Every way in which `value` breaks `schema`, with its path."""
    found = _Validator(schema).iter_errors(value)
    return [cause for error in sorted(found, key=_path) for cause in _causes(error)]


def _children(schema: SchemaDict) -> Iterable[tuple[str, SchemaDict]]:
    for field, child in (schema.get("properties") or {}).items():
        yield f"properties[{field}]", child
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), Mapping):
            yield keyword, schema[keyword]


def structural_problems(schema: SchemaDict, path: str) -> list[Cause]:
    """Why `schema` is no structural schema, the only ones that a CRD may have."""
    causes: list[Cause] = []
    free = schema.get(_OPEN) or schema.get(_INT_OR_STRING)
    if not schema.get("type") and not free:
        causes.append(
            Cause(
                "FieldValueRequired",
                "Required value: must not be empty for specified object fields",
                f"{path}.type",
            )
        )
    elif schema.get("type") and schema["type"] not in _TYPES:
        message = f'Unsupported value: "{schema["type"]}": supported values: {", ".join(sorted(_TYPES))}'
        causes.append(Cause("FieldValueNotSupported", message, f"{path}.type"))
    if schema.get("properties") and schema.get("additionalProperties"):
        message = "Forbidden: additionalProperties and properties are mutual exclusive"
        causes.append(Cause("FieldValueForbidden", message, f"{path}.additionalProperties"))
    if "$ref" in schema:
        causes.append(Cause("FieldValueForbidden", "Forbidden: $ref is not supported", f"{path}.$ref"))
    if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
        causes.append(
            Cause("FieldValueRequired", "Required value: must be specified for arrays", f"{path}.items")
        )
    for step, child in _children(schema):
        causes += structural_problems(child, f"{path}.{step}")
    return causes or _keyword_problems(schema, path)


def _keyword_problems(schema: SchemaDict, path: str) -> list[Cause]:
    checked = {keyword: schema[keyword] for keyword in (*_BOUNDS, "enum", "required") if keyword in schema}
    try:
        Draft4Validator.check_schema(checked)
    except jsonschema.SchemaError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {error.message}", path)]
    return []


def selectable(obj: Mapping[str, Any], path: str) -> Any:
    """The value at a simple JSON path as CRDs write it (``.spec.replicas``); None if absent or the path is not simple."""
    value: Any = obj
    for step in _steps(path):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def assign(obj: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a simple JSON path, making the objects on the way."""
    *parents, last = _steps(path)
    for step in parents:
        obj = obj.setdefault(step, {})
    obj[last] = value


def _steps(path: str) -> Sequence[str]:
    return [step for step in path.lstrip(".").split(".") if step]
