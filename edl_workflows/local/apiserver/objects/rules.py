"""CEL rules of structural schemas (``x-kubernetes-validations``), with transition rules over ``oldSelf``.

`edl_workflows.core.schemas.cel` evaluates them, within a budget for each object.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.schemas import cel
from edl_workflows.core.schemas.structural import Schema, extend_path
from edl_workflows.local.apiserver.errors import Cause

_REASONS = {
    "FieldValueInvalid": "Invalid value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
}
_MOST_RULES, _MOST_STEPS, _MOST_SECONDS = 1000, 20_000, 5.0
"""Limits for one object: rules evaluated, expressions evaluated (a macro evaluates its expression once per
entry), and seconds of processor time. The library needs about 0.1 ms per expression."""
_OUT_OF_BUDGET = (
    "Invalid value: validation failed due to running out of cost budget, no further "
    "validation rules will be run"
)
_MACRO = re.compile(r"\.\s*(all|exists|exists_one|map|filter|reduce|min)\s*\(")
_OLD = re.compile(r"\boldSelf\b")


@dataclass(frozen=True)
class CelRule:
    """One compiled rule.

    Attributes:
        text: the CEL expression.
        program: the compiled expression.
        message: the message for a violation.
        message_program: the compiled ``messageExpression``, which computes the message instead; None if there
            is none.
        reason: the reason in the reported cause.
        field_path: relative to the rule's position, such as ``.spec.replicas``; empty for that position.
        transition: the rule compares with the old value and is checked only on changes.
    """

    text: str
    program: Any
    message: str
    message_program: Any
    reason: str
    field_path: str
    transition: bool


@dataclass
class CelRuleTree:
    """The rules of a schema node, and of those nodes below it that have rules.

    `schema` is the node's schema if a field below it has a name that rules must escape, otherwise None.
    `iterate` is true if a rule of this node or of a node below it uses a macro, or if any of these nodes
    describes list items or map values, so that its rules may run many times.
    """

    rules: list[CelRule] = field(default_factory=list)
    properties: dict[str, "CelRuleTree"] = field(default_factory=dict)
    items: "CelRuleTree | None" = None
    values: "CelRuleTree | None" = None
    list_keys: Sequence[str] = ()
    schema: Schema | None = None
    iterate: bool = False

    def __bool__(self) -> bool:
        return bool(self.rules or self.properties or self.items or self.values)


def compile_rules(schema: Schema, path: str) -> tuple[CelRuleTree, list[Cause]]:
    """Compile all CEL rules of a schema.

    Returns:
        the compiled rules, and an error with the field's path for each rule that does not compile.
    """
    causes: list[Cause] = []
    return _compile(schema, path, causes)[0], causes


def _compile(schema: Schema, path: str, causes: list[Cause]) -> tuple[CelRuleTree, bool]:
    """The tree, and whether any field below this node has a name that rules must escape."""
    tree = CelRuleTree()
    for index, raw in enumerate(schema.get("x-kubernetes-validations") or []):
        try:
            tree.rules.append(_rule(raw))
        except ValueError as error:
            at = f"{path}.x-kubernetes-validations[{index}].rule"
            causes.append(
                Cause(
                    "FieldValueInvalid",
                    f'Invalid value: "{raw["rule"]}": compilation failed: {error}',
                    at,
                )
            )
    escapes = False
    below: list[CelRuleTree] = []
    for name, child in (schema.get("properties") or {}).items():
        subtree, inner = _compile(child, f"{path}.properties[{name}]", causes)
        escapes = escapes or inner or cel.escape_name(name) != name
        if subtree:
            tree.properties[name] = subtree
            below.append(subtree)
    for keyword, attribute in (("items", "items"), ("additionalProperties", "values")):
        if isinstance(schema.get(keyword), dict):
            subtree, inner = _compile(schema[keyword], f"{path}.{keyword}", causes)
            escapes = escapes or inner
            if subtree:
                subtree.iterate = True
                setattr(tree, attribute, subtree)
                below.append(subtree)
    if schema.get("x-kubernetes-list-type") == "map":
        tree.list_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    tree.schema = schema if escapes else None
    tree.iterate = any(_MACRO.search(rule.text) for rule in tree.rules) or any(
        subtree.iterate for subtree in below
    )
    return tree, escapes


def _rule(raw: Mapping[str, Any]) -> CelRule:
    text = str(raw["rule"])
    expression = raw.get("messageExpression")
    return CelRule(
        text=text,
        program=cel.compile_expression(text),
        message=str(raw.get("message") or f"failed rule: {text.strip()}"),
        message_program=cel.compile_expression(str(expression)) if expression else None,
        reason=str(raw.get("reason") or "FieldValueInvalid"),
        field_path=str(raw.get("fieldPath") or ""),
        transition=bool(_OLD.search(text)),
    )


class _OutOfBudgetError(Exception):
    """Evaluating an object's rules exceeded its budget."""


class _Budget:
    """The evaluation budget for the rules of one object."""

    def __init__(self) -> None:
        self._rules = self._steps = 0
        self._began = time.thread_time()

    def count_rule(self) -> None:
        self._rules += 1
        if self._rules > _MOST_RULES:
            raise _OutOfBudgetError

    def count_step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS or time.thread_time() - self._began > _MOST_SECONDS:
            raise _OutOfBudgetError


def evaluate(value: Any, old: Any, tree: CelRuleTree, path: str = "") -> list[Cause]:
    """The rules that `value` breaks; `old` is the value before the change, None if there was none."""
    causes: list[Cause] = []
    try:
        causes.extend(_walk(value, old, tree, path, _Budget()))
    except _OutOfBudgetError:
        causes.append(Cause("FieldValueInvalid", _OUT_OF_BUDGET, path))
    return causes


def _walk(value: Any, old: Any, tree: CelRuleTree, path: str, budget: _Budget) -> Iterator[Cause]:
    if not tree or value is None:
        return
    yield from _here(value, old, tree, path, budget)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for name, child in value.items():
            below = tree.properties.get(name) or tree.values
            if below:
                yield from _walk(child, before.get(name), below, extend_path(path, name), budget)
    elif isinstance(value, list) and tree.items:
        partners = _by_keys(old, tree.list_keys)
        for index, child in enumerate(value):
            partner = partners.get(_identity(child, tree.list_keys)) if isinstance(child, dict) else None
            yield from _walk(child, partner, tree.items, extend_path(path, index), budget)


def _by_keys(old: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    # Only in lists of type map can an entry be matched with its old version.
    if not keys or not isinstance(old, list):
        return {}
    return {_identity(entry, keys): entry for entry in reversed(old) if isinstance(entry, dict)}


def _identity(entry: Mapping[str, Any], keys: Sequence[str]) -> str:
    return json.dumps([entry.get(key) for key in keys], sort_keys=True)


def _here(value: Any, old: Any, tree: CelRuleTree, path: str, budget: _Budget) -> Iterator[Cause]:
    # An unchanged value has already passed the rules without oldSelf (upstream: CRD validation ratcheting).
    changed = value != old
    rules = [rule for rule in tree.rules if (old is not None if rule.transition else changed)]
    if not rules:
        return
    variables = {"self": _to_cel(value, tree)}
    if old is not None:
        variables["oldSelf"] = _to_cel(old, tree)
    for rule in rules:
        budget.count_rule()
        problem = _broken(rule, variables, budget)
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


def _to_cel(value: Any, tree: CelRuleTree) -> Any:
    return cel.to_cel(cel.escape_fields(value, tree.schema) if tree.schema else value)


def _broken(rule: CelRule, variables: Mapping[str, Any], budget: _Budget) -> str:
    try:
        if cel.is_true(cel.evaluate_program(rule.program, variables, budget.count_step)):
            return ""
        if not rule.message_program:
            return rule.message
        return str(cel.evaluate_program(rule.message_program, variables, budget.count_step))
    except _OutOfBudgetError:
        raise
    except Exception as error:  # noqa: BLE001 - the object is refused, whatever was raised
        return f"rule {rule.text!r} could not be evaluated: {error}"
