"""CEL rules of structural schemas (``x-kubernetes-validations``), with transition rules over ``oldSelf``.

Evaluated by celpy, 0.1 to 0.5 ms a rule. It has the CEL standard functions; the Kubernetes extension libraries (quantity,
url, ip, list sums) are absent, and a rule that calls one fails with an error that says so.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import celpy
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError

from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.schemas import SchemaDict, join

_REASONS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}
_MOST_EVALUATIONS = 1000
"""Of rules, for one object."""
_OUT_OF_BUDGET = "Invalid value: validation failed due to running out of cost budget, no further validation rules will be run"
_OLD = re.compile(r"\boldSelf\b")
_environment = celpy.Environment()
_ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_RESERVED = frozenset(
    [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)


def escape(name: str) -> str:
    """A field's name as CEL rules write it (``dlrover-master`` → ``dlrover__dash__master``)."""
    if name in _RESERVED:
        return f"__{name}__"
    for text, escaped in _ESCAPES:
        name = name.replace(text, escaped)
    return name


@dataclass(frozen=True)
class Rule:
    """One compiled rule.

    Attributes:
        text: the CEL expression.
        program: compiled.
        message: what a violation says.
        message_program: computes it instead.
        reason: of the cause.
        field_path: below the rule's place, as ``.spec.replicas``; empty for the place itself.
        transition: it compares with the old value, so it is checked on changes only.
    """

    text: str
    program: Any
    message: str
    message_program: Any
    reason: str
    field_path: str
    transition: bool


@dataclass
class RuleTree:
    """The rules of a schema node and, by step, of the nodes below it that have any.

    `schema` is the node's, if a field below it has a name that rules must escape.
    """

    rules: list[Rule] = field(default_factory=list)
    properties: dict[str, "RuleTree"] = field(default_factory=dict)
    items: "RuleTree | None" = None
    values: "RuleTree | None" = None
    list_keys: Sequence[str] = ()
    schema: SchemaDict | None = None

    def __bool__(self) -> bool:
        return bool(self.rules or self.properties or self.items or self.values)


def compile_rules(schema: SchemaDict, path: str) -> tuple[RuleTree, list[Cause]]:
    """Compile all rules of a schema; those that don't compile become causes at their `path`."""
    causes: list[Cause] = []
    return _compile(schema, path, causes), causes


def _compile(schema: SchemaDict, path: str, causes: list[Cause]) -> RuleTree:
    tree = RuleTree(schema=schema if _has_escapes(schema) else None)
    for index, raw in enumerate(schema.get("x-kubernetes-validations") or []):
        try:
            tree.rules.append(_rule(raw))
        except (CELParseError, RecursionError) as error:
            at = f"{path}.x-kubernetes-validations[{index}].rule"
            causes.append(
                Cause(
                    "FieldValueInvalid",
                    f'Invalid value: "{raw["rule"]}": compilation failed: {error}',
                    at,
                )
            )
    for name, child in (schema.get("properties") or {}).items():
        if below := _compile(child, f"{path}.properties[{name}]", causes):
            tree.properties[name] = below
    tree.items = (
        _compile(schema["items"], f"{path}.items", causes)
        if isinstance(schema.get("items"), Mapping)
        else None
    )
    extra = schema.get("additionalProperties")
    tree.values = (
        _compile(extra, f"{path}.additionalProperties", causes) if isinstance(extra, Mapping) else None
    )
    if schema.get("x-kubernetes-list-type") == "map":
        tree.list_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    return tree


def _has_escapes(schema: SchemaDict) -> bool:
    properties = schema.get("properties") or {}
    below = [*properties.values(), schema.get("items"), schema.get("additionalProperties")]
    return any(escape(name) != name for name in properties) or any(
        _has_escapes(child) for child in below if isinstance(child, Mapping)
    )


def _escaped(value: Any, schema: SchemaDict) -> Any:
    """The value with its declared fields named as rules name them; keys of maps stay as they are."""
    if isinstance(value, list):
        return [_escaped(entry, schema.get("items") or {}) for entry in value]
    if not isinstance(value, dict):
        return value
    properties, extra = schema.get("properties") or {}, schema.get("additionalProperties")
    rest = extra if isinstance(extra, Mapping) else {}
    return {
        escape(name) if name in properties else name: _escaped(child, properties.get(name) or rest)
        for name, child in value.items()
    }


def _rule(raw: Mapping[str, Any]) -> Rule:
    text = str(raw["rule"])
    expression = raw.get("messageExpression")
    return Rule(
        text=text,
        program=_program(text),
        message=str(raw.get("message") or f"failed rule: {text.strip()}"),
        message_program=_program(str(expression)) if expression else None,
        reason=str(raw.get("reason") or "FieldValueInvalid"),
        field_path=str(raw.get("fieldPath") or ""),
        transition=bool(_OLD.search(text)),
    )


def _program(text: str) -> Any:
    return _environment.program(_environment.compile(text))


def evaluate(value: Any, old: Any, tree: RuleTree, path: str = "") -> list[Cause]:
    """The rules that `value` breaks; `old` is the value before the change, None if there was none."""
    return list(_walk(value, old, tree, path, itertools.count(1)))


def _walk(value: Any, old: Any, tree: RuleTree, path: str, run: Iterator[int]) -> Iterator[Cause]:
    if not tree or value is None:
        return
    yield from _here(value, old, tree, path, run)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for name, child in value.items():
            below = tree.properties.get(name) or tree.values
            if below:
                yield from _walk(child, before.get(name), below, join(path, name), run)
    elif isinstance(value, list) and tree.items:
        for index, child in enumerate(value):
            partner = _partner(child, old, tree.list_keys)
            yield from _walk(child, partner, tree.items, join(path, index), run)


def _partner(entry: Any, old: Any, keys: Sequence[str]) -> Any:
    # Only lists of type map say which old entry an entry was.
    if not keys or not isinstance(old, list) or not isinstance(entry, dict):
        return None
    return next((before for before in old if all(before.get(key) == entry.get(key) for key in keys)), None)


def _here(value: Any, old: Any, tree: RuleTree, path: str, run: Iterator[int]) -> Iterator[Cause]:
    # What did not change has passed the plain rules before (upstream: CRD validation ratcheting).
    changed = value != old
    rules = [rule for rule in tree.rules if (old is not None if rule.transition else changed)]
    if not rules:
        return
    variables = {"self": _to_cel(value, tree)}
    if old is not None:
        variables["oldSelf"] = _to_cel(old, tree)
    for rule in rules:
        if (count := next(run)) > _MOST_EVALUATIONS:
            if count == _MOST_EVALUATIONS + 1:
                yield Cause("FieldValueInvalid", _OUT_OF_BUDGET, path)
            return
        problem = _broken(rule, variables)
        if problem:
            spelt = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else value
            lead = _REASONS.get(rule.reason, "Invalid value")
            shown = (
                f'{lead}: "{spelt}": {problem}'
                if rule.reason == "FieldValueInvalid"
                else f"{lead}: {problem}"
            )
            yield Cause(
                rule.reason, shown, f"{path}{rule.field_path}" if path else rule.field_path.lstrip(".")
            )


def _to_cel(value: Any, tree: RuleTree) -> Any:
    return json_to_cel(_escaped(value, tree.schema) if tree.schema else value)


def _broken(rule: Rule, variables: Mapping[str, Any]) -> str:
    try:
        if rule.program.evaluate(variables) == celtypes.BoolType(True):
            return ""
        return str(rule.message_program.evaluate(variables)) if rule.message_program else rule.message
    except Exception as error:  # noqa: BLE001 - whatever the library raises, the object is refused with the rule's text
        return f"rule {rule.text!r} could not be evaluated: {error}"
