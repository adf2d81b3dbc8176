"""What users type: kubectl against the server."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conformance.support import Api, Object, pod

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not on PATH")
MakeWidget = Callable[..., Object]
Kubectl = Callable[..., str]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(api: Api, namespace: str, tmp_path: Path) -> Run:
    """Runs kubectl in the namespace; its discovery cache is the test's own."""

    def call(*arguments: str, manifest: Object | None = None) -> subprocess.CompletedProcess[str]:
        assert KUBECTL is not None
        base = [
            KUBECTL,
            "--kubeconfig",
            str(api.kubeconfig),
            "--namespace",
            namespace,
            "--cache-dir",
            str(tmp_path / "cache"),
        ]
        text = None if manifest is None else yaml.safe_dump(manifest)
        return subprocess.run([*base, *arguments], input=text, capture_output=True, text=True, timeout=240)

    return call


@pytest.fixture
def kubectl(run: Run) -> Kubectl:
    """Runs kubectl, which must succeed; what it prints."""

    def call(*arguments: str, manifest: Object | None = None) -> str:
        done = run(*arguments, manifest=manifest)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_apply(kubectl: Kubectl) -> None:
    """Apply creates and changes an object, leaves an equal one alone, and removes fields that are no longer
    in the manifest."""
    first = pod("p", metadata={"labels": {"a": "1", "b": "2"}}, schedulerName="nobody")
    second = pod("p", metadata={"labels": {"a": "9"}}, schedulerName="nobody")
    second["spec"]["containers"][0]["image"] = "example.com/none:2"

    assert "pod/p created" in kubectl("apply", "-f", "-", manifest=first)
    assert "pod/p unchanged" in kubectl("apply", "-f", "-", manifest=first)
    assert "pod/p configured" in kubectl("apply", "-f", "-", manifest=second)
    made = json.loads(kubectl("get", "pod", "p", "-o", "json"))
    assert made["metadata"]["labels"] == {"a": "9"}
    assert [one["image"] for one in made["spec"]["containers"]] == ["example.com/none:2"]


def test_apply_of_a_service(kubectl: Kubectl) -> None:
    """If a port of the manifest is replaced by another, the service has only the new one."""
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "a", "port": 1}]},
    }
    kubectl("apply", "-f", "-", manifest=service)
    service["spec"]["ports"] = [{"name": "b", "port": 2}]
    kubectl("apply", "-f", "-", manifest=service)

    ports = json.loads(kubectl("get", "service", "s", "-o", "json"))["spec"]["ports"]
    assert [(one["name"], one["port"]) for one in ports] == [("b", 2)]


def test_custom_resource(kubectl: Kubectl, widgets: str, widget: MakeWidget) -> None:
    """Apply, get by short name, scale, patch, wait and delete a custom resource."""
    kubectl("apply", "-f", "-", manifest=widget(metadata={"labels": {"a": "b"}}))
    table = kubectl("get", f"widgets.{widgets}", "-l", "a=b")
    kubectl("scale", f"widgets.{widgets}/w", "--replicas=4")
    status = json.dumps({"status": {"phase": "Running"}})
    kubectl("patch", f"widgets.{widgets}", "w", "--subresource=status", "--type=merge", "-p", status)
    kubectl("wait", f"widgets.{widgets}/w", "--for=jsonpath={.status.phase}=Running", "--timeout=10s")

    assert table.splitlines()[0].split() == ["NAME", "PHASE", "REPLICAS"]
    assert kubectl("get", f"widgets.{widgets}").splitlines()[1].split() == ["w", "Running", "4"]
    assert "deleted" in kubectl("delete", f"widgets.{widgets}", "w")


def test_unknown_field(run: Run, widget: MakeWidget) -> None:
    """Kubectl rejects a manifest with a typo, with the server's message."""
    done = run("apply", "-f", "-", manifest=widget(imgae="typo"))

    assert done.returncode == 1
    assert 'unknown field "spec.imgae"' in done.stderr


def test_invalid(run: Run, widget: MakeWidget) -> None:
    """Kubectl shows the path and the reason of what is invalid."""
    done = run("apply", "-f", "-", manifest=widget(size="XL"))

    assert done.returncode == 1
    assert 'spec.size: Unsupported value: "XL"' in done.stderr


def test_create(kubectl: Kubectl) -> None:
    """`kubectl create` creates ConfigMaps, Secrets, ServiceAccounts and Services, which it sends as
    protobuf."""
    kubectl("create", "configmap", "c", "--from-literal=k=v")
    kubectl("create", "secret", "generic", "s", "--from-literal=k=v")
    kubectl("create", "serviceaccount", "a")
    kubectl("create", "service", "clusterip", "svc", "--tcp=80:8080")

    assert kubectl("get", "configmap", "c", "-o", "jsonpath={.data.k}") == "v"
    assert kubectl("get", "secret", "s", "-o", "jsonpath={.data.k}") == "dg=="
    assert kubectl("get", "service", "svc", "-o", "jsonpath={.spec.ports[0].targetPort}") == "8080"
    assert kubectl("create", "token", "a").strip()


def test_create_namespace(kubectl: Kubectl, namespace: str) -> None:
    """Namespaces are created, listed with their phase, and deleted."""
    kubectl("create", "namespace", f"{namespace}-more")
    row = kubectl("get", "namespace", f"{namespace}-more").splitlines()[1].split()
    kubectl("delete", "namespace", f"{namespace}-more")

    assert row[1] == "Active"


def test_get_pods(kubectl: Kubectl) -> None:
    """Pods are shown with ready containers, status, restarts and age."""
    kubectl("apply", "-f", "-", manifest=pod("p", schedulerName="nobody"))
    head, row = (line.split() for line in kubectl("get", "pods").splitlines())

    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row[:4] == ["p", "0/1", "Pending", "0"]


def test_describe(kubectl: Kubectl, api: Api, core: str, namespace: str) -> None:
    """Describe shows a pod with its events."""
    kubectl("apply", "-f", "-", manifest=pod("p", schedulerName="nobody"))
    made = json.loads(kubectl("get", "pod", "p", "-o", "json"))
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": namespace,
        "name": "p",
        "uid": made["metadata"]["uid"],
    }
    event = {
        "metadata": {"name": "e"},
        "involvedObject": involved,
        "reason": "Tested",
        "type": "Normal",
        "message": "it works",
    }
    api.post(f"{core}/events", event)
    text = kubectl("describe", "pod", "p")

    assert "Status:           Pending" in text
    assert "it works" in text


def test_label_annotate_edit(kubectl: Kubectl) -> None:
    """Labels and annotations can be set, and labels can be removed."""
    kubectl("apply", "-f", "-", manifest=pod("p", schedulerName="nobody"))
    kubectl("label", "pod", "p", "a=b")
    kubectl("annotate", "pod", "p", "c=d")
    metadata = json.loads(kubectl("get", "pod", "p", "-o", "json"))["metadata"]
    kubectl("label", "pod", "p", "a-")

    assert metadata["labels"]["a"] == "b"
    assert metadata["annotations"]["c"] == "d"
    assert kubectl("get", "pods", "-l", "a") == ""


def test_explain(kubectl: Kubectl, widgets: str) -> None:
    """Explain shows the fields of built-in and custom resources."""
    assert "restartPolicy" in kubectl("explain", "pod.spec")
    assert "-required-" in kubectl("explain", f"widgets.{widgets}.spec.image") + kubectl(
        "explain", "widgets.spec"
    )


def test_wait_for_deletion(kubectl: Kubectl) -> None:
    """Delete waits until the object is gone; wait --for=delete too."""
    kubectl("apply", "-f", "-", manifest=pod("p", schedulerName="nobody"))
    kubectl("delete", "pod", "p", "--timeout=20s")
    kubectl("wait", "pod/p", "--for=delete", "--timeout=5s")

    assert kubectl("get", "pods") == ""


def test_api_resources(kubectl: Kubectl, widgets: str) -> None:
    """The resources are listed."""
    names = kubectl("api-resources", "-o", "name").split()

    assert {"pods", "leases.coordination.k8s.io", f"widgets.{widgets}"} <= set(names)


STREAMED = {
    "exec": (["exec", "p", "--", "true"], "is a process of this machine"),
    "attach": (["attach", "p"], "kubectl logs"),
    "cp": (["cp", "p:/etc/hosts", "hosts"], "is a process of this machine"),
    "port-forward": (["port-forward", "p", "18080:80"], "ports of this machine"),
}


@pytest.mark.embedded_only("containers are processes without streams")
@pytest.mark.parametrize("websockets", ["true", "false"], ids=["WebSocket", "SPDY"])
@pytest.mark.parametrize(("arguments", "advice"), STREAMED.values(), ids=STREAMED)
def test_streams_are_refused_with_advice(
    api: Api,
    core: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    websockets: str,
    arguments: list[str],
    advice: str,
) -> None:
    """Commands that need a stream into a container are rejected over both transports, and kubectl prints what
    to do instead."""
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
    monkeypatch.setenv("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets)
    made = api.post(f"{core}/pods", pod("p", schedulerName="nobody"))
    container = {"name": made["spec"]["containers"][0]["name"], "image": "i", "imageID": "", "ready": True}
    running = {**container, "restartCount": 0, "state": {"running": {"startedAt": None}}}
    api.merge(f"{core}/pods/p/status", {"status": {"phase": "Running", "containerStatuses": [running]}})
    done = run(*arguments)

    assert done.returncode != 0
    assert "not served by the embedded cluster" in done.stderr
    assert advice in done.stderr


@pytest.mark.embedded_only("a real API server has server-side apply")
@pytest.mark.parametrize("kind", ["built-in", "custom"])
def test_server_side_apply_is_refused(run: Run, widget: MakeWidget, kind: str) -> None:
    """Server-side apply is refused with one sentence, whatever the kind and whether the object exists."""
    manifest = pod("p", schedulerName="nobody") if kind == "built-in" else widget("p")
    absent = run("apply", "--server-side", "-f", "-", manifest=manifest)
    assert run("apply", "-f", "-", manifest=manifest).returncode == 0
    present = run("apply", "--server-side", "-f", "-", manifest=manifest)

    for refused in (absent, present):
        assert refused.returncode != 0
        assert "server-side apply is not served by this API server; use client-side apply" in refused.stderr
