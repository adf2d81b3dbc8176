"""Violations of structural schemas and of CEL rules, as the API server words them."""

from typing import Any

import pytest

from edl_workflows.local.apiserver.objects import rules, schemas


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ({"type": "number", "exclusiveMinimum": True, "minimum": 0}, 0, "should be greater than 0"),
        ({"type": "string", "pattern": "^a"}, "b", "should match '^a'"),
        ({"type": "array", "items": {}, "minItems": 1}, [], "should have at least 1 items"),
        ({"type": "object", "maxProperties": 0}, {"a": 1}, "should have at most 0 properties"),
        ({"type": "integer", "not": {"enum": [3]}}, 3, "should not be valid"),
        ({"type": "integer", "anyOf": [{"maximum": 1}, {"minimum": 5}]}, 3, "not valid under any"),
        ({"type": "string", "nullable": True, "enum": ["a"]}, "b", "Unsupported value"),
        ({"type": "integer", "oneOf": [{"maximum": 5}, {"minimum": 1}]}, 3, "not valid under exactly one"),
        ({"type": "number", "multipleOf": 0.5}, 0.7, "should be a multiple of 0.5"),
        ({"type": "integer", "allOf": [{"maximum": 2}]}, 3, "should be less than or equal to 2"),
        (
            {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
            [1, 1],
            "Duplicate value: 1",
        ),
    ],
)
def test_keywords(schema: dict[str, Any], value: Any, message: str) -> None:
    """JSON-schema keywords are checked, with the messages of the API server where it has its own."""
    [cause] = schemas.find_schema_errors({"x": value}, {"type": "object", "properties": {"x": schema}})

    assert cause.field in ("x", "x[1]")
    assert message in cause.message


def test_nullable() -> None:
    """Null is valid for a nullable field, whatever else the schema requires."""
    assert schemas.find_schema_errors(None, {"type": "string", "nullable": True, "enum": ["a"]}) == []


def _broken(schema: dict[str, Any], value: Any, old: Any = None) -> dict[str, str]:
    tree, problems = rules.compile_rules(schema, "")
    assert problems == []
    return {cause.field: cause.message for cause in rules.evaluate(value, old, tree)}


def _ruled(*texts: str, **schema: Any) -> dict[str, Any]:
    return {"type": "object", "x-kubernetes-validations": [{"rule": text} for text in texts], **schema}


def test_rules_see_escaped_names() -> None:
    """Declared fields whose names CEL can't write are escaped; keys of maps are not."""
    schema = _ruled(
        "self.dlrover__dash__master == 1 && self.__in__ == 2 && self.labels['a-b'] == 'c'",
        properties={
            "dlrover-master": {"type": "integer"},
            "in": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    )

    assert _broken(schema, {"dlrover-master": 1, "in": 2, "labels": {"a-b": "c"}}) == {}


def test_unchanged_values_are_not_checked_again() -> None:
    """An unchanged value may break a newer validation rule; a changed one may not."""
    schema = {"type": "object", "properties": {"a": _ruled("self.n > 5"), "b": _ruled("self.n >= oldSelf.n")}}
    old = {"a": {"n": 1}, "b": {"n": 3}}

    assert _broken(schema, {"a": {"n": 1}, "b": {"n": 4}}, old) == {}
    assert set(_broken(schema, {"a": {"n": 2}, "b": {"n": 2}}, old)) == {"a", "b"}


def test_message_expression_and_field_path() -> None:
    """A rule can compute its message and name the field, and can have another reason."""
    rule = {
        "rule": "self.n < 3",
        "messageExpression": "'n is ' + string(self.n)",
        "fieldPath": ".n",
        "reason": "FieldValueForbidden",
    }
    schema = {"type": "object", "properties": {"a": {"type": "object", "x-kubernetes-validations": [rule]}}}

    assert _broken(schema, {"a": {"n": 7}}) == {"a.n": "Forbidden: n is 7"}


def test_rule_that_fails_to_evaluate() -> None:
    """A rule that can't be evaluated rejects the value with the reason."""
    [message] = _broken(_ruled("self.absent > 1"), {"n": 1}).values()

    assert "could not be evaluated" in message


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400], ids=["large", "small", "endless"])
def test_rule_over_an_integer_beyond_64_bits(number: int) -> None:
    """An integer that 64 bits do not hold is a floating-point number to rules, as in Kubernetes."""
    schema = _ruled("self.n == 1", **{"x-kubernetes-preserve-unknown-fields": True})

    assert _broken(schema, {"n": 1, "free": {"list": [number]}}) == {}
    assert _broken(schema, {"n": number}, {"n": number - 1}) != {}


def test_rule_that_does_not_compile() -> None:
    """A rule that does not parse is reported with its path in the schema."""
    _, [cause] = rules.compile_rules(_ruled("self.("), "spec")

    assert cause.field == "spec.x-kubernetes-validations[0].rule"
