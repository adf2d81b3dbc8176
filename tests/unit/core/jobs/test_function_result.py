"""What a training function may return."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.function_result import MAX_DEPTH, MAX_RESULT, read_result, render_result
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import ResultReport


class Scalar:
    """As those of NumPy and PyTorch; TensorFlow's has `numpy` instead."""

    def tolist(self) -> float:
        return 0.5


class Eager:
    """As a tensor of TensorFlow."""

    def numpy(self) -> Scalar:
        return Scalar()


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (
            {"accuracy": 0.9, "ok": True, "n": 3, "none": None},
            {"accuracy": 0.9, "ok": True, "n": 3, "none": None},
        ),
        ((1, [2.5, "größer"]), [1, [2.5, "größer"]]),
        ({"loss": float("nan"), "best": float("inf")}, {"loss": None, "best": None}),
        ({3: "three"}, {"3": "three"}),
        ({"a": Scalar(), "b": [Eager()]}, {"a": 0.5, "b": [0.5]}),
        ("{{workflow.name}} \x1b[2J", "{ {workflow.name}} \\x1b[2J"),
        (nested(MAX_DEPTH), nested(MAX_DEPTH)),
        (0, 0),
        ([2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ({2**64: "a key is a text"}, {str(2**64): "a key is a text"}),
    ],
    ids=[
        "map",
        "tuple",
        "not-finite",
        "number-key",
        "tensors",
        "hostile-text",
        "deep",
        "zero",
        "64 bits",
        "long key",
    ],
)
def test_a_json_value_becomes_the_result(value: object, result: object) -> None:
    """Numbers of frameworks are accepted as JSON numbers. Texts are harmless to templates and terminals."""
    assert read_result(render_result(value)) == result


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "a object is not a JSON value"),
        ({"a": {1, 2}}, "a set is not a JSON value"),
        (b"x", "a bytes is not a JSON value"),
        ({("a", 1): 2}, "a tuple can't be a key"),
        ("x" * MAX_RESULT, "write it to a file, and return the place"),
        (nested(MAX_DEPTH + 1), "are within each other"),
        ([{"__type": "airflow.sdk.Asset", "__var": {}}], "the key '__type' is reserved"),
        ({"__classname__": "airflow.sdk.Asset"}, "the key '__classname__' is reserved"),
        ({"seed": 2**63}, "an integer has more than 64 bits"),
        ([-(2**63) - 1], "an integer has more than 64 bits"),
    ],
    ids=[
        "object",
        "set",
        "bytes",
        "key",
        "large",
        "too-deep",
        "class",
        "class of Airflow 3",
        "65 bits",
        "negative",
    ],
)
def test_what_is_no_small_json_value_is_refused(value: object, message: str) -> None:
    """A value that is not JSON, is too large or too deep, or has a reserved key is rejected with the
    reason."""
    with pytest.raises(InvalidError, match=message):
        render_result(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 5000,
        json.dumps(nested(MAX_DEPTH + 1)),
        "9" * 5000,
        '"' + "x" * MAX_RESULT + '"',
        '{"seed": 18446744073709551616}',
    ],
    ids=["empty", "open", "deep-and-open", "too-deep", "number", "large", "65 bits"],
)
def test_the_master_takes_results_only(text: str) -> None:
    """The master rejects a value from a pod that is not a valid result."""
    with pytest.raises(ValueError, match="result"):
        ResultReport(node=NodeRef(type="worker", id=0), result=text)


KEYS = st.text(max_size=8).filter(lambda key: not key.startswith("__"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_result_that_was_reported_can_be_reported_again(value: object) -> None:
    """A rendered result is the same text after its report was sent and parsed."""
    text = render_result(value)
    report = ResultReport(node=NodeRef(type="worker", id=0), result=text)

    assert report.result == text
    assert ResultReport.model_validate_json(report.model_dump_json()) == report
