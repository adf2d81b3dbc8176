"""Structural schemas: pruning, defaults, and violations in values as written and as a server reads them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.schemas import structural
from edl_workflows.core.schemas.structural import SchemaChecker

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "default": 1},
        "inner": {"type": "object", "default": {}, "properties": {"m": {"type": "integer", "default": 2}}},
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"k": {"type": "string", "default": "x"}}},
        },
        "map": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {"v": {"type": "integer", "default": 0}},
            },
        },
    },
}
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["n", "inner", "m", "list", "k", "map", "z"]), inner)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["n", "inner", "list", "map", "z"]), VALUES))
def test_pruning_and_defaulting_settle(value: dict[str, Any]) -> None:
    """Pruning and defaulting twice equals doing it once, and after pruning no unknown field is left."""
    structural.prune_unknown_fields(value, SCHEMA)
    structural.set_defaults(value, SCHEMA)
    once = repr(value)
    lost = structural.prune_unknown_fields(value, SCHEMA)
    structural.set_defaults(value, SCHEMA)

    assert (lost, repr(value)) == ([], once)


def test_defaults_go_deep() -> None:
    """Defaults are filled in within other defaults, in lists and in maps, and are not shared between
    values."""
    value: dict[str, Any] = {"list": [{}], "map": {"a": {}}}
    structural.set_defaults(value, SCHEMA)

    assert value == {"n": 1, "inner": {"m": 2}, "list": [{"k": "x"}], "map": {"a": {"v": 0}}}
    assert SCHEMA["properties"]["inner"]["default"] == {}


def test_pruned_paths() -> None:
    """Pruning returns the path of each field that it removed."""
    value: dict[str, Any] = {"z": 1, "list": [{"k": "a", "y": 2}], "map": {"a": {"w": 1}}}

    assert structural.prune_unknown_fields(value, SCHEMA) == ["z", "list[0].y", "map.a.w"]


def test_what_a_schema_leaves_open_is_kept() -> None:
    """A field without a schema of its own keeps whatever it holds, including objects in lists."""
    schema = {"type": "object", "properties": {"free": {"x-kubernetes-preserve-unknown-fields": True}}}
    value = {"free": [{"a": [{"b": 1}]}]}

    assert structural.prune_unknown_fields(value, schema) == []
    assert value == {"free": [{"a": [{"b": 1}]}]}


LIMITED = {
    "type": "object",
    "required": ["n", "name"],
    "properties": {
        "n": {"type": "integer", "default": 1},
        "name": {"type": "string", "maxLength": 3},
        "list": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


class Later(str):
    """Stands for a value that is not known yet."""


def violations(checker: SchemaChecker, value: Any) -> list[tuple[str, str]]:
    return [
        (structural.spell_path(found.path), found.keyword) for found in checker.violations(value, LIMITED)
    ]


@pytest.mark.parametrize(
    ("value", "of_server", "of_author"),
    [
        ({"name": "a"}, [("n", "required")], []),
        ({"n": 1, "name": None}, [("name", "type")], [("name", "required")]),
        ({"n": 1, "name": "a", "nam": 1}, [], [("nam", structural.UNKNOWN_FIELD)]),
        ({"n": "x", "name": "abcd"}, [("n", "type"), ("name", "maxLength")], None),
        (
            {"n": 1, "name": "a", "list": ["x", 2]},
            [("list", "maxItems"), ("list[1]", "type")],
            [("list", "maxItems")],
        ),
        ({"n": 1, "name": "a", "map": {"a": None}}, [("map.a", "type")], None),
        ({"n": 1.5, "name": 3}, [("n", "type"), ("name", "type")], None),
    ],
    ids=["default", "null", "unknown", "bounds", "long-list", "null-in-map", "types"],
)
def test_violations_as_a_server_reads_and_as_written(
    value: Any, of_server: list[tuple[str, str]], of_author: list[tuple[str, str]] | None
) -> None:
    """The server checks values after pruning and defaulting; an author's values are checked as they are
    written."""
    assert violations(SchemaChecker(), value) == of_server
    assert violations(SchemaChecker(as_written=True), value) == (
        of_server if of_author is None else of_author
    )


def test_placeholders_are_left_to_the_caller() -> None:
    """The values of placeholders are not known, so no keyword is checked against them."""
    checker = SchemaChecker(placeholder=Later)

    assert violations(checker, {"n": Later("n"), "name": "abc"}) == [("n", structural.PLACEHOLDER)]


def test_further_keywords() -> None:
    """A caller can check a keyword of its own and report violations below the value."""
    checker = SchemaChecker(further={"rules": lambda value, limit: [((0,), limit[1], value[0])]})
    [found] = checker.violations([7], {"type": "array", "items": {}, "rules": ["a", "b"]}, ("x",))

    assert (found.path, found.node, found.limit, found.value) == (("x", 0), ("x",), "b", 7)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [("a$", "a\n", False), ("^.$", "\ud800", True), ("b", "abc", True), (r"^[\w]+$", "a-b", False)],
    ids=["end-of-text", "half-a-pair", "search", "whole"],
)
def test_patterns(pattern: str, text: str, found: bool) -> None:
    """A pattern matches as in Kubernetes, for any text that JSON can hold."""
    assert structural.pattern_matches(pattern, text) is found


@pytest.mark.parametrize(
    ("value", "step", "fits"),
    [(6, 3, True), (7, 3, False), (0.75, 0.25, True), (10**400, 0.5, True), (10**400 + 1, 2.5, False)],
)
def test_multiples(value: float, step: float, fits: bool) -> None:
    """``multipleOf`` is exact for integers and fractions, however large."""
    found = SchemaChecker().violations(value, {"multipleOf": step})

    assert [one.keyword for one in found] == ([] if fits else ["multipleOf"])
