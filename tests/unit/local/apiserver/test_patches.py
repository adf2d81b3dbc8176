"""Patches as pure functions; what clients see of them is in the conformance suite."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects.builtin import type_schemas
from edl_workflows.local.apiserver.objects.patches import json_patch, merge_patch, strategic_merge_patch

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(child is None or _has_null(child) for child in value.values())
    return False


@given(OBJECTS, OBJECTS)
def test_merge_patch_is_idempotent(obj: dict[str, Any], patch: dict[str, Any]) -> None:
    """Applying a merge patch twice equals applying it once, and the original does not change."""
    before = repr(obj)
    once = merge_patch(obj, patch)

    assert merge_patch(once, patch) == once
    assert repr(obj) == before


@given(OBJECTS.filter(lambda value: not _has_null(value)))
def test_merge_patch_into_nothing(obj: dict[str, Any]) -> None:
    """A patch without nulls, applied to nothing, is itself."""
    assert merge_patch({}, obj) == obj


POD = type_schemas()["V1Pod"]


def _containers(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": list(entries)}}


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        pytest.param(
            _containers({"name": "a", "image": "1"}, {"name": "b"}),
            _containers({"name": "b", "image": "2"}, {"name": "c"}),
            _containers({"name": "a", "image": "1"}, {"name": "b", "image": "2"}, {"name": "c"}),
            id="merge by key",
        ),
        pytest.param(
            _containers({"name": "a"}, {"name": "b"}),
            _containers({"name": "a", "$patch": "delete"}),
            _containers({"name": "b"}),
            id="delete an entry",
        ),
        pytest.param(
            _containers({"name": "a"}, {"name": "b"}),
            _containers({"name": "z"}, {"$patch": "replace"}),
            _containers({"name": "z"}),
            id="replace a list",
        ),
        pytest.param(
            _containers({"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}),
            _containers({"name": "a", "env": [{"name": "Y", "value": "3"}]}),
            _containers({"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}]}),
            id="nested lists",
        ),
        pytest.param(
            _containers({"name": "a", "args": ["1", "2"]}),
            _containers({"name": "a", "args": ["3"]}),
            _containers({"name": "a", "args": ["3"]}),
            id="plain lists are replaced",
        ),
        pytest.param(
            _containers({"name": "a"}, {"name": "b"}),
            {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
            _containers({"name": "b"}, {"name": "a"}),
            id="order",
        ),
        pytest.param(
            {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}},
            {
                "spec": {
                    "volumes": [
                        {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
                    ]
                }
            },
            {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}},
            id="retain keys",
        ),
        pytest.param(
            {"spec": {"nodeSelector": {"a": "1"}}},
            {"spec": {"nodeSelector": {"$patch": "replace", "b": "2"}}},
            {"spec": {"nodeSelector": {"b": "2"}}},
            id="replace a map",
        ),
    ],
)
def test_strategic_merge(before: dict[str, Any], patch: dict[str, Any], after: dict[str, Any]) -> None:
    """Lists merge as the schema marks them, and directives are applied."""
    assert strategic_merge_patch(before, patch, POD) == after


def test_strategic_merge_without_key() -> None:
    """An entry without its merge key is a BadRequest."""
    with pytest.raises(ApiError, match="merge key: name"):
        strategic_merge_patch({}, _containers({"image": "1"}), POD)


def test_json_patch_is_bounded() -> None:
    """A JSON patch has at most 10,000 operations."""
    with pytest.raises(ApiError) as refused:
        json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)

    assert refused.value.code == 413
