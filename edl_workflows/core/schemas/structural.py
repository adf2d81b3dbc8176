"""Structural schemas: the walk over a value and its schema, pruning, defaults, and violations."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]
"""A position in an object: field names and list indices from its root."""

PRESERVE_UNKNOWN = "x-kubernetes-preserve-unknown-fields"
EMBEDDED_RESOURCE = "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
UNKNOWN_FIELD = "unknown field"
PLACEHOLDER = "placeholder"
"""Not keywords of schemas, but among the keywords of violations."""
TYPE_META = frozenset({"apiVersion", "kind", "metadata"})
ANYTHING: Schema = {PRESERVE_UNKNOWN: True}
"""The schema of a value that its parent's schema leaves open."""


def extend_path(path: str, step: str | int) -> str:
    """Extend a field path by one step: ``a.b``, ``a[0]``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    return f"{path}.{step}" if path else step


def spell_path(path: Path) -> str:
    """A path in its usual notation: ``spec.templates[0].plugin``."""
    return functools.reduce(extend_path, path, "")


def child_values(value: Any, schema: Schema) -> Iterator[tuple[str | int, Any, Schema | None]]:
    """The fields or entries of a value: (step, child, schema of the child).

    The schema is `ANYTHING` for fields that are left open, and None for those that are unknown.
    """
    if isinstance(value, dict):
        properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
        is_open = extra or schema.get(PRESERVE_UNKNOWN)
        additional_schema = extra if isinstance(extra, Mapping) else ANYTHING if is_open else None
        for name, child in value.items():
            yield name, child, properties.get(name, additional_schema)
    elif isinstance(value, list):
        items = schema.get("items") or (ANYTHING if schema.get(PRESERVE_UNKNOWN) else {})
        for index, child in enumerate(value):
            yield index, child, items


def prune_unknown_fields(value: Any, schema: Schema, path: Path = (), *, root: bool = False) -> list[str]:
    """Remove, in place, the fields that `schema` does not have. Return their paths.

    Args:
        value: any JSON value.
        schema: its structural schema.
        path: of `value`.
        root: `value` is a whole object, which always has apiVersion, kind and metadata.
    """
    type_fields = TYPE_META if root or schema.get(EMBEDDED_RESOURCE) else frozenset()
    lost: list[str] = []
    for step, child, below in list(child_values(value, schema)):
        if step in type_fields or below is ANYTHING:
            continue
        if below is None:
            del value[step]
            lost.append(spell_path((*path, step)))
        else:
            lost += prune_unknown_fields(child, below, (*path, step))
    return lost


def set_defaults(value: Any, schema: Schema) -> None:
    """Set, in place, the defaults of absent fields; a null that is not allowed counts as absent."""
    if isinstance(value, dict):
        for name, child in (schema.get("properties") or {}).items():
            if "default" in child and (
                name not in value or (value[name] is None and not child.get("nullable"))
            ):
                value[name] = json.loads(json.dumps(child["default"]))
    for _, entry, below in child_values(value, schema):
        if below:
            set_defaults(entry, below)


@dataclass(frozen=True)
class Violation:
    """A keyword of a schema that a value violates.

    Attributes:
        node: position of the value that `schema` describes.
        keyword: of the schema, or `UNKNOWN_FIELD` or `PLACEHOLDER`.
        limit: what the schema says under the keyword.
        value: the value; of a duplicate entry, the part that identifies it.
        schema: of the value.
        steps: from the value to the missing, unknown or duplicate part of it.
    """

    node: Path
    keyword: str
    limit: Any
    value: Any
    schema: Schema
    steps: Path = ()

    @property
    def path(self) -> Path:
        return (*self.node, *self.steps)


FurtherCheck = Callable[[Any, Any], Iterable[tuple[Path, Any, Any]]]
"""(value, limit) → (steps, limit, value) of each violation."""


@dataclass(frozen=True)
class SchemaChecker:
    """Finds all violations of a schema in a value.

    Attributes:
        as_written: the value is as its author wrote it, neither pruned nor defaulted: unknown fields are
            violations, nulls count as absent, and fields that have a default may be absent. Of a value of the
            wrong type, and of entries beyond the end of a list that is too long, nothing more is reported.
        placeholder: type of values that are not known yet; each is reported under `PLACEHOLDER`.
        further: checks of keywords that no API server has.
    """

    as_written: bool = False
    placeholder: type | tuple[()] = ()
    further: Mapping[str, FurtherCheck] = field(default_factory=dict)

    def violations(self, value: Any, schema: Schema, node: Path = ()) -> Iterator[Violation]:
        if self.placeholder and isinstance(value, self.placeholder):
            yield Violation(node, PLACEHOLDER, None, value, schema)
            return
        if keyword := _violated_type(value, schema):
            yield Violation(node, keyword, schema[keyword], value, schema)
            if self.as_written:
                return
        for keyword in schema:
            if keyword in _CONDITIONS:
                if not _CONDITIONS[keyword](value, schema[keyword], schema):
                    yield Violation(node, keyword, schema[keyword], value, schema)
            elif keyword in _PARTS or keyword in self.further:
                yield from self._violated_parts(keyword, value, schema, node)
        if isinstance(value, dict | list):
            yield from self._violations_below(value, schema, node)

    def _violated_parts(self, keyword: str, value: Any, schema: Schema, node: Path) -> Iterator[Violation]:
        limit = schema[keyword]
        if keyword == "required" and isinstance(value, dict):
            for name in limit:
                if self._is_missing(name, value, schema):
                    yield Violation(node, keyword, limit, value, schema, (name,))
        elif keyword == LIST_TYPE:
            for index, identity in _duplicates(value, schema):
                yield Violation(node, keyword, limit, identity, schema, (index,))
        elif keyword == "allOf":
            for part in limit:
                yield from self.violations(value, part, node)
        elif keyword in self.further:
            for steps, broken, offending in self.further[keyword](value, limit):
                yield Violation(node, keyword, broken, offending, schema, steps)

    def _is_missing(self, name: str, value: Mapping[str, Any], schema: Schema) -> bool:
        if not self.as_written:
            return name not in value
        return value.get(name) is None and "default" not in (schema.get("properties") or {}).get(name, {})

    def _violations_below(self, value: Any, schema: Schema, node: Path) -> Iterator[Violation]:
        if self.as_written:
            if isinstance(value, list):
                value = value[: schema.get("maxItems")]
            else:
                fields = schema.get("properties") or {}
                value = {
                    name: child for name, child in value.items() if child is not None or name not in fields
                }
        for step, child, below in child_values(value, schema):
            if below is not None and below is not ANYTHING:
                yield from self.violations(child, below, (*node, step))
            elif below is None and self.as_written:
                yield Violation(node, UNKNOWN_FIELD, None, value, schema, (step,))


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


def _violated_type(value: Any, schema: Schema) -> str:
    """The keyword that says which type is needed; empty if the value has the type."""
    if kind := schema.get("type"):
        return "" if TYPES[kind](value) or (value is None and schema.get("nullable")) else "type"
    if schema.get(INT_OR_STRING) and not (isinstance(value, str) or _is_integer(value)):
        return INT_OR_STRING
    return ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_multiple(value: Any, step: Any) -> bool:
    try:
        return float(value / step).is_integer() if isinstance(step, float) else not value % step
    except OverflowError:  # an integer that no floating-point number holds
        return (Fraction(value) / Fraction(step)).denominator == 1


def _is_valid(value: Any, schema: Schema) -> bool:
    return next(SchemaChecker().violations(value, schema), None) is None


Condition = Callable[[Any, Any, Schema], bool]
_CONDITIONS: Mapping[str, Condition] = {
    "enum": lambda value, allowed, schema: (
        value in allowed or (value is None and bool(schema.get("nullable")))
    ),
    "pattern": lambda value, pattern, _: not isinstance(value, str) or pattern_matches(pattern, value),
    "minimum": lambda value, least, schema: (
        not _is_number(value) or (value > least if schema.get("exclusiveMinimum") else value >= least)
    ),
    "maximum": lambda value, most, schema: (
        not _is_number(value) or (value < most if schema.get("exclusiveMaximum") else value <= most)
    ),
    "multipleOf": lambda value, step, _: not _is_number(value) or _is_multiple(value, step),
    "minLength": lambda value, least, _: not isinstance(value, str) or len(value) >= least,
    "maxLength": lambda value, most, _: not isinstance(value, str) or len(value) <= most,
    "minItems": lambda value, least, _: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda value, most, _: not isinstance(value, list) or len(value) <= most,
    "minProperties": lambda value, least, _: not isinstance(value, dict) or len(value) >= least,
    "maxProperties": lambda value, most, _: not isinstance(value, dict) or len(value) <= most,
    "not": lambda value, schema, _: not _is_valid(value, schema),
    "anyOf": lambda value, schemas, _: any(_is_valid(value, schema) for schema in schemas),
    "oneOf": lambda value, schemas, _: sum(_is_valid(value, schema) for schema in schemas) == 1,
}
"""By keyword, whether (value, limit, schema) satisfies it. Keywords for other types than the value's are
satisfied."""
_PARTS = frozenset({"required", LIST_TYPE, "allOf"})


def _duplicates(value: Any, schema: Schema) -> Iterator[tuple[int, Any]]:
    """(index, identity) of the entries of a set or map whose identity an earlier one has."""
    kind, keys = schema.get(LIST_TYPE), schema.get("x-kubernetes-list-map-keys") or ()
    if kind not in ("set", "map") or not isinstance(value, list):
        return
    fields = (schema.get("items") or {}).get("properties") or {}
    defaults = {key: fields.get(key, {}).get("default") for key in keys}
    seen: set[str] = set()
    for index, entry in enumerate(value):
        if kind == "map" and not isinstance(entry, dict):
            continue
        identity = {key: entry.get(key, defaults[key]) for key in keys} if kind == "map" else entry
        text = json.dumps(identity, sort_keys=True, default=str)
        if text in seen:
            yield index, identity
        seen.add(text)


def pattern_matches(pattern: str, value: str) -> bool:
    """Whether a pattern of a schema is found in a text."""
    try:
        return bool(_compiled(pattern).search(value))
    except UnicodeEncodeError:  # half a surrogate pair, which Kubernetes reads as U+FFFD
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return bool(_compiled(pattern).search(whole))


def pattern_problem(pattern: str) -> str:
    """Why a pattern is not a regular expression of RE2; empty if it is."""
    import re2

    try:
        _compiled(pattern)
    except re2.error as error:
        return str(error)
    return ""


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    # RE2 is what Kubernetes' own server has: no pattern takes more than linear time.
    import re2

    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)
