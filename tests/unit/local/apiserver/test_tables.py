"""Rows of ``kubectl get``."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edl_workflows.local.apiserver import tables
from edl_workflows.local.apiserver.objects import builtin

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"),
        (10_799, "179m"),
        (10_800, "3h"), (12_000, "3h20m"), (30_000, "8h"), (172_799, "47h"), (172_800, "2d"),
        (180_000, "2d2h"),
        (691_200, "8d"), (63_072_000, "2y"), (64_000_000, "2y10d"),
    ],
)  # fmt: skip
def test_ages(seconds: int, shown: str) -> None:
    """Ages are printed as kubectl prints them."""
    assert tables.human_duration(timedelta(seconds=seconds)) == shown


OBJ: dict[str, Any] = {
    "metadata": {"annotations": {"a.b/c": "x"}},
    "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
    "list": [1, 2],
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (".list[1]", 2),
        (".list[7]", None),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        ('.status.conditions[?(@.type=="None")].status', None),
        (r".metadata.annotations.a\.b/c", "x"),
        (".metadata.annotations['a.b/c']", "x"),
        (".nothing.here", None),
    ],
)
def test_json_paths(path: str, value: object) -> None:
    """The JSON paths that printer columns use find what they name."""
    assert tables.json_path(OBJ, path) == value


def _pod(**status: Any) -> dict[str, Any]:
    metadata = {"name": "p", "creationTimestamp": "2026-01-01T11:59:00Z"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "a"}], "nodeName": "n"}, "status": status}


def _container(**state: Any) -> dict[str, Any]:
    return {"name": "a", "ready": "running" in state, "restartCount": 2, "state": state}


@pytest.mark.parametrize(
    ("pod", "cells"),
    [
        (_pod(phase="Pending"), ["0/1", "Pending", "0", "60s"]),
        (
            _pod(phase="Running", containerStatuses=[_container(running={})]),
            ["1/1", "Running", "2", "60s"],
        ),
        (
            _pod(phase="Running", containerStatuses=[_container(waiting={"reason": "CrashLoopBackOff"})]),
            ["0/1", "CrashLoopBackOff", "2", "60s"],
        ),
        (
            _pod(phase="Failed", containerStatuses=[_container(terminated={"reason": "OOMKilled"})]),
            ["0/1", "OOMKilled", "2", "60s"],
        ),
        (
            _pod(phase="Succeeded", containerStatuses=[_container(terminated={"reason": "Completed"})]),
            ["0/1", "Completed", "2", "60s"],
        ),
        (_pod(phase="Failed", reason="NodeLost"), ["0/1", "NodeLost", "0", "60s"]),
    ],
)
def test_pod_rows(pod: dict[str, Any], cells: list[str]) -> None:
    """The status column of a pod says what is wrong with it."""
    resource = next(one for one in builtin.builtin_resources() if one.plural == "pods")
    table = tables.render_table(resource, [pod], NOW, "None", {})

    assert table["rows"][0]["cells"][:5] == ["p", *cells]
    assert len(table["columnDefinitions"]) == len(table["rows"][0]["cells"])
