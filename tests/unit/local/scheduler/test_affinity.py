"""Node affinity by kube-scheduler's rules."""

from typing import Any

import pytest

from edl_workflows.local.scheduler.decision import affinity_admits, requires_other_pods

LABELS = {"disk": "ssd", "cores": "16"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def name(operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("affinity", "admitted"),
    [
        pytest.param({}, True, id="none"),
        pytest.param(
            {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}, True, id="preferred"
        ),
        pytest.param(node_affinity(name("In", "other", "here")), True, id="name"),
        pytest.param(node_affinity(name("In", "other")), False, id="other name"),
        pytest.param(node_affinity(name("NotIn", "here")), False, id="not this name"),
        pytest.param(node_affinity(label("disk", "In", "hdd", "ssd")), True, id="in"),
        pytest.param(node_affinity(label("disk", "NotIn", "ssd")), False, id="not in"),
        pytest.param(node_affinity(label("gpu", "NotIn", "a100")), True, id="not in, absent"),
        pytest.param(node_affinity(label("disk", "Exists")), True, id="exists"),
        pytest.param(node_affinity(label("gpu", "Exists")), False, id="exists, absent"),
        pytest.param(node_affinity(label("gpu", "DoesNotExist")), True, id="does not exist"),
        pytest.param(node_affinity(label("cores", "Gt", "8")), True, id="greater"),
        pytest.param(node_affinity(label("cores", "Lt", "16")), False, id="less"),
        pytest.param(node_affinity(label("disk", "Gt", "8")), False, id="no number"),
        pytest.param(
            node_affinity(label("disk", "Exists") | name("In", "other")), False, id="both of a term"
        ),
        pytest.param(
            node_affinity(name("In", "other"), label("disk", "Exists")), True, id="one of the terms"
        ),
        pytest.param(node_affinity({}), False, id="a term that asks for nothing"),
    ],
)
def test_node_affinity(affinity: dict[str, Any], admitted: bool) -> None:
    """Terms are alternatives; of one term, all expressions must match."""
    assert affinity_admits(affinity, "here", LABELS) is admitted


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_affinity_to_other_pods(kind: str) -> None:
    """A required affinity to other pods is not supported; a preferred one has no effect on a single node."""
    assert requires_other_pods({kind: {REQUIRED: [{"topologyKey": "kubernetes.io/hostname"}]}})
    assert not requires_other_pods(
        {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}
    )
