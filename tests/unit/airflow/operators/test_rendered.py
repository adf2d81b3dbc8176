"""Arguments that Jinja rendered as text, read again."""

import ast
from typing import Any

import pytest

from edl_workflows.operators.rendered import rendered_map

EQUAL_HASHES = {number * (2**61 - 1): "a" for number in (1, 2)}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"a": {"b": [1, 2.5, None, True, "x"]}}, {"a": {"b": [1, 2.5, None, True, "x"]}}),
        ({1: {0.5: "a"}, -2: {True: "b", None: "c"}}, {"1": {"0.5": "a"}, "-2": {"true": "b", "null": "c"}}),
        (EQUAL_HASHES, {str(key): "a" for key in EQUAL_HASHES}),
    ],
    ids=["texts", "others", "equal hashes"],
)
def test_a_map_that_python_wrote_is_read(
    written: dict[Any, Any], read: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text of a Python map gives the map with JSON's keys. No map of numbers is built, which takes
    quadratic time if their hashes are equal."""
    built: list[Any] = []
    evaluate = ast.literal_eval

    def observe(node: ast.expr | str) -> Any:
        built.append(evaluate(node))
        return built[-1]

    monkeypatch.setattr(ast, "literal_eval", observe)

    assert rendered_map(repr(written), "replicas") == read
    assert all(isinstance(key, str) for value in built if isinstance(value, dict) for key in value)
