"""Where a job of an earlier attempt differs from the manifest of this one."""

from typing import Any

import pytest

from edl_workflows.pipelines.manifests.manifest_diff import MAX_LINES, describe_differences


def _template(**container: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "main", **container}]}}}


ROWS: dict[str, tuple[Any, Any, list[str]]] = {
    "equal": ({"suspend": False}, {"suspend": False}, []),
    "a default of the server": ({}, {"suspend": False}, []),
    "another value": (
        {"suspend": False},
        {"suspend": True},
        ["spec.suspend: false in the manifest, true in the job"],
    ),
    "a value that the job lacks": (
        {"suspend": True},
        {},
        ["spec.suspend: true in the manifest, null in the job"],
    ),
    "inside a list": (
        _template(image="train:2"),
        _template(image="train:1"),
        ['spec.template.spec.containers[0].image: "train:2" in the manifest, "train:1" in the job'],
    ),
    "another length": (
        {"volumes": [1, 2]},
        {"volumes": [1]},
        ["spec.volumes: a list in the manifest, a list in the job"],
    ),
    "a variable": (
        _template(env=[{"name": "PASSWORD", "value": "old"}]),
        _template(env=[{"name": "PASSWORD", "value": "new"}]),
        ["spec.template.spec.containers[0].env[0].value differs"],
    ),
    "a long text": (
        {"message": "x" * 500},
        {"message": ""},
        [f'spec.message: "{"x" * 78}… in the manifest, "" in the job'],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_differences(row: str) -> None:
    """Each difference is listed with its path and values; for fields that may hold a secret, only with its
    path."""
    wanted, found, lines = ROWS[row]

    assert describe_differences({"spec": wanted}, {"spec": found}) == lines


def test_many_differences_are_bounded() -> None:
    """The number of listed differences is limited, since a task's log is no place for a whole manifest."""
    wanted = {f"field-{number}": number for number in range(100)}

    lines = describe_differences({"spec": wanted}, {"spec": {}})

    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "and 80 more differences"
