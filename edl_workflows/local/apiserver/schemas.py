"""Structural schemas of custom resources: pruning, defaulting, and validation with field paths.

Pruning, defaulting and the structure are checked here; `jsonschema`, extended by the Kubernetes keywords,
checks the other keywords. CEL rules are in `edl_workflows.local.apiserver.rules`.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import re2
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
    """Extend a field path by one step: ``a.b``, ``a[0]``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def prune(value: Any, schema: SchemaDict, path: str = "", *, root: bool = False) -> list[str]:
    """Remove, in place, the fields that `schema` does not have. Returns their paths.

    Args:
        value: any JSON value.
        schema: its structural schema.
        path: of `value`.
        root: `value` is a whole object, which always has apiVersion, kind and metadata.
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
    """Set, in place, the defaults of absent fields; a null that is not allowed counts as absent."""
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


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(value) or (isinstance(value, float) and value.is_integer()),
    "number": lambda value: _is_integer(value) or isinstance(value, float),
}


def _check_type(_validator: Any, kind: Any, value: Any, schema: SchemaDict) -> Iterator[ValidationError]:
    if not kind or (value is None and schema.get("nullable")):
        return
    if not TYPES[kind](value):
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
    seen: set[str] = set()
    for index, entry in enumerate(value):
        identity = (
            {key: entry.get(key) for key in keys} if kind == "map" and isinstance(entry, dict) else entry
        )
        text = json.dumps(identity, sort_keys=True)
        if text in seen:
            yield ValidationError(f"Duplicate value: {json.dumps(identity)}", path=(index,))
        seen.add(text)


def _check_pattern(
    _validator: Any, pattern: Any, value: Any, _schema: SchemaDict
) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _compiled(pattern).search(value):
        yield ValidationError("pattern")


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    # RE2 is what Kubernetes' own server has: no pattern takes more than linear time.
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)


def pattern_problem(pattern: str) -> str:
    """Why a pattern is not a regular expression of RE2; empty if it is."""
    try:
        _compiled(pattern)
    except re2.error as error:
        return str(error)
    return ""


_Validator = extend(  # type: ignore[no-untyped-call]
    Draft4Validator,
    {
        "type": _check_type,
        "enum": _check_enum,
        "pattern": _check_pattern,
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


def _wrong_type(kind: str, value: Any, path: str) -> Cause:
    shown = _spell(value)
    message = f"Invalid value: {shown}: {path} in body must be of type {kind}: {shown}"
    return Cause("FieldValueTypeInvalid", message, path)


def _cause(error: ValidationError, path: str) -> Cause:
    keyword, value = str(error.validator), error.instance
    for step in error.absolute_path:
        path = join(path, step)
    if keyword == _INT_OR_STRING:
        message = f"Invalid value: {_spell(value)}: {path} in body must be of type integer or string"
        return Cause("FieldValueTypeInvalid", message, path)
    if keyword == "enum":
        allowed = ", ".join(json.dumps(entry) for entry in error.validator_value)  # type: ignore[union-attr]
        message = f"Unsupported value: {_spell(value)}: supported values: {allowed}"
        return Cause("FieldValueNotSupported", message, path)
    if keyword == "x-kubernetes-list-type":
        return Cause("FieldValueDuplicate", error.message, path)
    text = error.message
    if keyword in _BOUNDS:
        text = f"{path} in body {_BOUNDS[keyword].format(error.validator_value)}"
        if isinstance(error.schema, Mapping) and error.schema.get(f"exclusive{keyword.capitalize()}"):
            text = text.replace(" or equal to", "")
    return Cause("FieldValueInvalid", f"Invalid value: {_spell(value)}: {text}", path)


_STRUCTURE = frozenset(
    {"type", "nullable", "required", "properties", "items", "additionalProperties", "default", "$ref"}
)
_local: dict[int, tuple[SchemaDict, Any]] = {}
"""Validators of a schema's own keywords, by the schema's identity; the schema is kept so that its identity
stays unique."""
_MOST_SCHEMAS = 50_000


def validate(value: Any, schema: SchemaDict) -> list[Cause]:
    """All violations of `schema` in `value`, with their paths."""
    return [cause for _, cause in sorted(_broken(value, schema, ""), key=lambda found: found[0])]


def _broken(value: Any, schema: SchemaDict, path: str) -> Iterator[tuple[str, Cause]]:
    """(path, cause) of each violation. Most of a value is structure, which is checked here; jsonschema, which
    checks the other keywords, is twenty times as slow."""
    kind = schema.get("type")
    if kind and not TYPES[kind](value) and not (value is None and schema.get("nullable")):
        yield path, _wrong_type(kind, value, path)
    if isinstance(value, dict):
        for field in schema.get("required") or ():
            if field not in value:
                yield path, Cause("FieldValueRequired", "Required value", join(path, field))
    if (validator := _validator_of(schema)) is not None:
        for error in validator.iter_errors(value):
            yield path, _cause(error, path)
    for step, child, below in _children(value, schema):
        yield from _broken(child, below, join(path, step))


def _children(value: Any, schema: SchemaDict) -> Iterator[tuple[str | int, Any, SchemaDict]]:
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        for field, child in value.items():
            below = properties.get(field, extra)
            if isinstance(below, Mapping):
                yield field, child, below
    elif isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        for index, child in enumerate(value):
            yield index, child, items


def _validator_of(schema: SchemaDict) -> Any:
    """The validator of a schema's keywords other than structure; None if it has none."""
    known = _local.get(id(schema))
    if known is None:
        own = {key: value for key, value in schema.items() if key not in _STRUCTURE}
        checked = any(_Validator.VALIDATORS.get(key) for key in own)
        if schema.get("nullable"):
            own["nullable"] = True
        if len(_local) >= _MOST_SCHEMAS:
            _local.clear()
        known = _local[id(schema)] = (schema, _Validator(own) if checked else None)
    return known[1]


def selectable(obj: Mapping[str, Any], path: str) -> Any:
    """The value at a simple JSON path of a CRD (``.spec.replicas``); None if absent or if the path is not
    simple."""
    value: Any = obj
    for step in _steps(path):
        if not isinstance(value, dict) or step not in value:
            return None
        value = value[step]
    return value


def assign(obj: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a simple JSON path, creating the objects on the way."""
    *parents, last = _steps(path)
    for step in parents:
        obj = obj.setdefault(step, {})
    obj[last] = value


def _steps(path: str) -> Sequence[str]:
    return [step for step in path.lstrip(".").split(".") if step]
