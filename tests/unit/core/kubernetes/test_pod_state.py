"""Which container of a pod is the job's own, and how the pod is, according to it."""

from typing import Any

import pytest

from edl_workflows.core.kubernetes import pod_state

RUNNING: dict[str, Any] = {"running": {}}


def _ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def _pod(own: dict[str, Any], other: dict[str, Any], policy: str = "Never", **status: Any) -> dict[str, Any]:
    """A pod with a proxy before the job's own container. The kubelet sorts the statuses by name."""
    statuses = [{"name": "a-proxy", "state": other}, {"name": "main", "state": own}]
    return {
        "metadata": {"name": "p", "annotations": {pod_state.OWN_CONTAINER: "main"}},
        "spec": {"restartPolicy": policy, "containers": [{"name": "a-proxy"}, {"name": "main"}]},
        "status": {"phase": "Running", "containerStatuses": statuses} | status,
    }


@pytest.mark.parametrize(
    ("pod", "phase", "outliving"),
    [
        pytest.param(_pod(RUNNING, RUNNING), "Running", [], id="both run"),
        pytest.param(_pod(_ended(0), RUNNING), "Succeeded", ["a-proxy"], id="success"),
        pytest.param(_pod(_ended(137), RUNNING), "Failed", ["a-proxy"], id="failure"),
        pytest.param(_pod(RUNNING, _ended(1)), "Running", [], id="the proxy crashed"),
        pytest.param(
            _pod(_ended(0), _ended(1), phase="Failed"), "Succeeded", [], id="a crashed proxy fails no job"
        ),
        pytest.param(
            _pod(_ended(0), _ended(143), phase="Failed", reason="Evicted"), "Failed", [], id="evicted"
        ),
        pytest.param(_pod(_ended(0), RUNNING, "Always"), "Running", [], id="started again"),
        pytest.param(_pod(_ended(1), RUNNING, "OnFailure"), "Running", [], id="started again on failure"),
        pytest.param(_pod(_ended(0), RUNNING, "OnFailure"), "Succeeded", ["a-proxy"], id="not after success"),
    ],
)
def test_the_own_container_decides(pod: dict[str, Any], phase: str, outliving: list[str]) -> None:
    """The phase is that of the job's own container; other containers are only named if they outlive it."""
    assert pod_state.pod_phase(pod) == phase
    assert pod_state.outliving_containers(pod) == outliving
    assert pod_state.must_be_stopped(pod) is (phase == "Running" or bool(outliving))


def test_a_native_sidecar_ends_by_itself() -> None:
    """The kubelet ends sidecars among the init containers once the others have ended, so the pod need not be
    deleted, and its logs stay. Their exit codes are not those of init containers that failed."""
    pod = _pod(_ended(0), _ended(0))
    pod["spec"]["initContainers"] = [{"name": "log", "restartPolicy": "Always"}, {"name": "fetch"}]
    pod["status"]["initContainerStatuses"] = [
        {"name": "fetch", "state": _ended(0)},
        {"name": "log", "state": _ended(137)},
    ]
    assert pod_state.pod_phase(pod) == "Succeeded"
    assert not pod_state.must_be_stopped(pod)
    assert [status["name"] for status in pod_state.init_statuses(pod)] == ["fetch"]


@pytest.mark.parametrize(
    ("names", "marked", "own"),
    [
        (["a-proxy", "train"], "train", "train"),
        (["main", "log"], "", "main"),
        (["a-proxy", "tensorflow"], "", "tensorflow"),
        (["main"], "gone", "main"),
    ],
)
def test_finding_the_own_container(names: list[str], marked: str, own: str) -> None:
    """It is the marked one. A pod of another operator or of an earlier version has no mark: then the name
    that upstream requires counts, else the first container."""
    annotations = {pod_state.OWN_CONTAINER: marked} if marked else {}
    pod = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": name} for name in names]},
    }
    assert pod_state.own_container(pod) == own
