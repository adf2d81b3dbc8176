"""When a pod counts as gone although nobody confirms its end."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edl_workflows.core.kubernetes import lost_pods

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOT_READY = {"Ready": "False", "ContainersReady": "True"}


def _pod(
    deleted: float | None = None,
    conditions: dict[str, str] | None = None,
    phase: str = "Running",
    **spec: Any,
) -> dict[str, Any]:
    """A pod whose grace period ends in `deleted` seconds, and whose conditions changed 20 s ago."""
    then = (NOW - timedelta(seconds=20)).isoformat()
    metadata = {"name": "p"}
    if deleted is not None:
        metadata["deletionTimestamp"] = (NOW + timedelta(seconds=deleted)).isoformat()
    listed = [
        {"type": name, "status": value, "lastTransitionTime": then}
        for name, value in (conditions or {}).items()
    ]
    return {
        "metadata": metadata,
        "spec": {"containers": [{"name": "main"}]} | spec,
        "status": {"phase": phase, "conditions": listed},
    }


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        pytest.param(_pod(), None, id="it runs"),
        pytest.param(_pod(30), 45, id="within its grace"),
        pytest.param(_pod(-10), 5, id="the kubelet may just report it"),
        pytest.param(_pod(-15), 0, id="past its grace"),
        pytest.param(_pod(-86_400), 0, id="a day later"),
        pytest.param(_pod(-86_400, phase="Failed"), None, id="its end is known"),
        pytest.param(_pod(30, {"DisruptionTarget": "True"}), 45, id="drained: it uses its grace"),
        pytest.param(_pod(30, NOT_READY), 40, id="deleted by somebody on an unreachable node"),
        pytest.param(_pod(30, NOT_READY | {"DisruptionTarget": "True"}), 0, id="taken from a lost node"),
        pytest.param(_pod(conditions=NOT_READY), 40, id="unreachable for 20 of 60 s"),
        pytest.param(_pod(conditions={"Ready": "Unknown", "ContainersReady": "True"}), 40, id="unknown"),
        pytest.param(
            _pod(conditions={"Ready": "False", "ContainersReady": "False"}), None, id="its own fault"
        ),
        pytest.param(
            _pod(conditions=NOT_READY | {"gate": "False"}, readinessGates=[{"conditionType": "gate"}]),
            None,
            id="a closed readiness gate",
        ),
    ],
)
def test_when_a_pod_counts_as_gone(pod: dict[str, Any], left: float | None) -> None:
    """By its deletion and by what the node controller writes into its conditions."""
    assert lost_pods.seconds_until_gone(pod, NOW, unreachable=60) == left
    assert lost_pods.is_gone(pod, NOW, unreachable=60) is (left == 0)
    assert lost_pods.next_gone([pod, _pod()], NOW, unreachable=60) == (left or None)


def test_an_unreachable_node_alone_is_waited_for() -> None:
    """Where nothing else can take the pod's place, Kubernetes decides when to give it up."""
    assert lost_pods.seconds_until_gone(_pod(conditions=NOT_READY), NOW) is None
